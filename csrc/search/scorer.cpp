#include "search/scorer.h"

#include "context/contexts.h"
#include "search/tree_evaluator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

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
        allowed.for_each([&](Token token) { of_allowed.push_back(logits[token]); });
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

std::vector<NodeId> nodes_with_logits(const ScoreRules & rules) {
    const Trie & trie = rules.trie();
    std::vector<NodeId> nodes;
    std::vector<NodeId> stack{kRoot};
    while (!stack.empty()) {
        const NodeId node = stack.back();
        stack.pop_back();
        if (rules.needs_logits(node)) {
            nodes.push_back(node);
        }
        for (std::uint32_t i = trie.children(node).size; i-- > 0;) {
            stack.push_back(trie.child_at(node, i));
        }
    }
    return nodes;
}

class AllLeaves final : public TreeQuery {
   public:
    AllLeaves(const Cursor & cursor, const ScoreOptions & options, std::size_t n_vocab)
        : rules_(cursor, options),
          n_vocab_(n_vocab),
          nodes_(rules_.trie().n_nodes(), 0),
          ends_(rules_.trie().n_leaves(), 0) {}

    std::vector<NodeId> next() override {
        return std::exchange(has_queried_, true) ? std::vector<NodeId>() : nodes_with_logits(rules_);
    }

    void observe(NodeId node, const float * logits) override {
        const Trie & trie = rules_.trie();
        rules_.split(node, logits, n_vocab_, split_);
        for (std::uint32_t i = 0; i < split_.children.size(); ++i) {
            nodes_[trie.child_at(node, i)] = split_.children[i];
        }
        if (rules_.ends_leaf(node)) {
            ends_[trie.leaf(node)] = split_.end;
        }
    }

    void write(Answer & answer) const override {
        const Trie & trie = rules_.trie();
        std::vector<double> & scores = answer.logprobs;
        scores.assign(trie.n_leaves(), kImpossible);
        std::vector<std::pair<NodeId, double>> stack{{kRoot, 0}};
        while (!stack.empty()) {
            const auto [node, sum] = stack.back();
            stack.pop_back();
            if (const LeafId leaf = trie.leaf(node); leaf != kNoLeaf) {
                scores[leaf] = sum + ends_[leaf];
            }
            for (std::uint32_t i = 0, n = trie.children(node).size; i < n; ++i) {
                const NodeId child = trie.child_at(node, i);
                stack.emplace_back(child, sum + nodes_[child]);
            }
        }
        const auto best = std::max_element(scores.begin(), scores.end());
        answer.info.leaf = best - scores.begin();
        answer.info.logprob = *best;
    }

   private:
    const ScoreRules rules_;
    const std::size_t n_vocab_;
    bool has_queried_ = false;
    std::vector<double> nodes_;  // a node's token after its parent
    std::vector<double> ends_;   // a leaf's end
    ScoreRules::Split split_;
};

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
        // A token that begins a longer leaf leads on to that.
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

std::unique_ptr<TreeQuery> begin_scoring(const Cursor & cursor, const ScoreOptions & options, std::size_t n_vocab) {
    return std::make_unique<AllLeaves>(cursor, options, n_vocab);
}

Answer score_all(Sequence & sequence,
                 const Cursor & cursor,
                 const ScoreOptions & options,
                 const std::atomic<bool> & cancelled) {
    const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(sequence.vocab()));
    TreeEvaluator evaluator(sequence, cursor.trie(), ScoreRules(cursor, options).depth(), options.prefix, cancelled,
                            /* all = */ true);
    return evaluator.answer(*begin_scoring(cursor, options, n_vocab));
}

}  // namespace token_trie
