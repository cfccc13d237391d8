#pragma once

#include "sampler/cursor.h"

struct llama_sampler;

namespace [[gnu::visibility("default")]] token_trie {

// The values of enum token_trie_mode, which csrc/abi checks against these.
enum class Mode { greedy = 0, sampled = 1 };

// A llama_sampler that lets the cursor's allowed set through; the caller owns it. Cost of apply: O(allowed) where each
// candidate stands at its own index, as llama_sampler_sample lays them out, else one pass over the candidates. No
// allocation.
llama_sampler * make_sampler(Cursor cursor, Mode mode);

struct SamplerView {
    const Cursor * cursor;     // valid until the sampler is freed
    std::uint64_t n_escaped;   // accepts of a token outside the allowed set
    std::uint64_t n_restored;  // applies where upstream samplers had cut every allowed token away
};

// Throws Error (argument) if the sampler was not made here.
SamplerView view(const llama_sampler * sampler);

}  // namespace token_trie
