#pragma once

#include "trie/trie.h"

#include <memory>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// Weights that are added to the scores of a trie's leaves, in nats. Bounds are kept for the trie's inner nodes; another
// node's bound is the weight of the one leaf at or below it.
class LeafWeights {
   public:
    // One a leaf, in their order, and finite. Takes a pass over the trie's nodes.
    LeafWeights(std::shared_ptr<const Trie> trie, std::vector<double> of_leaves);

    // Returns those made last where they are equal and still in use.
    static std::shared_ptr<const LeafWeights> of(const std::shared_ptr<const Trie> & trie,
                                                 std::vector<double> of_leaves);

    double of_leaf(LeafId leaf) const noexcept { return of_leaves_[leaf]; }
    // The most that is added to a leaf that ends at node or below.
    double bound(NodeId node) const noexcept {
        return node < bounds_.size() ? bounds_[node] : of_leaves_[trie_->leaf_below(node)];
    }
    // Between the least and the most of all.
    double spread() const noexcept { return bound(kRoot) - least_; }

   private:
    const std::shared_ptr<const Trie> trie_;
    const std::vector<double> of_leaves_;
    const double least_;
    const std::vector<double> bounds_;
};

}  // namespace token_trie
