#pragma once

#include "trie/trie.h"

#include <memory>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// What is added to the scores of a trie's leaves, in nats.
class LeafWeights {
   public:
    // One a leaf, in their order, and finite. Takes a pass over the trie's nodes.
    LeafWeights(std::shared_ptr<const Trie> trie, std::vector<double> of_leaves);

    bool are(const Trie & trie, const std::vector<double> & of_leaves) const {
        return &trie == trie_.get() && of_leaves == of_leaves_;
    }
    double of_leaf(LeafId leaf) const noexcept { return of_leaves_[leaf]; }
    // The most that is added to a leaf that ends at node or below.
    double bound(NodeId node) const noexcept { return bounds_[node]; }
    // Between the least and the most of all.
    double spread() const noexcept { return bounds_[kRoot] - least_; }

   private:
    const std::shared_ptr<const Trie> trie_;
    const std::vector<double> of_leaves_;
    const double least_;
    std::vector<double> bounds_;  // of each node
};

}  // namespace token_trie
