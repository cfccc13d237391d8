#include "search/leaf_weights.h"

#include "trie/compact_tree.h"

#include <algorithm>

namespace [[gnu::visibility("default")]] token_trie {

LeafWeights::LeafWeights(std::shared_ptr<const Trie> trie, std::vector<double> of_leaves)
    : trie_(std::move(trie)),
      of_leaves_(std::move(of_leaves)),
      least_(*std::min_element(of_leaves_.begin(), of_leaves_.end())) {
    if (trie_->parts() == nullptr) {
        base_ = bounds_of(*trie_, 0);
    } else {
        const Joined & joined = *trie_->parts();
        base_ = bounds_of(*joined.base(), 0);
        more_ = bounds_of(*joined.more(), joined.base()->n_leaves());
    }
}

std::vector<double> LeafWeights::bounds_of(const Trie & trie, LeafId first) const {
    if (trie.compact() != nullptr) {
        // Members lie in the order of the tree, each below its edge: once a member, and then from children to parents.
        const CompactTree & tree = *trie.compact();
        std::vector<double> out(tree.shape().n_inner, kLeast);
        for (auto node = static_cast<NodeId>(out.size()); node-- > 0;) {
            const TokenSpan children = tree.children(node);
            const EdgeId edge = tree.first_edge(node);
            for (EdgeId i = 0; i < children.size; ++i) {
                const NodeId child = tree.target(edge + i);
                out[node] = std::max(out[node], tree.is_inner(child)
                                                    ? out[child]
                                                    : of_kept(trie, first, tree.leaf_of(tree.first_member(edge + i))));
            }
            if (const LeafId leaf = tree.leaf(node); leaf != kNoLeaf) {
                out[node] = std::max(out[node], of_kept(trie, first, leaf));
            }
        }
        return out;
    }
    std::vector<double> out(trie.n_nodes(), kLeast);
    for (NodeId node = trie.n_nodes(); node-- > 0;) {  // edges lead to higher numbers
        double most = trie.leaf(node) == kNoLeaf ? kLeast : of_leaves_[first + trie.leaf(node)];
        for (std::uint32_t i = 0, n = trie.children(node).size; i < n; ++i) {
            most = std::max(most, out[trie.child_at(node, i)]);
        }
        out[node] = most;
    }
    return out;
}

double LeafWeights::bound_in(const Trie & trie,
                             const std::vector<double> & bounds,
                             LeafId first,
                             NodeId node) const noexcept {
    if (node < bounds.size()) {
        return bounds[node];
    }
    return of_leaves_[first + trie.compact()->leaf_below(node)];
}

}  // namespace token_trie
