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
    Sequence sequence(maker());
    sequence.replace(kPrompt, kNotCancelled);
    std::mt19937 rng(6);
    for (const LeafEnd leaf_end : {LeafEnd::any, LeafEnd::longest, LeafEnd::follow}) {
        for (int round = 0; round < 4; ++round) {
            const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 40, 4, 8));
            SearchOptions options;
            options.leaf_end = leaf_end;
            const Answer scores = score_all(sequence, cursor_of(trie), options, kNotCancelled);
            std::vector<LeafId> ranked(trie->n_leaves());
            std::iota(ranked.begin(), ranked.end(), 0);
            std::sort(ranked.begin(), ranked.end(),
                      [&](LeafId a, LeafId b) { return scores.logprobs[a] > scores.logprobs[b]; });
            for (const std::size_t beam_width : {std::size_t{0}, std::size_t{1000}}) {
                options.n_best = 5;
                options.beam_width = beam_width;
                const Answer result = search(sequence, cursor_of(trie), options, kNotCancelled);
                ASSERT_EQ(result.leaves.size(), 5U);
                EXPECT_EQ(result.info.gap, 0);
                if (takes_many_at_once()) {
                    EXPECT_LE(result.info.n_evaluated, scores.info.n_evaluated * 9 / 8);
                }
                for (std::size_t i = 0; i < 5; ++i) {
                    EXPECT_NEAR(result.logprobs[i], scores.logprobs[ranked[i]], near());
                    EXPECT_NEAR(scores.logprobs[found_by(result)[i].leaf], scores.logprobs[ranked[i]], near());
                }
            }
        }
    }
}

// The best score of a leaf that is not among found; -inf if all are.
double best_beside(const Answer & result, const Answer & scores) {
    std::vector<double> others = scores.logprobs;
    for (const Found & found : found_by(result)) {
        others[found.leaf] = kImpossible;
    }
    return *std::max_element(others.begin(), others.end());
}

