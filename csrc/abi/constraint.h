#pragma once

#include "sampler/sampler.h"
#include "sampler/vocab.h"
#include "token_trie.h"

#include <string_view>

namespace token_trie {

struct Constraint {
    Cursor cursor;
    Mode mode = Mode::greedy;
};

// A cursor at the root of the payload's trie, which comes from the cache, by options from across the ABI. Throws Error,
// and then caches nothing that the options alone would have refused.
Constraint read_constraint(const Vocab & vocab, std::string_view json, const token_trie_params & params);

}  // namespace token_trie
