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

// Rules of a set, by options from across the ABI. Throws Error.
[[gnu::visibility("default")]] std::shared_ptr<const FollowSet> make_follow(const Trie & trie,
                                                                            const Vocab & vocab,
                                                                            const token_trie_params & params);

// A cursor at the root of a set. Throws Error.
Constraint make_constraint(const Vocab & vocab, const Set & set, const token_trie_params & params);

// Reads the params that messages call `what`; where they are null, an answer is a member and nothing else.
token_trie_params read_params(const token_trie_params * params, const char * what);

// The same of a payload, whose trie comes from the cache; what the options alone refuse is not cached.
Constraint read_constraint(const Vocab & vocab, std::string_view json, const token_trie_params & params);

// Throws Error (argument) for null.
const Set & to_set(const token_trie_set * set);

}  // namespace token_trie
