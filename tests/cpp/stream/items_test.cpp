#include "llama/library.h"

#include "stream_fixture.h"

#include <gtest/gtest.h>

namespace token_trie::test {
namespace {

class StreamItems : public StreamTest {
   protected:
    static inline const Tokens kComma = bytes(", ");
    static inline const auto kNames = trie_of({{"a", bytes("ab")}, {"b", bytes("abc")}, {"c", bytes("cd")}});

    static FollowSet::Options list(std::int32_t max_items, bool unique = true) {
        FollowSet::Options options{OnComplete::restart, {kTinyEnd}, kComma, max_items};
        options.unique = unique;
        return options;
    }
    static Answer answer_of(Stream & stream, const std::shared_ptr<const Trie> & trie, FollowSet::Options options) {
        Query query;
        query.cursor =
            std::make_shared<const Cursor>(trie, std::make_shared<const FollowSet>(*trie, std::move(options)));
        query.mode = Query::Mode::sampled;
        query.sampling = seeded(TOKEN_TRIE_SEED_KEEP, 3);
        query.text.max_tokens = 64;
        return stream.answer(query);
    }
};

TEST_F(StreamItems, AreNamedAndStandWhereTheirTokensAre) {
    const Opened opened = open();
    for (const auto & separator : {kComma, Tokens()}) {
        for (std::uint32_t seed = 0; seed < 20; ++seed) {
            opened->prefill(kPrompt);
            opened->set_sampling(seeded(seed));
            FollowSet::Options options = list(3);
            options.separator = separator;
            options.min_items = 3;
            const Answer answer = answer_of(*opened, kNames, options);
            ASSERT_EQ(answer.leaves.size(), 3U);
            ASSERT_EQ(answer.ranges.size(), 6U);
            std::size_t place = 0;
            double logprob = 0;
            for (std::size_t i = 0; i < 3; ++i) {
                EXPECT_EQ(answer.ranges[2 * i], place);
                const auto begin = answer.tokens.begin() + static_cast<std::ptrdiff_t>(place);
                const auto end = answer.tokens.begin() + static_cast<std::ptrdiff_t>(answer.ranges[2 * i + 1]);
                EXPECT_EQ(Tokens(begin, end), kNames->sequence(static_cast<LeafId>(answer.leaves[i])));
                place = answer.ranges[2 * i + 1] + separator.size();
                EXPECT_LE(answer.logprobs[i], 0);
                logprob += answer.logprobs[i];
            }
            EXPECT_EQ(place - separator.size(), answer.tokens.size());
            EXPECT_GE(logprob, answer.info.logprob - 1e-6);
            EXPECT_EQ(answer.info.ending, TOKEN_TRIE_ENDING_MAX_ITEMS);
        }
    }
}

TEST_F(StreamItems, OneThatGoesOnBecomesAnother) {
    const Opened opened = open();
    const auto trie = trie_of({{"a", bytes("ab")}, {"b", bytes("abcd")}});
    std::set<Tokens> seen;
    for (std::uint32_t seed = 0; seed < 40; ++seed) {
        opened->prefill(kPrompt);
        opened->set_sampling(seeded(seed));
        FollowSet::Options options = list(1);
        options.exclude = {};
        const Answer answer = answer_of(*opened, trie, options);
        ASSERT_EQ(answer.leaves.size(), 1U);
        EXPECT_EQ(trie->sequence(static_cast<LeafId>(answer.leaves.front())), answer.tokens);
        EXPECT_EQ(answer.ranges, (std::vector<std::uint64_t>{0, answer.tokens.size()}));
        seen.insert(answer.tokens);
    }
    EXPECT_EQ(seen, (std::set<Tokens>{bytes("ab"), bytes("abcd")}));
}

TEST_F(StreamItems, EndBecauseNoneIsLeft) {
    const Opened opened = open();
    FollowSet::Options options = list(0);
    options.min_items = 3;
    set(*opened, kNames, Mode::greedy, options);
    run(opened, 64);
    EXPECT_EQ(cursor_of(opened).n_items(), 3);
    EXPECT_EQ(cursor_of(opened).ending(), Ending::none_left);
}

TEST_F(StreamItems, ASpanForgottenOpenEndsWithTheMemberUnderWay) {
    const Opened opened = open();
    FollowSet::Options options = list(0, false);
    options.min_items = 2;
    for (const std::int32_t max_span : {1, 2, 30, 31, 33}) {
        opened->prefill(kPrompt);
        const std::uint64_t n_closed = opened->state().n_closed;
        options.max_span = max_span;
        options.min_items = max_span / 4;
        const CapturedLog log;
        set(*opened, trie_of({{"a", bytes("ab")}}), Mode::greedy, options);
        const StreamOutput out = run(opened, 200);
        EXPECT_EQ(stop_of(opened), Stop::complete);
        EXPECT_GE(out.steps.size(), static_cast<std::size_t>(max_span));
        EXPECT_LE(out.steps.size(), static_cast<std::size_t>(max_span) + 5);
        EXPECT_EQ(out.text().substr(out.text().size() - 2), "ab");
        EXPECT_EQ(opened->state().n_closed, n_closed + 1);
        EXPECT_EQ(cursor_of(opened).ending(), Ending::max_span);
        EXPECT_EQ(log.lines(), std::vector<std::string>{kSpanClosed});
    }
}

TEST_F(StreamItems, ASpanThatEndsByItselfIsNotCounted) {
    const Opened opened = open();
    FollowSet::Options options = list(2, false);
    options.max_span = 1;
    options.min_items = 2;
    options.end_tokens = {};
    set(*opened, trie_of({{"a", bytes("ab")}}), Mode::greedy, options);
    EXPECT_EQ(run(opened, 200).text(), "ab, ab");
    EXPECT_EQ(opened->state().n_closed, 0U);
}

}  // namespace
}  // namespace token_trie::test
