#include "search/leaf_weights.h"

#include "trie/compact_tree.h"

#include <algorithm>
#include <limits>
#include <mutex>

namespace [[gnu::visibility("default")]] token_trie {

LeafWeights::LeafWeights(std::shared_ptr<const Trie> trie, std::vector<double> of_leaves)
    : trie_(std::move(trie)),
      of_leaves_(std::move(of_leaves)),
      least_(*std::min_element(of_leaves_.begin(), of_leaves_.end())),
      bounds_(bounds()) {}

std::shared_ptr<const LeafWeights> LeafWeights::of(const std::shared_ptr<const Trie> & trie,
                                                   std::vector<double> of_leaves) {
    static std::mutex mutex;
    static std::weak_ptr<const LeafWeights> latest;
    std::unique_lock<std::mutex> lock(mutex);
    std::shared_ptr<const LeafWeights> weights = latest.lock();
    lock.unlock();
    if (weights == nullptr || weights->trie_ != trie || weights->of_leaves_ != of_leaves) {
        weights = std::make_shared<const LeafWeights>(trie, std::move(of_leaves));
        lock.lock();
        latest = weights;
    }
    return weights;
}

std::vector<double> LeafWeights::bounds() const {
    // A filtered trie has the nodes of the whole one, because listing its children takes long; members that are
    // filtered out have the least weight.
    constexpr double least = -std::numeric_limits<double>::infinity();
    const CompactTree * const compact = trie_->compact().get();
    const auto n = compact != nullptr ? static_cast<NodeId>(compact->shape().n_inner) : trie_->n_nodes();
    std::vector<double> out(n, least);
    for (NodeId node = n; node-- > 0;) {  // children have higher numbers
        const auto raise = [&](double weight) { out[node] = std::max(out[node], weight); };
        const auto raise_to_leaf = [&](LeafId leaf) { raise(trie_->has_leaf(leaf) ? of_leaves_[leaf] : least); };
        const std::uint32_t n_children = compact != nullptr ? compact->children(node).size : trie_->children(node).size;
        const EdgeId edge = compact != nullptr ? compact->first_edge(node) : 0;
        for (std::uint32_t i = 0; i < n_children; ++i) {
            const NodeId child = compact != nullptr ? compact->target(edge + i) : trie_->child_at(node, i);
            if (child < n) {
                raise(out[child]);
            } else {
                raise_to_leaf(compact->leaf_below(child));
            }
        }
        if (const LeafId leaf = compact != nullptr ? compact->leaf(node) : trie_->leaf(node); leaf != kNoLeaf) {
            raise_to_leaf(leaf);
        }
    }
    return out;
}

double LeafWeights::of_leaf_below(NodeId tail_node) const noexcept {
    return of_leaves_[trie_->compact()->leaf_below(tail_node)];
}

}  // namespace token_trie
