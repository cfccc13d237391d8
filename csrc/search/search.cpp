#include "search/search.h"

#include "search/tree_evaluator.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

// A node by its rank.
struct Entry {
    double logprob = kImpossible;  // the tokens to node; with the end, where it is a leaf found
    NodeId node = kRoot;
    double score = logprob;  // with weights: of no leaf at or below it more

    // Nodes are numbered by depth and then by tokens, whatever the order of the leaves.
    bool operator<(const Entry & other) const { return score != other.score ? score < other.score : node > other.node; }
};

// The best on top.
class Heap {
   public:
    bool empty() const noexcept { return entries_.empty(); }
    const Entry & top() const noexcept { return entries_.front(); }
    void clear() noexcept { entries_.clear(); }
    const std::vector<Entry> & entries() const noexcept { return entries_; }
    // Keeps entries for which keep(entry) is true; keep may modify them.
    template <typename Keep>
    void filter(const Keep & keep) {
        const auto dropped = [&](Entry & entry) { return !keep(entry); };
        entries_.erase(std::remove_if(entries_.begin(), entries_.end(), dropped), entries_.end());
        std::make_heap(entries_.begin(), entries_.end());
    }
    void push(const Entry & entry) {
        entries_.push_back(entry);
        std::push_heap(entries_.begin(), entries_.end());
    }
    Entry pop() {
        std::pop_heap(entries_.begin(), entries_.end());
        const Entry entry = entries_.back();
        entries_.pop_back();
        return entry;
    }

   private:
    std::vector<Entry> entries_;
};

// The leaves that a search has found, and bounds for the rest.
class FoundLeaves {
   public:
    explicit FoundLeaves(std::size_t n_best) : n_best_(n_best) {}

    bool empty() const noexcept { return best_.empty(); }
    const Entry & best() const noexcept { return best_.front(); }

    // A leaf that ends at a node.
    void add(const Entry & leaf) {
        mass_max_ += std::exp(leaf.logprob);
        const auto at =
            std::lower_bound(best_.begin(), best_.end(), leaf, [](const Entry & a, const Entry & b) { return b < a; });
        best_.insert(at, leaf);
        if (best_.size() > n_best_) {
            rival_min_ = std::max(rival_min_, best_.back().score);
            rival_max_ = std::max(rival_max_, best_.back().score);
            best_.pop_back();
        }
    }
    // A node that the search does not continue from.
    void miss(const Entry & node) {
        rival_max_ = std::max(rival_max_, node.score);
        mass_max_ += std::exp(node.logprob);
    }
    // An entry that is ranked lower is not among them; an equal one may still come first by its tokens.
    double worst() const noexcept { return best_.size() < n_best_ ? kImpossible : best_.back().score; }
    void write(const Trie & trie, Answer & answer) const {
        for (const Entry & leaf : best_) {
            answer.add(trie.leaf(leaf.node), leaf.logprob);
        }
        answer.info.gap = rival_max_ > worst() ? rival_max_ - worst() : 0;
        answer.info.rival_min = rival_min_;
        answer.info.rival_max = rival_max_;
        answer.info.mass_max = mass_max_;
    }

   private:
    const std::size_t n_best_;
    std::vector<Entry> best_;         // best first, n_best at most
    double rival_min_ = kImpossible;  // the best leaf that had to give way
    double rival_max_ = kImpossible;  // the same, or the best node missed
    double mass_max_ = 0;             // the probability of all leaves added and nodes missed
};

using Clock = std::chrono::steady_clock;

class BestLeaves final : public TreeQuery {
   public:
    BestLeaves(const Cursor & cursor, const SearchOptions & options, std::size_t n_vocab, const Batches & batches)
        : trie_(cursor.trie()),
          rules_(cursor, options),
          options_(options),
          weights_(options.weights.get()),
          n_vocab_(n_vocab),
          n_paths_(batches.n_paths),
          rows_are_cheap_(batches.rows_are_cheap && batches.n_paths > 0),
          guesses_(!batches.has_depths_in_turn) {}

