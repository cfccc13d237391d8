#include "search/leaf_weights.h"

#include <algorithm>
#include <mutex>

namespace [[gnu::visibility("default")]] token_trie {

LeafWeights::LeafWeights(std::shared_ptr<const Trie> trie, std::vector<double> of_leaves)
    : trie_(std::move(trie)),
      of_leaves_(std::move(of_leaves)),
      least_(*std::min_element(of_leaves_.begin(), of_leaves_.end())),
      bounds_(trie_->greatest_below(of_leaves_)) {}

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

}  // namespace token_trie
