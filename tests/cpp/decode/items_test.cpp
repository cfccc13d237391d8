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
    static std::vector<std::string> names_of(const Opened & opened) {
        std::vector<std::string> names;
        for (const ItemLog::Item & item : opened->items().items()) {
            names.push_back(cursor_of(opened).trie().name(item.leaf));
        }
        return names;
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
            set(*opened, kNames, Mode::sampled, options);
            run(opened, 64, 3);
            std::size_t place = kPrompt.size();
            ASSERT_EQ(opened->items().items().size(), 3U);
            double logprob = 0;
            for (const ItemLog::Item & item : opened->items().items()) {
                const Tokens & all = opened->tokens();
                EXPECT_EQ(item.begin, place);
                EXPECT_EQ(Tokens(all.begin() + static_cast<std::ptrdiff_t>(item.begin),
                                 all.begin() + static_cast<std::ptrdiff_t>(item.end)),
                          kNames->sequence(item.leaf));
                place = item.end + separator.size();
                EXPECT_LE(item.logprob, 0);
                logprob += item.logprob;
            }
            EXPECT_EQ(place - separator.size(), opened->tokens().size());
            EXPECT_GE(logprob, opened->state().logprob - 1e-6);
            EXPECT_EQ(cursor_of(opened).ending(), Ending::max_items);
        }
    }
}

TEST_F(StreamItems, OneThatGoesOnBecomesAnother) {
    const Opened opened = open();
    const auto trie = trie_of({{"a", bytes("ab")}, {"b", bytes("abcd")}});
    FollowSet::Options options = list(1);
    options.exclude = {};
    set(*opened, trie, Mode::greedy, options);
    std::vector<std::vector<std::string>> seen;
    opened->generate(8, [&](const Stream::Step & /*step*/) {
        seen.push_back(names_of(opened));
        return true;
    });
    ASSERT_GE(seen.size(), 2U);
    EXPECT_EQ(seen[0], std::vector<std::string>{});
    EXPECT_EQ(seen[1], std::vector<std::string>{"a"});
    if (seen.size() == 4) {
        EXPECT_EQ(seen[2], std::vector<std::string>{});
        EXPECT_EQ(seen[3], std::vector<std::string>{"b"});
    }
}

TEST_F(StreamItems, OfAChoiceIsTheChoice) {
    const Opened opened = open();
    for (const OnComplete on_complete : {OnComplete::end, OnComplete::release}) {
        opened->prefill(kPrompt);
        FollowSet::Options options{on_complete, {}, {}, 0};
        if (on_complete == OnComplete::end) {
            options.end_tokens = {kTinyEnd};
        }
        set(*opened, trie_of({{"x", bytes("xyz")}}), Mode::greedy, options);
        run(opened, 6);
        EXPECT_EQ(names_of(opened), std::vector<std::string>{"x"});
        EXPECT_EQ(opened->items().items()[0].end, kPrompt.size() + 3);
        EXPECT_EQ(cursor_of(opened).ending(), Ending::token);
        opened->clear_trie();
        EXPECT_TRUE(opened->items().items().empty());
    }
}

TEST_F(StreamItems, EndBecauseNoneIsLeft) {
    const Opened opened = open();
    FollowSet::Options options = list(0);
    options.min_items = 3;
    set(*opened, kNames, Mode::greedy, options);
    run(opened, 64);
    EXPECT_EQ(names_of(opened).size(), 3U);
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
