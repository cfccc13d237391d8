#include "stream/leaf_weights.h"

#include <algorithm>
#include <limits>

namespace [[gnu::visibility("default")]] token_trie {

LeafWeights::LeafWeights(const Trie & trie, std::vector<double> of_leaves)
    : of_leaves_(std::move(of_leaves)),
      least_(*std::min_element(of_leaves_.begin(), of_leaves_.end())),
      bounds_(trie.n_nodes(), -std::numeric_limits<double>::infinity()) {
    for (NodeId node = trie.n_nodes(); node-- > 0;) {  // edges lead to higher numbers
        double most = trie.leaf(node) == kNoLeaf ? bounds_[node] : of_leaves_[trie.leaf(node)];
        const EdgeId first = trie.first_edge(node);
        for (EdgeId edge = first; edge < first + trie.children(node).size; ++edge) {
            most = std::max(most, bounds_[trie.target(edge)]);
        }
        bounds_[node] = most;
    }
}

}  // namespace token_trie
