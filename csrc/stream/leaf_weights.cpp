#include "stream/leaf_weights.h"

#include <algorithm>
#include <limits>

namespace [[gnu::visibility("default")]] token_trie {

LeafWeights::LeafWeights(std::shared_ptr<const Trie> trie, std::vector<double> of_leaves)
    : trie_(std::move(trie)),
      of_leaves_(std::move(of_leaves)),
      least_(*std::min_element(of_leaves_.begin(), of_leaves_.end())),
      bounds_(trie_->n_nodes(), -std::numeric_limits<double>::infinity()) {
    for (NodeId node = trie_->n_nodes(); node-- > 0;) {  // edges lead to higher numbers
        double most = trie_->leaf(node) == kNoLeaf ? bounds_[node] : of_leaves_[trie_->leaf(node)];
        for (std::uint32_t i = 0; i < trie_->children(node).size; ++i) {
            most = std::max(most, bounds_[trie_->child_at(node, i)]);
        }
        bounds_[node] = most;
    }
}

}  // namespace token_trie
