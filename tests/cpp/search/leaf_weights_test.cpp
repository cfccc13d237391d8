#include "search/leaf_weights.h"

#include "plain_answer.h"
#include "scorer_fixture.h"
#include "search/search.h"

#include <limits>
#include <numeric>

namespace token_trie::test {
namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;
constexpr double kShares = 1e-6;  // error of a distribution, which is normalized in single precision

std::vector<double> random_weights(std::mt19937 & rng, std::size_t n, double spread) {
    std::vector<double> out(n);
    std::uniform_real_distribution<double> weight(-spread, spread);
    std::generate(out.begin(), out.end(), [&] { return weight(rng); });
    return out;
}

std::shared_ptr<const Trie> random_trie(std::mt19937 & rng, Token n_tokens) {
    const std::size_t max_length = 1 + rng() % 6;  // each draw in a statement: arguments have no order
    const std::size_t n_texts = 1 + rng() % 60;
    return unnamed_trie_of(random_texts(rng, n_texts, max_length, n_tokens));
}

Tokens tokens_to(const Trie & trie, NodeId node) {
    Tokens out;
    for (; node != kRoot; node = trie.parent(node)) {
        out.insert(out.begin(), trie.token(node));
    }
    return out;
}

// Until it queries no more, by logits that are scripted; how many nodes that took, the root among them.
std::size_t answer(TreeQuery & query, const Trie & trie) {
    std::size_t n = 0;
    for (std::vector<NodeId> nodes = query.next(); !nodes.empty(); nodes = query.next()) {
        for (const NodeId node : nodes) {
            query.observe(node, scripted_logits(tokens_to(trie, node)).data());
        }
        n += nodes.size();
    }
    return n;
}

TEST(LeafWeights, TheBoundOfANodeIsTheMostOfTheLeavesAtOrBelowIt) {
    std::mt19937 rng(3);
    for (int round = 0; round < 30; ++round) {
        const std::shared_ptr<const Trie> trie = random_trie(rng, 5);
        const std::vector<double> of_leaves = random_weights(rng, trie->n_leaves(), 5);
        std::vector<double> bounds(trie->n_nodes(), kImpossible);
        for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
            for (NodeId node = trie->leaf_node(leaf);; node = trie->parent(node)) {
                bounds[node] = std::max(bounds[node], of_leaves[leaf]);
                if (node == kRoot) {
                    break;
                }
            }
        }
        const LeafWeights weights(trie, of_leaves);
        for (NodeId node = 0; node < trie->n_nodes(); ++node) {
            ASSERT_EQ(weights.bound(node), bounds[node]);
        }
        EXPECT_EQ(weights.spread(), *std::max_element(of_leaves.begin(), of_leaves.end()) -
                                        *std::min_element(of_leaves.begin(), of_leaves.end()));
    }
}

// A search over a random set with random weights, and the scores of all its leaves.
struct WeightedCase {
    explicit WeightedCase(std::mt19937 & rng)
        : trie(random_trie(rng, 2 + static_cast<Token>(rng() % 7))), cursor(cursor_of(trie)) {
        const auto below = [&rng](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(rng); };
        options.leaf_end = static_cast<LeafEnd>(below(3));
        options.branches = below(5) == 0;
        options.n_best = 1 + below(4);
        options.beam_width = below(4) == 0 ? 1 + below(5) : 0;
        options.max_nodes = std::array<std::uint64_t, 4>{0, 1, 3, 9}[below(4)];
        const auto scoring = begin_scoring(cursor, options, kTinyVocab);
        answer(*scoring, *trie);
        scores = result_of(*scoring).logprobs;
        of_leaves = random_weights(rng, trie->n_leaves(), std::array<double, 4>{0.5, 5, 50, 1e6}[below(4)]);
        if (below(4) == 0) {  // as a contextual calibration adds: most where the model says least
            std::transform(scores.begin(), scores.end(), of_leaves.begin(), of_leaves.begin(),
                           [](double score, double weight) { return std::max(-1e3, std::tanh(weight) - score); });
        }
        if (below(4) == 0) {  // few that differ
            std::transform(of_leaves.begin(), of_leaves.end(), of_leaves.begin(),
                           [](double weight) { return std::copysign(1e6, weight); });
        }
        options.weights = std::make_shared<const LeafWeights>(trie, of_leaves);
        n_paths = std::array<std::size_t, 3>{0, 3, 64}[below(3)];
        rows_are_cheap = below(3) == 0;
        for (std::size_t i = 0; i < scores.size(); ++i) {
            ranked.push_back(scores[i] + of_leaves[i]);
        }
    }

    Answer search() {
        const auto query = begin_search(cursor, options, kTinyVocab, {n_paths, rows_are_cheap});
        n_queried = answer(*query, *trie);
        return result_of(*query);
    }
    double ranked_of(const Found & found) const { return ranked[found.leaf]; }
    double best_beside(const Answer & result) const {
        std::vector<double> others = ranked;
        for (const Found & found : found_by(result)) {
            others[found.leaf] = kImpossible;
        }
        return *std::max_element(others.begin(), others.end());
    }

    std::shared_ptr<const Trie> trie;
    Cursor cursor;
    SearchOptions options;
    std::vector<double> scores;
    std::vector<double> of_leaves;
    std::vector<double> ranked;
    std::size_t n_paths = 0;
    bool rows_are_cheap = false;
    std::size_t n_queried = 0;
};

