#include "llama/vocab.h"

namespace [[gnu::visibility("default")]] token_trie {

void check_vocab(const Trie & trie, const Vocab & vocab) {
    const std::int32_t n = vocab.size();
    if (n == 0) {
        return;
    }
    const auto require_same = [](const std::string & made_for, const std::string & given, const std::string & what) {
        throw_if(made_for != given, Status::vocab, "vocab: the set was made for another vocabulary (", made_for,
                 ") than this model's (", given, ")", what, "; build it again with this model");
    };
    if (!trie.vocab().empty()) {
        require_same(trie.vocab(), vocab.fingerprint(), "");
    }
    if (!trie.is_tree()) {
        require_same(trie.lexicon(), vocab.lexicon() == nullptr ? "" : vocab.lexicon()->identity(),
                     ": the texts are the same, but not which tokens are for control or end a generation");
    }
    check_tokens(trie, n);
}

void check_vocab(const FollowSet & follow, const Vocab & vocab) {
    if (vocab.size() > 0) {
        check_tokens(follow, vocab.size());
    }
}

}  // namespace token_trie