    std::vector<NodeId> next() override {
        is_late_ = options_.timeout.count() > 0 && Clock::now() - started_ >= options_.timeout;
        batch_ = !std::exchange(has_begun_, true) ? std::vector<Entry>{entry_at(0, kRoot)}
                 : options_.beam_width > 0        ? next_of_beam()
                                                  : next_of_best_first();
        // A node whose logprob is not known is listed with one above it.
        std::sort(batch_.begin(), batch_.end(), [](const Entry & a, const Entry & b) { return a.node < b.node; });
        std::vector<NodeId> nodes;
        nodes.reserve(batch_.size());
        for (const Entry & one : batch_) {
            nodes.push_back(one.node);
            n_evaluated_ += one.node == kRoot ? 0 : n_tokens_to(one.node);
        }
        sort_depth_first(trie_, nodes);
        return nodes;
    }

    void observe(NodeId node, const float * logits) override {
        const Entry entry = *in_batch(node);
        if (!may_win(entry) || entry.logprob == kImpossible) {
            found_.miss(entry);
            return;
        }
        rules_.split(node, logits, n_vocab_, split_);
        for (std::uint32_t i = 0, n = trie_.children(node).size; i < n; ++i) {
            open(entry_at(entry.logprob + split_.children[i], trie_.child_at(node, i)));
        }
        if (rules_.ends_leaf(node) && split_.end > kImpossible) {
            finish(entry.logprob + split_.end, node);
        }
    }

    void write(Answer & answer) const override { found_.write(trie_, answer); }

   private:
    Entry entry_at(double logprob, NodeId node) const {
        const double score = weights_ == nullptr ? logprob : logprob + weights_->bound(node);
        return {logprob, node, score};
    }

    std::vector<Entry> next_of_best_first() {
        if (dives_ && (!is_late_ || found_.empty())) {
            std::vector<Entry> level = next_of_dive();
            if (!level.empty()) {
                return level;
            }
        }
        dives_ = false;
        if (is_spent() && !found_.empty()) {
            miss_open();
            return {};
        }
        if (is_spent() || (dive_width_ == 0 && n_evaluated_ >= patience_)) {
            begin_dive();
        }
        std::vector<Entry> batch = dives_ ? next_of_dive() : next_of_proof();
        if (batch.empty()) {
            miss_open();
        }
        return batch;
    }

    std::vector<Entry> next_of_proof() {
        if (n_batches_ > 0) {
            spread_ *= 2;
            // Answers that are so much alike that this many batches did not separate them need most of the set.
            width_ *= n_batches_ < kManyBatches ? 1 : 2;
        }
        ++n_batches_;
        if (n_batches_ > 1 && rest_is_needed()) {
            spread_ = width_ = kEverything;
        }
        return plan();
    }

    // From the open nodes nearest to the root on, with as many of each depth as max_nodes leaves for each.
    void begin_dive() {
        if (!goes_on(open_)) {
            return;
        }
        const std::uint64_t n_depths = trie_.tokens_to_end(open_.top().node) + 1U;
        const std::uint64_t rest = is_spent()                ? 1
                                   : options_.max_nodes == 0 ? kMaxDive * n_depths
                                                             : options_.max_nodes - n_evaluated_;
        const std::size_t most =
            rows_are_cheap_ ? TreeEvaluator::kMaxRows : std::clamp<std::size_t>(n_paths_, 1, kMaxDive);
        dive_width_ = std::clamp<std::size_t>(rest / n_depths, 1, most);
        depth_ = 0;
        dives_ = true;
    }