TEST(LeafWeights, EqualOnesAreSharedWhileTheyAreUsed) {
    const std::shared_ptr<const Trie> trie = unnamed_trie_of({{1}, {2}});
    std::shared_ptr<const LeafWeights> first = LeafWeights::of(trie, {1, 4});
    EXPECT_EQ(first->bound(kRoot), 4);
    EXPECT_EQ(LeafWeights::of(trie, {1, 4}), first);
    EXPECT_NE(LeafWeights::of(unnamed_trie_of({{1}, {2}}), {1, 4}), first) << "of another trie";
    const std::shared_ptr<const LeafWeights> other = LeafWeights::of(trie, {1, 5});
    EXPECT_EQ(other->bound(kRoot), 5);
    EXPECT_EQ(LeafWeights::of(trie, {1, 5}), other);
    const std::weak_ptr<const LeafWeights> was = first;
    first.reset();
    EXPECT_TRUE(was.expired());
}

TEST(LeafWeights, ASearchFindsTheBestByScoreAndWeightAndClaimsNoMoreThanIsTrue) {
    std::mt19937 rng(4);
    for (int round = 0; round < 1500; ++round) {
        SCOPED_TRACE(round);
        WeightedCase one(rng);
        const Answer result = one.search();
        ASSERT_FALSE(result.leaves.empty());
        for (const Found & found : found_by(result)) {
            ASSERT_NEAR(found.logprob, one.scores[found.leaf], kRounding) << "without its weight";
        }
        for (std::size_t i = 1; i < result.leaves.size(); ++i) {
            ASSERT_GE(one.ranked_of(found_by(result)[i - 1]), one.ranked_of(found_by(result)[i]) - kRounding)
                << "best first";
        }
        const double beside = one.best_beside(result);
        const double last = one.ranked_of(found_by(result).back());
        ASSERT_LE(beside, last + result.info.gap + kRounding);
        ASSERT_LE(beside, result.info.rival_max + kRounding);
        ASSERT_GE(beside, result.info.rival_min - kRounding);
        const double mass = std::accumulate(one.scores.begin(), one.scores.end(), 0.0,
                                            [](double sum, double logprob) { return sum + std::exp(logprob); });
        ASSERT_TRUE(one.options.leaf_end == LeafEnd::any || mass <= result.info.mass_max + kShares)
            << mass - result.info.mass_max;
        ASSERT_LE(result.info.mass_max, 1 + kShares);
        if (one.options.max_nodes == 0 && one.options.beam_width == 0) {
            ASSERT_EQ(result.info.gap, 0);
            ASSERT_EQ(result.leaves.size(), std::min<std::size_t>(one.options.n_best, one.trie->n_leaves()));
        }
        if (one.options.max_nodes > 0) {
            ASSERT_LE(one.n_queried, 1 + 2 * one.options.max_nodes + one.trie->max_length());
        }
    }
}

TEST(LeafWeights, WeightsThatAreAlikeChangeNothingOfASearch) {
    std::mt19937 rng(5);
    for (int round = 0; round < 200; ++round) {
        SCOPED_TRACE(round);
        WeightedCase one(rng);
        one.options.weights.reset();
        const Answer plain = one.search();
        const std::size_t n_plain = one.n_queried;
        one.options.weights = std::make_shared<const LeafWeights>(
            one.trie, std::vector<double>(one.trie->n_leaves(), round % 2 == 0 ? 0 : 1024));
        const Answer weighted = one.search();
        EXPECT_EQ(one.n_queried, n_plain);
        ASSERT_EQ(weighted.leaves.size(), plain.leaves.size());
        for (std::size_t i = 0; i < plain.leaves.size(); ++i) {
            EXPECT_EQ(weighted.leaves[i], plain.leaves[i]);
            EXPECT_EQ(weighted.logprobs[i], plain.logprobs[i]);
        }
        EXPECT_EQ(weighted.info.mass_max, plain.info.mass_max);
    }
}

TEST(LeafWeights, OfEqualSumsTheFirstByTokensComesFirst) {
    const std::shared_ptr<const Trie> trie = unnamed_trie_of({bytes("a"), bytes("b"), bytes("c"), bytes("d")});
    const Cursor cursor = cursor_of(trie);
    SearchOptions options;
    options.n_best = 3;
    const auto scoring = begin_scoring(cursor, options, kTinyVocab);
    answer(*scoring, *trie);
    std::vector<double> of_leaves = result_of(*scoring).logprobs;
    std::transform(of_leaves.begin(), of_leaves.end(), of_leaves.begin(), [](double score) { return -score; });
    options.weights = std::make_shared<const LeafWeights>(trie, of_leaves);
    const auto search = begin_search(cursor, options, kTinyVocab, {64});
    answer(*search, *trie);
    const Answer result = result_of(*search);
    ASSERT_EQ(result.leaves.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(trie->sequence(found_by(result)[i].leaf), bytes(std::string(1, static_cast<char>('a' + i))));
    }
    EXPECT_EQ(result.info.gap, 0);
    EXPECT_EQ(result.info.rival_min, 0);
}

TEST(LeafWeights, OneLeafIsFoundBySmallMeansHoweverWildTheyAre) {
    std::mt19937 rng(6);
    for (const double spread : {1.0, 1e6, 1e12, 1e308}) {
        const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 2000, 7, 8));
        SearchOptions options;
        options.max_nodes = 4;
        options.weights = std::make_shared<const LeafWeights>(trie, random_weights(rng, trie->n_leaves(), spread));
        const Cursor cursor = cursor_of(trie);
        const auto search = begin_search(cursor, options, kTinyVocab, {64});
        EXPECT_LE(answer(*search, *trie), 1 + options.max_nodes + 60 + 14) << spread;
        EXPECT_EQ(result_of(*search).leaves.size(), 1U);
        EXPECT_GE(result_of(*search).info.gap, 0);
    }
}

}  // namespace
}  // namespace token_trie::test
