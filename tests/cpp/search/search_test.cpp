#include "search/search.h"

#include "scorer_fixture.h"

#include <limits>
#include <numeric>

namespace token_trie::test {
namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

class SearchOn : public ScorerOn {};
class SearchTest : public ScorerTest {};

INSTANTIATE_TEST_SUITE_P(AModelWith, SearchOn, scorer_settings(), name_of);

TEST_P(SearchOn, FindsTheBestLeavesInOrder) {
    const Context own = context();
    Sequence sequence(own.get());
    sequence.replace(kPrompt, kNotCancelled);
    std::mt19937 rng(6);
    for (const LeafEnd leaf_end : {LeafEnd::any, LeafEnd::longest, LeafEnd::follow}) {
        for (int round = 0; round < 4; ++round) {
            const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 40, 4, 8));
            SearchOptions options;
            options.leaf_end = leaf_end;
            const Scores scores = score_all(sequence, cursor_of(trie), options, kNotCancelled);
            std::vector<LeafId> ranked(trie->n_leaves());
            std::iota(ranked.begin(), ranked.end(), 0);
            std::sort(ranked.begin(), ranked.end(),
                      [&](LeafId a, LeafId b) { return scores.leaves[a] > scores.leaves[b]; });
            for (const std::size_t beam_width : {std::size_t{0}, std::size_t{1000}}) {
                options.n_best = 5;
                options.beam_width = beam_width;
                const SearchResult result = search(sequence, cursor_of(trie), options, kNotCancelled);
                ASSERT_EQ(result.found.size(), 5U);
                EXPECT_EQ(result.gap, 0);
                if (takes_many_at_once()) {
                    EXPECT_LE(result.n_evaluated, scores.n_evaluated * 9 / 8);
                }
                for (std::size_t i = 0; i < 5; ++i) {
                    EXPECT_NEAR(result.found[i].logprob, scores.leaves[ranked[i]], near());
                    EXPECT_NEAR(scores.leaves[result.found[i].leaf], scores.leaves[ranked[i]], near());
                }
            }
        }
    }
}

// The best score of a leaf that is not among found; -inf if all are.
double best_beside(const SearchResult & result, const Scores & scores) {
    std::vector<double> others = scores.leaves;
    for (const Found & found : result.found) {
        others[found.leaf] = kImpossible;
    }
    return *std::max_element(others.begin(), others.end());
}

TEST_P(SearchOn, ClaimsNoMoreThanIsTrueHoweverEarlyItHasToStop) {
    const Context own = context();
    Sequence sequence(own.get());
    sequence.replace(kPrompt, kNotCancelled);
    std::mt19937 rng(9);
    const auto below = [&rng](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(rng); };
    for (int round = 0; round < 12; ++round) {
        const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 1 + below(60), 1 + below(5), 8));
        SearchOptions options;
        options.leaf_end = static_cast<LeafEnd>(below(3));
        options.branches = below(4) == 0;
        const Scores scores = score_all(sequence, cursor_of(trie), options, kNotCancelled);
        options.n_best = 1 + below(4);
        for (const std::uint64_t max_nodes : {0U, 1U, 3U, 9U}) {
            SCOPED_TRACE(::testing::Message() << "round " << round << ", " << max_nodes << " nodes at most");
            options.max_nodes = max_nodes;
            const SearchResult result = search(sequence, cursor_of(trie), options, kNotCancelled);
            ASSERT_FALSE(result.found.empty());
            for (const Found & found : result.found) {
                EXPECT_NEAR(found.logprob, scores.leaves[found.leaf], near());
            }
            const double beside = best_beside(result, scores);
            EXPECT_LE(beside, result.rival_max + near());
            EXPECT_GE(beside, result.rival_min - near());
            EXPECT_LE(beside, result.found.back().logprob + result.gap + near());
            const double mass = std::accumulate(scores.leaves.begin(), scores.leaves.end(), 0.0,
                                                [](double sum, double logprob) { return sum + std::exp(logprob); });
            EXPECT_TRUE(options.leaf_end == LeafEnd::any || mass <= result.mass_max + near());
            EXPECT_LE(result.mass_max, 1 + near());
            if (result.gap == 0 && result.found.size() == trie->n_leaves()) {
                EXPECT_TRUE(options.leaf_end == LeafEnd::any || std::abs(mass - result.mass_max) < near());
            }
            if (max_nodes == 0) {
                EXPECT_EQ(result.gap, 0);
                EXPECT_EQ(result.found.size(), std::min<std::size_t>(options.n_best, trie->n_leaves()));
            }
            if (result.gap == 0 && result.found.size() == trie->n_leaves()) {
                EXPECT_EQ(result.rival_max, kImpossible) << "nothing is left";
            }
        }
    }
}