    // The best open nodes of the next depth at which there are some.
    std::vector<Entry> next_of_dive() {
        std::vector<Entry> level;
        std::size_t next = std::numeric_limits<std::size_t>::max();
        for (const Entry & entry : open_.entries()) {
            const std::size_t depth = path_to(trie_, entry.node).size();
            if (depth > depth_ && depth <= next && may_win(entry)) {
                if (depth < next) {
                    level.clear();
                }
                next = depth;
                level.push_back(entry);
            }
        }
        depth_ = next;
        // Once begun, it goes on to leaves, with twice max_nodes at most.
        const std::uint64_t rest = 2 * options_.max_nodes - std::min(2 * options_.max_nodes, n_evaluated_);
        const std::size_t most = is_late_                  ? 1
                                 : options_.max_nodes == 0 ? dive_width_
                                                           : std::clamp<std::size_t>(rest, 1, dive_width_);
        const std::size_t width = std::min(level.size(), most);
        std::partial_sort(level.begin(), level.begin() + static_cast<std::ptrdiff_t>(width), level.end(),
                          [](const Entry & a, const Entry & b) { return b < a; });
        level.resize(width);
        open_.filter([&](const Entry & entry) {
            return std::none_of(level.begin(), level.end(), [&](const Entry & e) { return e.node == entry.node; });
        });
        return level;
    }

    std::vector<Entry> next_of_beam() {
        std::vector<Entry> level;
        for (const std::size_t n = width_of_beam(); level.size() < n && goes_on(open_);) {
            level.push_back(open_.pop());
        }
        miss_open();
        open_.clear();
        return level;
    }

    // With max_nodes, the first depths are the widest: each later one is left n_best nodes. As a dive, it goes on to
    // leaves, with twice max_nodes at most.
    std::size_t width_of_beam() {
        const std::uint64_t most = 2 * options_.max_nodes;
        if (options_.max_nodes == 0 || is_late_ || n_evaluated_ >= most || open_.empty()) {
            return budget(options_.beam_width);
        }
        const std::uint64_t n_later = std::max<std::uint64_t>(trie_.tokens_to_end(open_.top().node), 1) - 1;
        const std::uint64_t n_kept = n_evaluated_ + n_later * options_.n_best;
        const std::uint64_t rest = options_.max_nodes - std::min(options_.max_nodes, n_kept);
        const std::uint64_t width = std::max<std::uint64_t>(rest, options_.n_best);
        return std::min({width, std::uint64_t{options_.beam_width}, most - n_evaluated_});
    }

    bool goes_on(const Heap & heap) const { return !heap.empty() && may_win(heap.top()); }

    // Whether what remains is little, and most of it will have to be evaluated by what can be guessed.
    bool rest_is_needed() const {
        const std::uint64_t most = kLittle * n_evaluated_;
        std::uint64_t n_rest = 0;
        std::uint64_t n_needed = 0;
        std::vector<Entry> below;
        std::copy_if(open_.entries().begin(), open_.entries().end(), std::back_inserter(below),
                     [this](const Entry & entry) { return may_win(entry); });
        for (; !below.empty() && n_rest <= most; ++n_rest) {
            const Entry entry = below.back();
            below.pop_back();
            n_needed += may_win(entry) ? 1 : 0;
            for_each_guess(entry, [&](const Entry & guess) { below.push_back(guess); });
        }
        return n_rest <= most && n_needed * 4 >= n_rest * 3;
    }

    // The children that need logits, as probable as if all shared its probability evenly.
    template <typename Visit>
    void for_each_guess(const Entry & entry, const Visit & visit) const {
        const double share = entry.logprob - std::log(static_cast<double>(n_ways(entry.node)));
        for (std::uint32_t i = 0, n = trie_.children(entry.node).size; i < n; ++i) {
            const NodeId child = next_choice(trie_.child_at(entry.node, i));
            if (rules_.needs_logits(child)) {
                visit(entry_at(share, child));
            }
        }
    }
    std::size_t n_ways(NodeId node) const { return trie_.children(node).size + (rules_.ends_leaf(node) ? 1U : 0U); }

