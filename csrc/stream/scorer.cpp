#include "stream/scorer.h"

#include "stream/log_sum_exp.h"
#include "stream/tree_evaluator.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

double difference(float logit, double normalizer) {
    return std::isfinite(logit) ? static_cast<double>(logit) - normalizer : kImpossible;
}

// Log-probabilities from the logits at one node.
class Distribution {
   public:
    Distribution(const float * logits, std::size_t n_vocab)
        : logits_(logits), normalizer_(log_sum_exp(logits, n_vocab)) {}
    // Renormalized over the allowed tokens.
    Distribution(const float * logits, const AllowedSet & allowed) : logits_(logits) {
        std::vector<float> of_allowed;
        allowed.for_each([&](Token token) {
            of_allowed.push_back(logits[token]);
            return true;
        });
        normalizer_ = log_sum_exp(of_allowed.data(), of_allowed.size());
    }

    double log(Token token) const { return difference(logits_[token], normalizer_); }
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

// The tokens that are allowed behind the leaf that ends at node; everything, under release.
AllowedSet after_leaf(const Trie & trie, const FollowSet & follow, NodeId node) {
    AllowedSet allowed{false, trie.children(node), follow.after(1)};
    allowed.everything = allowed.follow.empty();
    return allowed;
}

// What a scorer asks of the set at a node.
class Rules {
   public:
    Rules(const Cursor & cursor, LeafEnd leaf_end, bool branches)
        : trie_(cursor.trie()), follow_(cursor.follow()), leaf_end_(leaf_end), branches_(branches) {}

    bool ends_leaf(NodeId node) const { return trie_.leaf(node) != kNoLeaf; }

    // Whether the logits after node are needed.
    bool needs_logits(NodeId node) const {
        const std::uint32_t n_children = trie_.children(node).size;
        if (!ends_leaf(node)) {
            return n_children > (branches_ ? 1 : 0);
        }
        return n_children > 0 || asks_behind_leaves();
    }

    // The deepest node whose logits are needed.
    std::size_t depth() const { return trie_.max_length() - (asks_behind_leaves() ? 0U : 1U); }

    // Logarithm for each child, in order, and for the end of node's own leaf.
    template <typename OnChild>
    double split(NodeId node, const float * logits, std::size_t n_vocab, OnChild && on_child) const {
        AllowedSet allowed{false, trie_.children(node), {}};
        if (ends_leaf(node)) {
            allowed = after_leaf(trie_, follow_, node);
        }
        const bool renormalized = branches_ && !allowed.everything;
        const Distribution p = renormalized ? Distribution(logits, allowed) : Distribution(logits, n_vocab);
        NodeId child = trie_.first_child(node);
        for (const Token token : allowed.children) {
            on_child(child++, p.log(token));
        }
        return ends_leaf(node) ? end_of(p, allowed, renormalized) : kImpossible;
    }

   private:
    bool asks_behind_leaves() const { return !branches_ && leaf_end_ == LeafEnd::follow && !follow_.after(1).empty(); }

    double end_of(const Distribution & p, const AllowedSet & allowed, bool renormalized) const {
        const bool by_follow = renormalized || (!branches_ && leaf_end_ == LeafEnd::follow && !allowed.everything);
        if (by_follow) {
            // What begins a longer leaf goes on with that.
            double total = 0;
            for (const Token token : allowed.follow) {
                total += allowed.children.contains(token) ? 0 : std::exp(p.log(token));
            }
            return std::log(total);
        }
        if (leaf_end_ == LeafEnd::any && !branches_) {
            return 0;
        }
        return std::log1p(-std::min(1.0, p.sum(allowed.children)));
    }

