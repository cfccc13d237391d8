#include "search/score_rules.h"

#include "context/finite.h"
#include "search/log_sum_exp.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

// Log-probabilities from the logits at one node.
class Distribution {
   public:
    Distribution(const float * logits, std::size_t n_vocab)
        : logits_(logits), normalizer_(log_sum_exp(logits, n_vocab)) {
        if (!std::isfinite(normalizer_)) {
            throw NotFinite();
        }
    }
    // Renormalized over the allowed tokens.
    Distribution(const float * logits, const AllowedSet & allowed) : logits_(logits) {
        std::vector<float> of_allowed;
        allowed.for_each([&](Token token) {
            of_allowed.push_back(logits[token]);
            return true;
        });
        normalizer_ = log_sum_exp(of_allowed.data(), of_allowed.size());
    }

    double log(Token token) const {
        const float logit = logits_[token];
        return std::isfinite(logit) ? static_cast<double>(logit) - normalizer_ : kImpossible;
    }
    double sum(const TokenSpan & tokens) const {
        double total = 0;
        for (const Token token : tokens) {
            total += std::exp(log(token));
        }
        return total;
    }

   private:
    const float * logits_;
    double normalizer_;
};

// The tokens that are allowed after the leaf that ends at node; everything, under release.
AllowedSet after_leaf(const Trie & trie, const FollowSet & follow, NodeId node) {
    AllowedSet allowed{false, trie.children(node), follow.after(1)};
    allowed.everything = allowed.follow.empty();
    return allowed;
}

}  // namespace

bool ScoreRules::needs_logits_of_leaves() const {
    return !branches_ && leaf_end_ == LeafEnd::follow && !follow_.after(1).empty();
}

bool ScoreRules::needs_logits(NodeId node) const {
    const std::uint32_t n_children = trie_.children(node).size;
    if (!ends_leaf(node)) {
        return n_children > (branches_ ? 1 : 0);
    }
    return n_children > 0 || needs_logits_of_leaves();
}

std::size_t ScoreRules::depth() const { return trie_.max_length() - (needs_logits_of_leaves() ? 0U : 1U); }

TokensToEnds::TokensToEnds(const Trie & trie)
    : joined_(trie.parts().get()), first_(joined_ == nullptr ? trie : *joined_->base()) {
    if (joined_ != nullptr) {
        more_.emplace(*joined_->more());
    }
}

TokensToEnds::Part::Part(const Trie & trie) : compact_(trie.compact().get()) {
    if (compact_ != nullptr) {
        return;
    }
    constexpr std::uint16_t most = std::numeric_limits<std::uint16_t>::max() - 1;
    of_nodes_.resize(trie.n_nodes());
    for (NodeId node = trie.n_nodes(); node-- > 0;) {  // children come after their parents
        if (trie.leaf(node) == kNoLeaf) {
            std::uint16_t least = most;
            for (std::uint32_t i = 0, n = trie.children(node).size; i < n; ++i) {
                least = std::min(least, of_nodes_[trie.child_at(node, i)]);
            }
            of_nodes_[node] = static_cast<std::uint16_t>(least + 1);
        }
    }
}

void ScoreRules::split(NodeId node, const float * logits, std::size_t n_vocab, Split & out) const {
    AllowedSet allowed{false, trie_.children(node), {}};
    if (ends_leaf(node)) {
        allowed = after_leaf(trie_, follow_, node);
    }
    const bool renormalized = branches_ && !allowed.everything;
    const Distribution p = renormalized ? Distribution(logits, allowed) : Distribution(logits, n_vocab);
    out.children.clear();
    for (const Token token : allowed.children) {
        out.children.push_back(p.log(token));
    }
    if (!ends_leaf(node)) {
        out.end = kImpossible;
    } else if (renormalized || (!branches_ && leaf_end_ == LeafEnd::follow && !allowed.everything)) {
        // What begins a longer leaf goes on with that.
        double total = 0;
        for (const Token token : allowed.follow) {
            total += allowed.children.contains(token) ? 0 : std::exp(p.log(token));
        }
        out.end = std::log(total);
    } else if (leaf_end_ == LeafEnd::any && !branches_) {
        out.end = 0;
    } else {
        out.end = std::log1p(-std::min(1.0, p.sum(allowed.children)));
    }
}

}  // namespace token_trie