TEST_P(SearchOn, ClaimsNoMoreThanIsTrueHoweverEarlyItHasToStop) {
    Sequence sequence(maker());
    sequence.replace(kPrompt, kNotCancelled);
    std::mt19937 rng(9);
    const auto below = [&rng](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(rng); };
    for (int round = 0; round < 12; ++round) {
        const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 1 + below(60), 1 + below(5), 8));
        SearchOptions options;
        options.leaf_end = static_cast<LeafEnd>(below(3));
        options.branches = below(4) == 0;
        const Answer scores = score_all(sequence, cursor_of(trie), options, kNotCancelled);
        options.n_best = 1 + below(4);
        for (const std::uint64_t max_nodes : {0U, 1U, 3U, 9U}) {
            SCOPED_TRACE(::testing::Message() << "round " << round << ", " << max_nodes << " nodes at most");
            options.max_nodes = max_nodes;
            const Answer result = search(sequence, cursor_of(trie), options, kNotCancelled);
            ASSERT_FALSE(result.leaves.empty());
            for (const Found & found : found_by(result)) {
                EXPECT_NEAR(found.logprob, scores.logprobs[found.leaf], near());
            }
            const double beside = best_beside(result, scores);
            EXPECT_LE(beside, result.info.rival_max + near());
            EXPECT_GE(beside, result.info.rival_min - near());
            EXPECT_LE(beside, result.logprobs.back() + result.info.gap + near());
            const double mass = std::accumulate(scores.logprobs.begin(), scores.logprobs.end(), 0.0,
                                                [](double sum, double logprob) { return sum + std::exp(logprob); });
            EXPECT_TRUE(options.leaf_end == LeafEnd::any || mass <= result.info.mass_max + near());
            EXPECT_LE(result.info.mass_max, 1 + near());
            if (result.info.gap == 0 && result.leaves.size() == trie->n_leaves()) {
                EXPECT_TRUE(options.leaf_end == LeafEnd::any || std::abs(mass - result.info.mass_max) < near());
            }
            if (max_nodes == 0) {
                EXPECT_EQ(result.info.gap, 0);
                EXPECT_EQ(result.leaves.size(), std::min<std::size_t>(options.n_best, trie->n_leaves()));
            }
            if (result.info.gap == 0 && result.leaves.size() == trie->n_leaves()) {
                EXPECT_EQ(result.info.rival_max, kImpossible) << "nothing is left";
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
Answer search_of_cheap_rows(Sequence & sequence, const Cursor & cursor, const SearchOptions & options) {
    const Tokens behind = sequence.tokens();
    const auto search = begin_search(cursor, options, kTinyVocab, {64, /* rows_are_cheap = */ true});
    Answer result;
    for (std::vector<NodeId> nodes = search->next(); !nodes.empty(); nodes = search->next()) {
        for (const NodeId node : nodes) {
            Tokens tokens = behind;
            for (NodeId above = node; above != kRoot; above = cursor.trie().parent(above)) {
                tokens.insert(tokens.begin() + static_cast<std::ptrdiff_t>(behind.size()), cursor.trie().token(above));
            }
            sequence.replace(tokens, kNotCancelled);
            search->observe(node, sequence.logits({true, {}, {}}, false, kNotCancelled));
        }
        result.info.n_evaluated += nodes.size();
    }
    search->write(result);
    sequence.replace(behind, kNotCancelled);
    return result;
}

// Behind some rows without a proof it dives.
TEST_F(SearchTest, OfALargeSetTheBestComesLongBeforeItsProof) {
    std::mt19937 rng(12);
    for (int round = 0; round < 8; ++round) {
        const std::shared_ptr<const Trie> trie = long_words(rng, 2000);
        const Answer scores = score_all(sequence_, cursor_of(trie), {}, kNotCancelled);
        const double best = *std::max_element(scores.logprobs.begin(), scores.logprobs.end());
        const Answer proof = search(sequence_, cursor_of(trie), {}, kNotCancelled);
        EXPECT_EQ(proof.info.gap, 0);
        EXPECT_NEAR(proof.logprobs[0], best, kNear);
        SearchOptions options;
        options.max_nodes = 128;
        for (const Answer & bounded : {search(sequence_, cursor_of(trie), options, kNotCancelled),
                                       search_of_cheap_rows(sequence_, cursor_of(trie), options)}) {
            EXPECT_LE(bounded.info.n_evaluated, options.max_nodes + 60);
            EXPECT_LT(bounded.info.n_evaluated, proof.info.n_evaluated);
            EXPECT_NEAR(bounded.logprobs[0], scores.logprobs[found_by(bounded)[0].leaf], kNear);
            EXPECT_GE(bounded.logprobs[0] + bounded.info.gap, best - kNear);
            EXPECT_LE(std::count_if(scores.logprobs.begin(), scores.logprobs.end(),
                                    [&](double logprob) { return logprob > bounded.logprobs[0] + kNear; }),
                      20)
                << "of 2000";
        }
    }
}

TEST_F(SearchTest, TimeThatIsUpEndsItWithOneAnswerAtLeast) {
    std::mt19937 rng(13);
    const std::shared_ptr<const Trie> trie = long_words(rng, 2000);
    const Answer scores = score_all(sequence_, cursor_of(trie), {}, kNotCancelled);
    SearchOptions options;
    options.n_best = 50;
    const Answer proof = search(sequence_, cursor_of(trie), options, kNotCancelled);
    options.timeout = std::chrono::milliseconds(1);
    const Answer result = search(sequence_, cursor_of(trie), options, kNotCancelled);
    ASSERT_FALSE(result.leaves.empty());
    for (const Found & found : found_by(result)) {
        EXPECT_NEAR(found.logprob, scores.logprobs[found.leaf], kNear);
    }
    EXPECT_LE(best_beside(result, scores), result.logprobs.back() + result.info.gap + kNear);
    EXPECT_LT(result.info.n_evaluated, proof.info.n_evaluated);
}

TEST_P(SearchOn, EqualCallsEvaluateTheSame) {
    Sequence sequence(maker());
    sequence.replace(kPrompt, kNotCancelled);
    std::mt19937 rng(10);
    for (int round = 0; round < 6; ++round) {
        const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 60, 4, 8));
        const Answer first = search(sequence, cursor_of(trie), {}, kNotCancelled);
        EXPECT_EQ(first.info.gap, 0);
        for (int again = 0; again < 3; ++again) {
            const Answer result = search(sequence, cursor_of(trie), {}, kNotCancelled);
            EXPECT_EQ(result.leaves[0], first.leaves[0]);
            EXPECT_EQ(result.logprobs[0], first.logprobs[0]);
            EXPECT_EQ(result.info.n_passes, first.info.n_passes);
            EXPECT_EQ(result.info.n_evaluated, first.info.n_evaluated);
        }
    }
}

TEST_F(SearchTest, WhatMustFollowABranchIsEvaluatedWithIt) {
    const Answer chain = search(sequence_, cursor_of(unnamed_trie_of({bytes("abcdef")})), {}, kNotCancelled);
    EXPECT_EQ(chain.info.n_passes, 1U);
    EXPECT_EQ(chain.info.n_evaluated, 5U) << "all but the last";
    const Answer two =
        search(sequence_, cursor_of(unnamed_trie_of({bytes("abcdef"), bytes("uvwxyz")})), {}, kNotCancelled);
    EXPECT_LE(two.info.n_passes, 2U);
    EXPECT_LE(two.info.n_evaluated, 10U);
}

