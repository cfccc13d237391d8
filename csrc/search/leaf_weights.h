#pragma once

#include "trie/trie.h"
#include "trie/views.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// What is added to the scores of a trie's leaves, in nats. Bounds are kept of the nodes of a flat trie or of the inner
// nodes of a compact one; in a tail, a node's is the weight of the one leaf below it.
class LeafWeights {
   public:
    // One a leaf, in their order, and finite. Takes a pass over the trie's nodes.
    LeafWeights(std::shared_ptr<const Trie> trie, std::vector<double> of_leaves);

    // The same, shared with the caller before who gave equal ones, while these are used.
    static std::shared_ptr<const LeafWeights> of(const std::shared_ptr<const Trie> & trie,
                                                 std::vector<double> of_leaves);

    double of_leaf(LeafId leaf) const noexcept { return of_leaves_[leaf]; }
    // The most that is added to a leaf that ends at node or below.
    double bound(NodeId node) const noexcept {
        if (trie_->parts() == nullptr) {
            return bound_in(*trie_, base_, 0, node);
        }
        const Joined & joined = *trie_->parts();
        const Joined::Parts in = joined.parts(node);
        return std::max(
            in.base == kNoNode ? kLeast : bound_in(*joined.base(), base_, 0, in.base),
            in.more == kNoNode ? kLeast : bound_in(*joined.more(), more_, joined.base()->n_leaves(), in.more));
    }
    // Between the least and the most of all.
    double spread() const noexcept { return bound(kRoot) - least_; }

   private:
    static constexpr double kLeast = -std::numeric_limits<double>::infinity();

    // Leaf 0 of trie is leaf first of all.
    double bound_in(const Trie & trie, const std::vector<double> & bounds, LeafId first, NodeId node) const noexcept;
    std::vector<double> bounds_of(const Trie & trie, LeafId first) const;
    double of_kept(const Trie & trie, LeafId first, LeafId leaf) const {
        return trie.has_leaf(leaf) ? of_leaves_[first + leaf] : kLeast;
    }

    const std::shared_ptr<const Trie> trie_;
    const std::vector<double> of_leaves_;
    const double least_;
    std::vector<double> base_;
    std::vector<double> more_;  // of a joined trie
};

}  // namespace token_trie