// All of one length, so that none is probable by being short.
std::shared_ptr<const Trie> long_words(std::mt19937 & rng, std::size_t n) {
    std::uniform_int_distribution<int> letter('a', 'h');
    std::set<Tokens> words;
    while (words.size() < n) {
        std::string word(7, ' ');
        std::generate(word.begin(), word.end(), [&] { return static_cast<char>(letter(rng)); });
        words.insert(bytes(word));
    }
    return unnamed_trie_of(words);
}

// As where all layers are on devices: a batch there may be on so many paths.
SearchResult search_of_cheap_rows(Sequence & sequence, const Cursor & cursor, const SearchOptions & options) {
    const Tokens behind = sequence.tokens();
    const auto search = begin_search(cursor, options, kTinyVocab, 64, /* rows_are_cheap = */ true);
    SearchResult result;
    for (std::vector<NodeId> nodes = search->next(0); !nodes.empty(); nodes = search->next(result.n_evaluated)) {
        for (const NodeId node : nodes) {
            Tokens tokens = behind;
            for (NodeId above = node; above != kRoot; above = cursor.trie().parent(above)) {
                tokens.insert(tokens.begin() + static_cast<std::ptrdiff_t>(behind.size()), cursor.trie().token(above));
            }
            sequence.replace(tokens, kNotCancelled);
            search->observe(node, sequence.logits({true, {}, {}}, false, kNotCancelled));
        }
        result.n_evaluated += nodes.size();
    }
    static_cast<Ranking &>(result) = search->result();
    sequence.replace(behind, kNotCancelled);
    return result;
}

// Behind some rows without a proof it dives.
TEST_F(SearchTest, OfALargeSetTheBestComesLongBeforeItsProof) {
    std::mt19937 rng(12);
    for (int round = 0; round < 8; ++round) {
        const std::shared_ptr<const Trie> trie = long_words(rng, 2000);
        const Scores scores = score_all(sequence_, cursor_of(trie), {}, kNotCancelled);
        const double best = *std::max_element(scores.leaves.begin(), scores.leaves.end());
        const SearchResult proof = search(sequence_, cursor_of(trie), {}, kNotCancelled);
        EXPECT_EQ(proof.gap, 0);
        EXPECT_NEAR(proof.found[0].logprob, best, kNear);
        SearchOptions options;
        options.max_nodes = 128;
        for (const SearchResult & bounded : {search(sequence_, cursor_of(trie), options, kNotCancelled),
                                             search_of_cheap_rows(sequence_, cursor_of(trie), options)}) {
            EXPECT_LE(bounded.n_evaluated, options.max_nodes + 60);
            EXPECT_LT(bounded.n_evaluated, proof.n_evaluated);
            EXPECT_NEAR(bounded.found[0].logprob, scores.leaves[bounded.found[0].leaf], kNear);
            EXPECT_GE(bounded.found[0].logprob + bounded.gap, best - kNear);
            EXPECT_LE(std::count_if(scores.leaves.begin(), scores.leaves.end(),
                                    [&](double logprob) { return logprob > bounded.found[0].logprob + kNear; }),
                      20)
                << "of 2000";
        }
    }
}

TEST_F(SearchTest, TimeThatIsUpEndsItWithOneAnswerAtLeast) {
    std::mt19937 rng(13);
    const std::shared_ptr<const Trie> trie = long_words(rng, 2000);
    const Scores scores = score_all(sequence_, cursor_of(trie), {}, kNotCancelled);
    SearchOptions options;
    options.n_best = 50;
    const SearchResult proof = search(sequence_, cursor_of(trie), options, kNotCancelled);
    options.timeout = std::chrono::milliseconds(1);
    const SearchResult result = search(sequence_, cursor_of(trie), options, kNotCancelled);
    ASSERT_FALSE(result.found.empty());
    for (const Found & found : result.found) {
        EXPECT_NEAR(found.logprob, scores.leaves[found.leaf], kNear);
    }
    EXPECT_LE(best_beside(result, scores), result.found.back().logprob + result.gap + kNear);
    EXPECT_LT(result.n_evaluated, proof.n_evaluated);
}

TEST_P(SearchOn, EqualCallsEvaluateTheSame) {
    const Context own = context();
    Sequence sequence(own.get());
    sequence.replace(kPrompt, kNotCancelled);
    std::mt19937 rng(10);
    for (int round = 0; round < 6; ++round) {
        const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 60, 4, 8));
        const SearchResult first = search(sequence, cursor_of(trie), {}, kNotCancelled);
        EXPECT_EQ(first.gap, 0);
        for (int again = 0; again < 3; ++again) {
            const SearchResult result = search(sequence, cursor_of(trie), {}, kNotCancelled);
            EXPECT_EQ(result.found[0].leaf, first.found[0].leaf);
            EXPECT_EQ(result.found[0].logprob, first.found[0].logprob);
            EXPECT_EQ(result.n_passes, first.n_passes);
            EXPECT_EQ(result.n_evaluated, first.n_evaluated);
        }
    }
}

