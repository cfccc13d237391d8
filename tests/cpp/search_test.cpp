#include "stream/search.h"

#include "scorer_fixture.h"

#include <numeric>

namespace token_trie::test {
namespace {

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
                    EXPECT_LE(result.n_evaluated, scores.n_evaluated);
                }
                for (std::size_t i = 0; i < 5; ++i) {
                    EXPECT_NEAR(result.found[i].logprob, scores.leaves[ranked[i]], near());
                    EXPECT_NEAR(scores.leaves[result.found[i].leaf], scores.leaves[ranked[i]], near());
                }
            }
        }
    }
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
    EXPECT_LT(hasty.n_evaluated, exact.n_evaluated);
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