    // As many of n nodes as max_nodes and the time leave; one leaf is found whatever it costs.
    std::size_t budget(std::size_t n) const {
        const std::uint64_t rest = is_spent() ? 0 : options_.max_nodes == 0 ? n : options_.max_nodes - n_evaluated_;
        return std::min<std::size_t>(n, std::max<std::uint64_t>(rest, found_.empty() ? 1 : 0));
    }
    std::uint64_t part_of_max_nodes(std::uint64_t part, std::uint64_t most) const {
        return options_.max_nodes == 0 ? most : std::clamp<std::uint64_t>(options_.max_nodes / part, 1, most);
    }
    bool is_spent() const { return is_late_ || (options_.max_nodes > 0 && n_evaluated_ >= options_.max_nodes); }

    // The next batch: the best open nodes and, below these, what is guessed to be as good, within spread of the best;
    // with n_best leaves to find, of the n_best-th. Rows that would be filled up anyway go to the next best.
    std::vector<Entry> plan() {
        const std::size_t most = budget(n_paths_ == 0 ? 1 : std::numeric_limits<std::size_t>::max());
        const double spread = spread_;
        const auto width = static_cast<std::size_t>(std::min(width_, 1e6));
        constexpr double kFill = 2;  // spreads
        std::vector<Entry> batch;
        std::vector<NodeId> tips;  // the deepest of each path
        Heap guesses;
        std::size_t n_known = 0;
        std::size_t n_rows = 0;
        double best = kImpossible;
        while (batch.size() < most) {
            const bool has_open = goes_on(open_);
            const bool has_guess = rows_are_cheap_ ? !guesses.empty() : goes_on(guesses);
            if (!has_open && !has_guess) {
                break;
            }
            const bool known = has_open && (guesses.empty() || guesses.top() < open_.top());
            Heap & from = known ? open_ : guesses;
            const double behind = best - from.top().score;
            const bool fills_up = batch.size() % kRowGroup != 0 && behind <= kFill * spread;
            if ((behind > spread || batch.size() >= width) && !fills_up) {
                break;
            }
            n_rows += n_tokens_to(from.top().node);
            if (rows_are_cheap_ && n_rows > TreeEvaluator::kMaxRows && !batch.empty()) {
                break;  // the next would be in a pass of its own
            }
            NodeId * above = known ? nullptr : tip_above(from.top().node, tips);
            if (above == nullptr && !tips.empty() && tips.size() >= n_paths_) {
                break;  // the next would be a batch of its own
            }
            const Entry entry = from.pop();
            if (above != nullptr) {
                *above = entry.node;
            } else {
                tips.push_back(entry.node);
            }
            batch.push_back(known ? entry : Entry{kImpossible, entry.node});
            if (known && ++n_known == options_.n_best) {
                best = entry.score;
            }
            guess_below(entry, best - kFill * spread, guesses);
        }
        return batch;
    }

    // nullptr if node is below none.
    NodeId * tip_above(NodeId node, std::vector<NodeId> & tips) const {
        for (NodeId above = trie_.parent(node); above != kRoot; above = trie_.parent(above)) {
            const auto at = std::find(tips.begin(), tips.end(), above);
            if (at != tips.end()) {
                return &*at;
            }
        }
        return nullptr;
    }

    // From the last node above it that needs logits, too.
    std::size_t n_tokens_to(NodeId node) const {
        std::size_t n = 1;
        for (NodeId above = trie_.parent(node); above != kRoot && !rules_.needs_logits(above);
             above = trie_.parent(above)) {
            ++n;
        }
        return n;
    }

    // Adds the guesses below an entry, unless they are below least.
    void guess_below(const Entry & entry, double least, Heap & guesses) const {
        const std::size_t n = n_ways(entry.node);
        if (!guesses_ || entry.score - std::log(static_cast<double>(n)) < least) {
            return;
        }
        for_each_guess(entry, [&](const Entry & guess) { guesses.push(guess); });
    }

    // nullptr if it is not there.
    Entry * in_batch(NodeId node) {
        const auto at = std::lower_bound(batch_.begin(), batch_.end(), node,
                                         [](const Entry & entry, NodeId n) { return entry.node < n; });
        return at != batch_.end() && at->node == node ? &*at : nullptr;
    }

