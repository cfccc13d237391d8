#pragma once

#include "walk/cursor.h"

#include <string>

namespace [[gnu::visibility("default")]] token_trie {

// Throws Error (vocab) if a token is none of n_vocab; what() names the list.
template <typename Iterator, typename What>
void check_tokens(Iterator begin, Iterator end, std::int32_t n_vocab, What && what) {
    for (Iterator at = begin; at != end; ++at) {
        if (*at < 0 || *at >= n_vocab) {
            throw Error(Status::vocab, std::string(what()) + "[" + std::to_string(at - begin) +
                                           "]: " + std::to_string(*at) + " is outside the vocabulary (" +
                                           std::to_string(n_vocab) + " tokens)");
        }
    }
}
inline void check_tokens(const std::vector<Token> & tokens, std::int32_t n_vocab, const char * what) {
    check_tokens(tokens.begin(), tokens.end(), n_vocab, [what] { return what; });
}
// The same of the tokens of a set, naming the leaf, and of its rules.
void check_tokens(const Trie & trie, std::int32_t n_vocab);
void check_tokens(const FollowSet & follow, std::int32_t n_vocab);

}  // namespace token_trie
