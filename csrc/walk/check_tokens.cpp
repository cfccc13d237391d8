#include "walk/check_tokens.h"

namespace [[gnu::visibility("default")]] token_trie {

void check_tokens(const Trie & trie, std::int32_t n_vocab) {
    if (trie.max_token() < n_vocab) {
        return;
    }
    for (LeafId leaf = 0; leaf < trie.n_leaves(); ++leaf) {
        const std::vector<Token> tokens = trie.sequence(leaf);
        check_tokens(tokens.begin(), tokens.end(), n_vocab,
                     [&] { return "leaf " + quote(trie.name(leaf)) + ": tokens"; });
    }
}

void check_tokens(const FollowSet & follow, std::int32_t n_vocab) {
    check_tokens(follow.end_tokens().begin(), follow.end_tokens().end(), n_vocab, [] { return "end_tokens"; });
    check_tokens(follow.separator().begin(), follow.separator().end(), n_vocab, [] { return "separator"; });
    check_tokens(follow.marker().tokens(), n_vocab, "start_after");
}

}  // namespace token_trie