TEST_F(SearchTest, ALeafOfOneTokenThatNoneCanBeatCostsNoPass) {
    const std::vector<double> next = PlainModel().next(kPrompt);
    const auto best = static_cast<Token>(std::max_element(next.begin(), next.end()) - next.begin());
    const Token other = best == kRead ? kSend : kRead;
    const Answer result =
        search(sequence_, cursor_of(unnamed_trie_of({{best}, {other, kFile}, {other, kMail}})), {}, kNotCancelled);
    EXPECT_EQ(result.info.n_passes, 0U);
    EXPECT_EQ(result.info.rival_min, kImpossible) << "nobody has looked";
    EXPECT_NEAR(result.info.rival_max, std::log(next[static_cast<std::size_t>(other)]), kNear);
}

TEST_F(SearchTest, GoesThroughWhatLeavesNoChoiceToTheLeafBehindIt) {
    const std::shared_ptr<const Trie> trie = unnamed_trie_of({bytes("abcdef"), bytes("axyz"), bytes("b")});
    SearchOptions options;
    options.branches = true;
    options.n_best = 3;
    const Answer scores = score_all(sequence_, cursor_of(trie), options, kNotCancelled);
    for (const std::size_t beam_width : {std::size_t{0}, std::size_t{2}}) {
        options.beam_width = beam_width;
        const Answer result = search(sequence_, cursor_of(trie), options, kNotCancelled);
        ASSERT_EQ(result.leaves.size(), 3U);
        std::set<LeafId> found;
        for (const Found & leaf : found_by(result)) {
            found.insert(leaf.leaf);
            ASSERT_LT(leaf.leaf, trie->n_leaves());
            EXPECT_NEAR(leaf.logprob, scores.logprobs[leaf.leaf], kNear);
        }
        EXPECT_EQ(found.size(), 3U);
        EXPECT_EQ(result.info.n_evaluated, 1U) << "a";
    }
}

TEST_F(SearchTest, ABudgetGivesLeavesAndHowMuchIsUnproved) {
    std::mt19937 rng(7);
    const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 3000, 6, 40));
    SearchOptions options;
    options.n_best = 20;
    const Answer exact = search(sequence_, cursor_of(trie), options, kNotCancelled);
    EXPECT_EQ(exact.info.gap, 0);
    options.max_nodes = 1;
    const Answer hasty = search(sequence_, cursor_of(trie), options, kNotCancelled);
    ASSERT_GE(hasty.leaves.size(), 1U) << "one, whatever it costs";
    EXPECT_LE(hasty.info.n_evaluated, 5U) << "a path of six tokens, less its last";
    EXPECT_GT(hasty.info.gap, 0);
    EXPECT_GE(hasty.logprobs.back() + hasty.info.gap, exact.logprobs.back()) << "the gap is a bound";
}

TEST_F(SearchTest, ABeamNarrowsAsItsNodesEndAndFindsAsManyLeaves) {
    std::mt19937 rng(7);
    std::set<Tokens> texts;
    for (Tokens text : random_texts(rng, 3000, 6, 40)) {
        text.resize(6, text.front());  // no leaf is nearer than others
        texts.insert(text);
    }
    const std::shared_ptr<const Trie> trie = unnamed_trie_of(texts);
    SearchOptions options;
    options.n_best = 3;
    options.beam_width = 16;
    const Answer wide = search(sequence_, cursor_of(trie), options, kNotCancelled);
    options.max_nodes = 1000;
    EXPECT_EQ(search(sequence_, cursor_of(trie), options, kNotCancelled).leaves, wide.leaves);
    options.max_nodes = 40;
    const Answer narrow = search(sequence_, cursor_of(trie), options, kNotCancelled);
    EXPECT_EQ(narrow.leaves.size(), options.n_best);
    EXPECT_LE(narrow.info.n_evaluated, 2 * options.max_nodes);
    EXPECT_LT(narrow.info.n_evaluated, wide.info.n_evaluated);
    EXPECT_GE(narrow.logprobs.back() + narrow.info.gap, wide.logprobs.back()) << "the gap is a bound";
}

TEST_F(SearchTest, ANarrowBeamSaysWhatItMayHaveMissed) {
    std::mt19937 rng(8);
    const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 3000, 6, 40));
    SearchOptions options;
    const Answer exact = search(sequence_, cursor_of(trie), options, kNotCancelled);
    options.beam_width = 1;
    const Answer beam = search(sequence_, cursor_of(trie), options, kNotCancelled);
    ASSERT_EQ(beam.leaves.size(), 1U);
    EXPECT_GE(beam.logprobs[0] + beam.info.gap, exact.logprobs[0] - kNear);
}

TEST_F(SearchTest, MoreLeavesThanThereAreAreNotFound) {
    SearchOptions options;
    options.n_best = 10;
    const Answer result = search(sequence_, cursor_of(unnamed_trie_of({{kRead}, {kSend}})), options, kNotCancelled);
    EXPECT_EQ(result.leaves.size(), 2U);
    EXPECT_EQ(result.info.gap, 0);
}

}  // namespace
}  // namespace token_trie::test
