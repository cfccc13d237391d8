#pragma once

#include "search/search.h"
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

// What a search has found, and what it knows of the rest.
class FoundLeaves {
   public:
    explicit FoundLeaves(std::size_t n_best) : n_best_(n_best) {}

    bool empty() const noexcept { return best_.empty(); }
    const RankedNode & best() const noexcept { return best_.front(); }

    // A leaf that ends at a node.
    void add(const RankedNode & leaf);
    // A node that is not gone on from.
    void miss(const RankedNode & node);
    // What is ranked lower is not among them; an equal one may still come first by its tokens.
    double worst() const noexcept;
    Ranking ranking(const Trie & trie) const;

   private:
    const std::size_t n_best_;
    std::vector<RankedNode> best_;    // best first, n_best at most
    double rival_min_ = kImpossible;  // of leaves that had to give way
    double rival_max_ = kImpossible;  // of these, and of what was missed
    double mass_max_ = 0;             // of the latter, and of leaves
};

}  // namespace token_trie
