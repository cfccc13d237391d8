#pragma once

#include "llama/vocab.h"
#include "sampler/sampler.h"
#include "token_trie.h"
#include "trie/cache.h"

#include <string_view>

namespace token_trie {

struct Constraint {
    Cursor cursor;
    Mode mode = Mode::greedy;
};

// A cursor at the root of one of the tries that a payload had, by its path. Throws Error.
Constraint pick_constraint(const Vocab & vocab, const TrieSets & sets, const token_trie_params & params);

// A cursor at the root of the payload's trie, which comes from the cache, by options from across the ABI. Throws Error,
// and then caches nothing that the options alone would have refused. n_vocab > 0: of a vocabulary that is null, or that
// has room for more tokens than it names.
Constraint read_constraint(const Vocab & vocab,
                           std::string_view json,
                           const token_trie_params & params,
                           std::int32_t n_vocab = 0);

}  // namespace token_trie
