#pragma once

#include "cursor/cursor.h"

struct llama_sampler;

namespace [[gnu::visibility("default")]] token_trie {

enum class Mode { greedy = TOKEN_TRIE_GREEDY, sampled = TOKEN_TRIE_SAMPLED };

// A llama_sampler that lets the cursor's allowed set through; the caller owns it. Cost of apply: O(allowed) where each
// candidate is at its own index, as llama_sampler_sample lays them out, else one pass over the candidates. No
// allocation.
llama_sampler * make_sampler(Cursor cursor, Mode mode);

struct SamplerView {
    const Cursor * cursor;            // valid until the sampler is freed
    token_trie_sampler_state counts;  // these alone
};

// Throws Error (argument) if the sampler was not made here.
SamplerView view(const llama_sampler * sampler);

}  // namespace token_trie
