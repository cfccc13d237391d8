#include "llama/vocab.h"

namespace [[gnu::visibility("default")]] token_trie {

void check_vocab(const Trie & trie, const Vocab & vocab) {
    const std::int32_t n = vocab.size();
    if (n == 0) {
        return;
    }
    throw_if(!trie.vocab().empty() && trie.vocab() != vocab.fingerprint(), Status::vocab,
             "vocab: the set was made for another vocabulary (", trie.vocab(), ") than this model's (",
             vocab.fingerprint(), "); build it again with this model");
    check_tokens(trie, n);
}

void check_vocab(const FollowSet & follow, const Vocab & vocab) {
    if (vocab.size() > 0) {
        check_tokens(follow, vocab.size());
    }
}

}  // namespace token_trie
