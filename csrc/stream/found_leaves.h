#pragma once

#include "stream/ranked_nodes.h"
#include "stream/search.h"

namespace token_trie {

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
