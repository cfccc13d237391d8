#include "trie/lexicon.h"

#include <numeric>

namespace token_trie {
namespace {

std::shared_ptr<const Trie> trie_of_bytes(const std::vector<std::string> & pieces) {
    LeafList leaves;
    for (const std::string & piece : pieces) {
        leaves.add_text(piece);
    }
    throw_if(leaves.tokens.empty(), Status::vocab, "no token of this vocabulary spells anything");
    return Trie::build(std::move(leaves));
}

}  // namespace

Lexicon::Lexicon(const std::vector<std::string> & pieces, std::string vocab)
    : bytes_(trie_of_bytes(pieces)), offsets_(bytes_->n_leaves() + 1), vocab_(std::move(vocab)) {
    TextsHash hash = hash_of(pieces.size(), vocab_);
    for (const std::string & piece : pieces) {
        hash.add(piece);
    }
    identity_ = hash.finish();
    std::vector<LeafId> leaf_of(pieces.size(), kNoLeaf);
    for (std::size_t token = 0; token < pieces.size(); ++token) {
        NodeId node = kRoot;
        for (const char byte : pieces[token]) {
            node = next(node, static_cast<unsigned char>(byte));
        }
        leaf_of[token] = bytes_->leaf(node);
        if (leaf_of[token] != kNoLeaf) {
            ++offsets_[leaf_of[token] + 1];
        }
    }
    std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
    tokens_.resize(offsets_.back());
    std::vector<std::uint32_t> next_place = offsets_;
    for (std::size_t token = 0; token < pieces.size(); ++token) {
        if (leaf_of[token] != kNoLeaf) {
            tokens_[next_place[leaf_of[token]]++] = static_cast<Token>(token);
        }
    }
}

TextsHash Lexicon::hash_of(std::size_t n_pieces, const std::string & vocab) {
    TextsHash hash(n_pieces + 1);
    hash.add(vocab);
    return hash;
}

}  // namespace token_trie