    void open(Entry entry) {
        if (!may_win(entry) || entry.logprob == kImpossible) {
            found_.miss(entry);
            return;
        }
        entry.node = next_choice(entry.node);
        if (!rules_.needs_logits(entry.node)) {
            finish(entry.logprob, entry.node);
        } else if (Entry * planned = in_batch(entry.node)) {
            *planned = entry;
        } else {
            open_.push(entry);
        }
    }

    // The first node from this one on that needs logits or ends a leaf.
    NodeId next_choice(NodeId node) const {
        while (!rules_.needs_logits(node) && !rules_.ends_leaf(node)) {
            node = trie_.child_at(node, 0);  // the only one
        }
        return node;
    }

    void finish(double logprob, NodeId node) {
        found_.add({logprob, node, weights_ == nullptr ? logprob : logprob + weights_->of_leaf(trie_.leaf(node))});
    }

    void miss_open() {
        for (const Entry & entry : open_.entries()) {
            found_.miss(entry);
        }
    }

    bool may_win(const Entry & entry) const { return entry.score >= found_.worst(); }

    // A pass on a processor takes the time of so many rows beside its own. On devices a pass takes as long as one of
    // all rows. Not measured as it runs: equal calls would evaluate other batches, in which quantized models give other
    // scores.
    static constexpr double kOverhead = 4;
    // As many rows as take about so many times the overhead of a pass: more take longer than they save, as most prove
    // needless.
    static constexpr double kWidth = 2;
    static constexpr std::size_t kManyBatches = 4;
    static constexpr std::uint64_t kLittle = 6;  // times what has been evaluated
    static constexpr double kEverything = std::numeric_limits<double>::infinity();
    static constexpr std::size_t kMaxDive = 16;  // nodes of one depth

    const Trie & trie_;
    const ScoreRules rules_;
    const SearchOptions options_;
    const LeafWeights * const weights_;
    const std::size_t n_vocab_;
    const std::size_t n_paths_;
    const bool rows_are_cheap_;
    const bool guesses_;  // nodes below those of a batch
    const Clock::time_point started_ = Clock::now();
    bool is_late_ = false;
    // Nodes, each once: with few cells, those above are evaluated again, and no less is to be found for that.
    std::uint64_t n_evaluated_ = 0;
    bool has_begun_ = false;
    std::size_t n_batches_ = 0;
    // Weights that differ put nodes further above what they lead to, so that a proof needs more of them.
    const double more_ = weights_ != nullptr && weights_->spread() > 0 ? 2 : 1;
    double spread_ = rows_are_cheap_ ? std::numeric_limits<double>::infinity() : more_ * std::log1p(kOverhead / 2);
    double width_ = rows_are_cheap_ ? TreeEvaluator::kMaxRows : more_ * kWidth * kOverhead;
    // Nodes evaluated without a proof after which a good leaf is looked for first.
    const std::uint64_t patience_ = rows_are_cheap_ ? TreeEvaluator::kMaxRows : part_of_max_nodes(2, 32);
    bool dives_ = false;
    std::size_t dive_width_ = 0;  // 0: none has begun
    std::size_t depth_ = 0;       // that its last batch was at
    Heap open_;
    std::vector<Entry> batch_;  // under way, by node; -inf until the node above it is known
    FoundLeaves found_{options_.n_best};
    ScoreRules::Split split_;
};

}  // namespace

std::unique_ptr<TreeQuery> begin_search(const Cursor & cursor,
                                        const SearchOptions & options,
                                        std::size_t n_vocab,
                                        const Batches & batches) {
    return std::make_unique<BestLeaves>(cursor, options, n_vocab, batches);
}

Answer search(Sequence & sequence,
              const Cursor & cursor,
              const SearchOptions & options,
              const std::atomic<bool> & cancelled) {
    const Trie & trie = cursor.trie();
    TreeEvaluator evaluator(sequence, trie, ScoreRules(cursor, options).depth(), options.prefix, cancelled);
    const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(sequence.vocab()));
    return evaluator.answer(*begin_search(cursor, options, n_vocab, evaluator.batches()));
}

}  // namespace token_trie
