#include "search/found_leaves.h"

#include <algorithm>
#include <cmath>

namespace token_trie {

void FoundLeaves::add(const RankedNode & leaf) {
    mass_max_ += std::exp(leaf.logprob);
    const auto at = std::lower_bound(best_.begin(), best_.end(), leaf,
                                     [](const RankedNode & a, const RankedNode & b) { return b < a; });
    best_.insert(at, leaf);
    if (best_.size() > n_best_) {
        rival_min_ = std::max(rival_min_, best_.back().score);
        rival_max_ = std::max(rival_max_, best_.back().score);
        best_.pop_back();
    }
}

void FoundLeaves::miss(const RankedNode & node) {
    rival_max_ = std::max(rival_max_, node.score);
    mass_max_ += std::exp(node.logprob);
}

double FoundLeaves::worst() const noexcept { return best_.size() < n_best_ ? kImpossible : best_.back().score; }

Ranking FoundLeaves::ranking(const Trie & trie) const {
    Ranking result;
    for (const RankedNode & leaf : best_) {
        result.found.push_back({trie.leaf(leaf.node), leaf.logprob});
    }
    result.gap = rival_max_ > worst() ? rival_max_ - worst() : 0;
    result.rival_min = rival_min_;
    result.rival_max = rival_max_;
    result.mass_max = mass_max_;
    return result;
}

}  // namespace token_trie
