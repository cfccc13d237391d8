#pragma once

#include "llama/vocab.h"
#include "stream/query.h"
#include "token_trie.h"

#include <functional>

namespace token_trie {

// Reads the struct that messages call `what`; null: the defaults. may_keep: TOKEN_TRIE_SEED_KEEP is allowed.
Sampling read_sampling(const token_trie_sampling * from, const char * what, bool may_keep);

token_trie_token to_token(const Decoder::Step & step);
// Passes tokens on; NULL: none.
std::function<bool(const Decoder::Step &)> callback(token_trie_on_token on_token, void * user);

Query read_query(const Vocab & vocab, const token_trie_query * query);

}  // namespace token_trie
