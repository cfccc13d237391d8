#include "search/leaf_weights.h"

#include "trie/compact_tree.h"

#include <mutex>

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

std::vector<double> LeafWeights::bounds_of(const Trie & trie, LeafId first) const {
    // Of a filtered tree all nodes, as its children would have to be listed; of_kept leaves its other members out.
    const auto of_first = [&](const auto & tree, NodeId n) {
        std::vector<double> out(n, kLeast);
        for (NodeId node = n; node-- > 0;) {  // edges lead to higher numbers
            const TokenSpan children = tree.children(node);
            const EdgeId edge = tree.first_edge(node);
            for (EdgeId i = 0; i < children.size; ++i) {
                const NodeId child = tree.target(edge + i);
                out[node] = std::max(out[node],
                                     child < n ? out[child] : of_kept(trie, first, trie.compact()->leaf_below(child)));
            }
            if (const LeafId leaf = tree.leaf(node); leaf != kNoLeaf) {
                out[node] = std::max(out[node], of_kept(trie, first, leaf));
            }
        }
        return out;
    };
    const CompactTree * const compact = trie.compact().get();
    return compact != nullptr ? of_first(*compact, static_cast<NodeId>(compact->shape().n_inner))
                              : of_first(trie, trie.n_nodes());
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
