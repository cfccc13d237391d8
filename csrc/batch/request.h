#pragma once

#include "stream/query.h"

namespace [[gnu::visibility("default")]] token_trie {

// A query after a prompt.
struct Request : Query {
    std::vector<Token> prompt;
};

}  // namespace token_trie
