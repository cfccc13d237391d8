#pragma once

#include "trie/sha256.h"
#include "trie/trie.h"

namespace [[gnu::visibility("default")]] token_trie {

// What the tokens of a vocabulary spell, as a trie of bytes in which one leaf may stand for several tokens. Immutable;
// built once a vocabulary.
class Lexicon {
   public:
    // pieces[t] are the bytes that token t spells, "" if it may not be in a text; vocab is the fingerprint. Throws
    // Error (vocab) if no token spells anything.
    Lexicon(const std::vector<std::string> & pieces, std::string vocab);

    // Begins the identity of one of so many pieces, which are added in their order: a hash over all of it, as graphs
    // made with equal ones are equal.
    static TextsHash hash_of(std::size_t n_pieces, const std::string & vocab);

    // The node that a byte leads to, from kRoot on; kNoNode if no token goes on with it.
    NodeId next(NodeId node, Token byte) const noexcept { return bytes_->child(node, byte); }
    // Tokens that spell just the bytes that lead to node, ascending.
    TokenSpan tokens(NodeId node) const noexcept {
        const LeafId leaf = bytes_->leaf(node);
        return leaf == kNoLeaf ? TokenSpan{}
                               : TokenSpan{tokens_.data() + offsets_[leaf], offsets_[leaf + 1] - offsets_[leaf]};
    }
    const std::string & vocab() const noexcept { return vocab_; }
    const std::string & identity() const noexcept { return identity_; }

   private:
    std::shared_ptr<const Trie> bytes_;
    std::vector<Token> tokens_;           // by leaf
    std::vector<std::uint32_t> offsets_;  // n_leaves + 1
    std::string vocab_;
    std::string identity_;
};

}  // namespace token_trie