    const Trie & trie_;
    const FollowSet & follow_;
    LeafEnd leaf_end_;
    bool branches_;
};

std::vector<NodeId> nodes_with_logits(const Trie & trie, const Rules & rules) {
    std::vector<NodeId> nodes;
    std::vector<NodeId> stack{kRoot};
    while (!stack.empty()) {
        const NodeId node = stack.back();
        stack.pop_back();
        if (rules.needs_logits(node)) {
            nodes.push_back(node);
        }
        for (NodeId child = trie.first_child(node) + trie.children(node).size; child > trie.first_child(node);) {
            stack.push_back(--child);
        }
    }
    return nodes;
}

}  // namespace

Scores score_all(Sequence & sequence,
                 const Cursor & cursor,
                 const ScoreOptions & options,
                 const std::atomic<bool> & cancelled) {
    const Trie & trie = cursor.trie();
    const Rules rules(cursor, options.leaf_end, options.branches);
    const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(sequence.vocab()));
    Scores scores;
    scores.nodes.assign(trie.n_nodes(), 0);
    std::vector<double> ends(trie.n_leaves(), 0);
    TreeEvaluator evaluator(sequence, trie, rules.depth(), options.prefix, cancelled, /* all = */ true);
    evaluator.evaluate(nodes_with_logits(trie, rules), [&](NodeId node, const float * logits) {
        const double end =
            rules.split(node, logits, n_vocab, [&](NodeId child, double log) { scores.nodes[child] = log; });
        if (rules.ends_leaf(node)) {
            ends[trie.leaf(node)] = end;
        }
    });
    // Parents come before their children.
    std::vector<double> sums(trie.n_nodes(), 0);
    for (NodeId node = kRoot; node < trie.n_nodes(); ++node) {
        for (std::uint32_t i = 0; i < trie.children(node).size; ++i) {
            const NodeId child = trie.first_child(node) + i;
            sums[child] = sums[node] + scores.nodes[child];
        }
    }
    scores.leaves.resize(trie.n_leaves());
    for (LeafId leaf = 0; leaf < trie.n_leaves(); ++leaf) {
        scores.leaves[leaf] = sums[trie.leaf_node(leaf)] + ends[leaf];
    }
    static_cast<Cost &>(scores) = evaluator.cost();
    return scores;
}

namespace {

class Search {
   public:
    Search(Sequence & sequence,
           const Cursor & cursor,
           const SearchOptions & options,
           const std::atomic<bool> & cancelled)
        : trie_(cursor.trie()),
          rules_(cursor, options.leaf_end, options.branches),
          options_(options),
          n_vocab_(static_cast<std::size_t>(llama_vocab_n_tokens(sequence.vocab()))),
          evaluator_(sequence, trie_, rules_.depth(), options.prefix, cancelled) {}

    SearchResult run() {
        expand({{0, kRoot}});  // for this one the sequence has the logits
        if (options_.beam_width > 0) {
            beam();
        } else {
            best_first();
        }
        SearchResult result;
        for (const Entry & entry : finished_) {
            result.found.push_back({trie_.leaf(entry.node), entry.logprob});
        }
        const double worst = worst_kept();
        result.gap = missed_ > worst ? missed_ - worst : 0;
        static_cast<Cost &>(result) = evaluator_.cost();
        return result;
    }

   private:
    struct Entry {
        double logprob;  // of the tokens to node; of the finished, of the leaf
        NodeId node;

        // Nodes are numbered by depth and then by tokens, whatever the order of the leaves.
        bool operator<(const Entry & other) const {
            return logprob != other.logprob ? logprob < other.logprob : node > other.node;
        }
    };

    void best_first() {
        std::vector<Entry> batch;
        do {
            batch = take(kBatch, kSpread);
            expand(batch);
        } while (!batch.empty());
        miss(open_);
    }

    void beam() {
        std::vector<Entry> level;
        do {
            level = take(options_.beam_width, std::numeric_limits<double>::infinity());
            miss(open_);
            open_.clear();
            expand(level);
        } while (!level.empty());
    }