TEST_F(SearchTest, WhatMustFollowABranchIsEvaluatedWithIt) {
    const SearchResult chain = search(sequence_, cursor_of(unnamed_trie_of({bytes("abcdef")})), {}, kNotCancelled);
    EXPECT_EQ(chain.n_passes, 1U);
    EXPECT_EQ(chain.n_evaluated, 5U) << "all but the last";
    const SearchResult two =
        search(sequence_, cursor_of(unnamed_trie_of({bytes("abcdef"), bytes("uvwxyz")})), {}, kNotCancelled);
    EXPECT_LE(two.n_passes, 2U);
    EXPECT_LE(two.n_evaluated, 10U);
}

TEST_F(SearchTest, ALeafOfOneTokenThatNoneCanBeatCostsNoPass) {
    const std::vector<double> next = PlainModel().next(kPrompt);
    const auto best = static_cast<Token>(std::max_element(next.begin(), next.end()) - next.begin());
    const Token other = best == kRead ? kSend : kRead;
    const SearchResult result =
        search(sequence_, cursor_of(unnamed_trie_of({{best}, {other, kFile}, {other, kMail}})), {}, kNotCancelled);
    EXPECT_EQ(result.n_passes, 0U);
    EXPECT_EQ(result.rival_min, kImpossible) << "nobody has looked";
    EXPECT_NEAR(result.rival_max, std::log(next[static_cast<std::size_t>(other)]), kNear);
}

TEST_F(SearchTest, GoesThroughWhatLeavesNoChoiceToTheLeafBehindIt) {
    const std::shared_ptr<const Trie> trie = unnamed_trie_of({bytes("abcdef"), bytes("axyz"), bytes("b")});
    SearchOptions options;
    options.branches = true;
    options.n_best = 3;
    const Scores scores = score_all(sequence_, cursor_of(trie), options, kNotCancelled);
    for (const std::size_t beam_width : {std::size_t{0}, std::size_t{2}}) {
        options.beam_width = beam_width;
        const SearchResult result = search(sequence_, cursor_of(trie), options, kNotCancelled);
        ASSERT_EQ(result.found.size(), 3U);
        std::set<LeafId> found;
        for (const Found & leaf : result.found) {
            found.insert(leaf.leaf);
            ASSERT_LT(leaf.leaf, trie->n_leaves());
            EXPECT_NEAR(leaf.logprob, scores.leaves[leaf.leaf], kNear);
        }
        EXPECT_EQ(found.size(), 3U);
        EXPECT_EQ(result.n_evaluated, 1U) << "a";
    }
}

TEST_F(SearchTest, ABudgetGivesLeavesAndHowMuchIsUnproved) {
    std::mt19937 rng(7);
    const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 3000, 6, 40));
    SearchOptions options;
    options.n_best = 20;
    const SearchResult exact = search(sequence_, cursor_of(trie), options, kNotCancelled);
    EXPECT_EQ(exact.gap, 0);
    options.max_nodes = 1;
    const SearchResult hasty = search(sequence_, cursor_of(trie), options, kNotCancelled);
    ASSERT_GE(hasty.found.size(), 1U) << "one, whatever it costs";
    EXPECT_LE(hasty.n_evaluated, 5U) << "a path of six tokens, less its last";
    EXPECT_GT(hasty.gap, 0);
    EXPECT_GE(hasty.found.back().logprob + hasty.gap, exact.found.back().logprob) << "the gap is a bound";
}

TEST_F(SearchTest, ANarrowBeamSaysWhatItMayHaveMissed) {
    std::mt19937 rng(8);
    const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 3000, 6, 40));
    SearchOptions options;
    const SearchResult exact = search(sequence_, cursor_of(trie), options, kNotCancelled);
    options.beam_width = 1;
    const SearchResult beam = search(sequence_, cursor_of(trie), options, kNotCancelled);
    ASSERT_EQ(beam.found.size(), 1U);
    EXPECT_GE(beam.found[0].logprob + beam.gap, exact.found[0].logprob - kNear);
}

TEST_F(SearchTest, MoreLeavesThanThereAreAreNotFound) {
    SearchOptions options;
    options.n_best = 10;
    const SearchResult result =
        search(sequence_, cursor_of(unnamed_trie_of({{kRead}, {kSend}})), options, kNotCancelled);
    EXPECT_EQ(result.found.size(), 2U);
    EXPECT_EQ(result.gap, 0);
}

}  // namespace
}  // namespace token_trie::test
