#pragma once

#include "trie/trie.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace token_trie {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

struct RankedNode {
    double logprob;  // of the tokens to node; of the finished, of the leaf
    NodeId node;
    double score = logprob;  // with weights: of no leaf at or below it more
    double rank = score;     // what it is gone on from by

    // Nodes are numbered by depth and then by tokens, whatever the order of the leaves.
    bool operator<(const RankedNode & other) const {
        return rank != other.rank ? rank < other.rank : node > other.node;
    }
};

// The best on top.
class RankedNodes {
   public:
    bool empty() const noexcept { return entries_.empty(); }
    const RankedNode & top() const noexcept { return entries_.front(); }
    void clear() noexcept { entries_.clear(); }
    const std::vector<RankedNode> & entries() const noexcept { return entries_; }
    // Of all that are kept, each of which keep(entry) may change.
    template <typename Keep>
    void filter(const Keep & keep) {
        const auto dropped = [&](RankedNode & entry) { return !keep(entry); };
        entries_.erase(std::remove_if(entries_.begin(), entries_.end(), dropped), entries_.end());
        std::make_heap(entries_.begin(), entries_.end());
    }
    void push(const RankedNode & entry) {
        entries_.push_back(entry);
        std::push_heap(entries_.begin(), entries_.end());
    }
    RankedNode pop() {
        std::pop_heap(entries_.begin(), entries_.end());
        const RankedNode entry = entries_.back();
        entries_.pop_back();
        return entry;
    }

   private:
    std::vector<RankedNode> entries_;
};

}  // namespace token_trie