    // The best open nodes, as far as they may still win and the budget goes; one leaf is found whatever it costs.
    // Behind the first n_best, those within spread of the last of these.
    std::vector<Entry> take(std::size_t n, double spread) {
        if (options_.max_nodes > 0 && !finished_.empty()) {
            n = std::min<std::size_t>(n,
                                      options_.max_nodes - std::min(options_.max_nodes, evaluator_.cost().n_evaluated));
        }
        std::vector<Entry> taken;
        const std::size_t n_best = options_.n_best;
        const auto is_near = [&](const Entry & entry) {
            return taken.size() < n_best || entry.logprob >= taken[n_best - 1].logprob - spread;
        };
        while (taken.size() < n && !open_.empty() && may_win(open_.front()) && is_near(open_.front())) {
            taken.push_back(pop());
        }
        return taken;
    }

    void miss(const std::vector<Entry> & entries) {
        for (const Entry & entry : entries) {
            missed_ = std::max(missed_, entry.logprob);
        }
    }

    double worst_kept() const { return finished_.size() < options_.n_best ? kImpossible : finished_.back().logprob; }

    // An equal one may still come first by its tokens.
    bool may_win(const Entry & entry) const {
        return finished_.size() < options_.n_best || entry.logprob >= finished_.back().logprob;
    }

    void expand(const std::vector<Entry> & entries) {
        std::vector<NodeId> nodes;
        nodes.reserve(entries.size());
        for (const Entry & entry : entries) {
            nodes.push_back(entry.node);
        }
        evaluator_.sort_depth_first(nodes);
        std::vector<Entry> by_node = entries;
        std::sort(by_node.begin(), by_node.end(), [](const Entry & a, const Entry & b) { return a.node < b.node; });
        evaluator_.evaluate(nodes, [&](NodeId node, const float * logits) {
            const double sum = std::lower_bound(by_node.begin(), by_node.end(), node, [](const Entry & e, NodeId n) {
                                   return e.node < n;
                               })->logprob;
            const double end =
                rules_.split(node, logits, n_vocab_, [&](NodeId child, double log) { open({sum + log, child}); });
            if (rules_.ends_leaf(node)) {
                finish({sum + end, node});
            }
        });
    }

    void open(Entry entry) {
        if (!may_win(entry) || entry.logprob == kImpossible) {
            return;
        }
        while (!rules_.needs_logits(entry.node) && !rules_.ends_leaf(entry.node)) {
            entry.node = trie_.first_child(entry.node);  // the only one
        }
        if (!rules_.needs_logits(entry.node)) {
            finish(entry);
            return;
        }
        open_.push_back(entry);
        std::push_heap(open_.begin(), open_.end());
    }

    Entry pop() {
        std::pop_heap(open_.begin(), open_.end());
        const Entry entry = open_.back();
        open_.pop_back();
        return entry;
    }

    void finish(const Entry & entry) {
        const auto at = std::lower_bound(finished_.begin(), finished_.end(), entry,
                                         [](const Entry & a, const Entry & b) { return b < a; });
        finished_.insert(at, entry);
        if (finished_.size() > options_.n_best) {
            finished_.pop_back();
        }
    }

    // Nodes evaluated in one batch, and the nats that they may be apart: more take longer than they save, as most prove
    // needless, and fewer are as many more passes of the model.
    static constexpr std::size_t kBatch = 16;
    static constexpr double kSpread = 2;

    const Trie & trie_;
    const Rules rules_;
    const SearchOptions options_;
    const std::size_t n_vocab_;
    TreeEvaluator evaluator_;
    std::vector<Entry> open_;      // a heap
    std::vector<Entry> finished_;  // best first, n_best at most
    double missed_ = kImpossible;  // the best of what was not gone on from
};

}  // namespace

SearchResult search(Sequence & sequence,
                    const Cursor & cursor,
                    const SearchOptions & options,
                    const std::atomic<bool> & cancelled) {
    return Search(sequence, cursor, options, cancelled).run();
}

}  // namespace token_trie
