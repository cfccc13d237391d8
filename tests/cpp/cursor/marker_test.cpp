#include "cursor/cursor.h"

#include "sampler/sampler.h"
#include "stream_fixture.h"
#include "support.h"

#include <algorithm>
#include <limits>

namespace token_trie::test {
namespace {

constexpr Token kEnd = 2;

FollowSet::Options think(Tokens start_after, std::int64_t max_before = -1) {
    FollowSet::Options options{OnComplete::end, {kEnd}, {}, 0};
    options.start_after = std::move(start_after);
    options.max_before = max_before;
    options.not_before = {kEnd};
    return options;
}

Cursor cursor_of(const FollowSet::Options & options) {
    const auto trie = trie_of({{"READ", {7}}, {"SEND", {8}}});
    return {trie, std::make_shared<const FollowSet>(*trie, options)};
}

TEST(Marker, BeginningsOfItMayOverlap) {
    const Marker marker({5, 5, 6});
    std::uint32_t place = 0;
    Tokens places;
    for (const Token token : {5, 5, 5, 9, 5, 5, 6}) {
        place = marker.step(place, token);
        places.push_back(static_cast<Token>(place));
    }
    EXPECT_EQ(places, Tokens({1, 2, 2, 0, 1, 2, 3}));
}

TEST(Marker, TheSpanBeginsBehindItAndNoSooner) {
    Cursor cursor = cursor_of(think({5, 6}));
    for (const Token token : {7, 5, 8, 5}) {
        EXPECT_TRUE(cursor.allowed().everything);
        EXPECT_FALSE(cursor.allowed().contains(kEnd));
        EXPECT_FALSE(cursor.ends_with(kEnd));
        EXPECT_TRUE(cursor.accept(token));
        EXPECT_EQ(cursor.state(), State::thinking);
    }
    EXPECT_EQ(cursor.n_items(), 0);
    EXPECT_TRUE(cursor.accept(6));
    EXPECT_EQ(cursor.state(), State::constrained);
    EXPECT_TRUE(cursor.accept(7));
    EXPECT_EQ(cursor.trie().name(cursor.leaf()), "READ");
    cursor.reset();
    EXPECT_EQ(cursor.state(), State::thinking);
    EXPECT_FALSE(cursor.accept(kEnd));
    EXPECT_EQ(cursor.state(), State::escaped);
}

TEST(Marker, WhatIsMissingOfItIsForcedWhenNoMoreIsFree) {
    Cursor cursor = cursor_of(think({5, 6, 6}, 3));
    for (const Token token : {9, 5, 6}) {
        EXPECT_TRUE(cursor.allowed().everything);
        cursor.accept(token);
    }
    EXPECT_EQ(cursor.allowed().only(), 6) << "5 6 stand already";
    EXPECT_FALSE(Cursor(cursor).accept(7));
    EXPECT_TRUE(cursor.accept(6));
    EXPECT_EQ(cursor.state(), State::constrained);

    Cursor at_once = cursor_of(think({5, 6}, 0));
    EXPECT_EQ(at_once.allowed().only(), 5);
    at_once.accept(5);
    EXPECT_EQ(at_once.allowed().only(), 6);
    at_once.accept(6);
    EXPECT_EQ(at_once.state(), State::constrained);
}

TEST(Marker, AnEndTokenThatIsPartOfItIsLegal) {
    Cursor cursor = cursor_of(think({kEnd, 5}));
    EXPECT_TRUE(cursor.allowed().contains(kEnd));
    EXPECT_FALSE(cursor.ends_with(kEnd));
    EXPECT_TRUE(cursor.accept(kEnd));
    EXPECT_TRUE(cursor.accept(5));
    EXPECT_EQ(cursor.state(), State::constrained);
}

// Random thoughts full of beginnings of the marker: the span begins where a plain search says.
TEST(Marker, TheSpanBeginsWhereAPlainSearchSays) {
    for (unsigned seed = 1; seed <= 1000; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const auto random_tokens = [&rng](std::size_t n) {
            Tokens out(n);
            std::generate(out.begin(), out.end(), [&rng] { return static_cast<Token>(10 + rng() % 2); });
            return out;
        };
        const Tokens marker = random_tokens(1 + rng() % 6);
        const auto budget = static_cast<std::size_t>(rng() % 65);
        Tokens thought;
        while (thought.size() < budget) {
            const Tokens more = rng() % 2 == 0 ? random_tokens(1 + rng() % 4) : marker;
            thought.insert(thought.end(), more.begin(),
                           more.begin() + static_cast<std::ptrdiff_t>(rng() % more.size()));
        }
        thought.resize(budget);
        Cursor cursor = cursor_of(think(marker, static_cast<std::int64_t>(budget)));
        std::size_t n = 0;
        while (cursor.state() == State::thinking) {
            const Token only = cursor.allowed().only();
            ASSERT_EQ(only < 0, n < budget);
            ASSERT_TRUE(cursor.accept(only < 0 ? thought[n] : only));
            ++n;
        }
        ASSERT_EQ(cursor.state(), State::constrained);

        const auto found = std::search(thought.begin(), thought.end(), marker.begin(), marker.end());
        std::size_t expected = static_cast<std::size_t>(found - thought.begin()) + marker.size();
        if (found == thought.end()) {
            std::size_t begun = std::min(marker.size(), budget);
            while (!std::equal(thought.end() - static_cast<std::ptrdiff_t>(begun), thought.end(), marker.begin())) {
                --begun;
            }
            expected = budget + marker.size() - begun;
        }
        ASSERT_EQ(n, expected);
    }
}

TEST(Marker, BeforeItTheSamplerLeavesAllButTheEndsToTheChain) {
    const Candidates::Pairs all = {{0, 1.0F}, {1, 4.0F}, {2, 9.0F}, {3, 3.0F}, {4, 2.0F}};
    const Candidates::Pairs sorted = {{2, 9.0F}, {1, 4.0F}, {3, 3.0F}, {4, 2.0F}, {0, 1.0F}};
    for (const Mode mode : {Mode::greedy, Mode::sampled}) {
        const Sampler sampler = sampler_of(trie_of({{"READ", {3}}}), mode, think({4, 4}));
        Candidates in_place(all);
        llama_sampler_apply(sampler.get(), in_place.get());
        Tokens ids = in_place.ids();
        std::sort(ids.begin(), ids.end());
        EXPECT_EQ(ids, Tokens({0, 1, 3, 4}));

        Candidates descending(sorted);
        descending->sorted = true;
        llama_sampler_apply(sampler.get(), descending.get());
        EXPECT_EQ(descending.ids(), Tokens({1, 3, 4, 0}));
        EXPECT_TRUE(descending->sorted);
        EXPECT_EQ(state_of(sampler.get()).n_restored, 0U);
        EXPECT_EQ(state_of(sampler.get()).state, TOKEN_TRIE_THINKING);

        const CapturedLog quiet;
        Candidates cut(Candidates::Pairs{{2, 9.0F}});
        llama_sampler_apply(sampler.get(), cut.get());
        EXPECT_EQ(cut.ids(), Tokens({4})) << "towards the marker, where only an end is left";
        EXPECT_EQ(state_of(sampler.get()).n_restored, 1U);

        for (int i = 0; i < 2; ++i) {
            llama_sampler_accept(sampler.get(), 4);
        }
        Candidates inside(all);
        llama_sampler_apply(sampler.get(), inside.get());
        EXPECT_EQ(inside.ids(), Tokens({3}));
    }
}

class StreamThinks : public StreamTest {
   protected:
    static FollowSet::Options think_of(std::int64_t max_before) {
        FollowSet::Options options = kUntilTheEnd;
        options.start_after = bytes("\n#");
        options.max_before = max_before;
        options.not_before = {kTinyEnd};
        return options;
    }
};

TEST_F(StreamThinks, FreelyAndThenChooses) {
    const Opened stream = open();
    const auto trie = trie_of({{"READ", {kRead}}, {"SEND", {kSend}}});
    for (std::uint32_t seed = 1; seed <= 20; ++seed) {
        stream->prefill(kPrompt);
        set(*stream, trie, Mode::greedy, think_of(static_cast<std::int64_t>(seed) - 1));
        stream->set_sampling(seeded(seed));
        const Output out = run(stream, 100, 3);
        EXPECT_EQ(stop_of(stream), Stop::complete);
        const Tokens tokens = out.tokens();
        const Tokens marker = bytes("\n#");
        const auto at = std::search(tokens.begin(), tokens.end(), marker.begin(), marker.end());
        ASSERT_EQ(tokens.end() - at, 3);
        EXPECT_LE(at - tokens.begin(), static_cast<std::ptrdiff_t>(seed));
        EXPECT_EQ(std::count(tokens.begin(), tokens.end(), kTinyEnd), 0);
        EXPECT_EQ(leaf_of(stream), tokens.back() == kRead ? "READ" : "SEND");
    }
}

TEST_F(StreamThinks, AgainForEachSpanAndNotInTheMiddleOfOne) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"SEND", {kSend}}}), Mode::greedy, think_of(4));
    EXPECT_EQ(run(stream, 2, 3).steps.size(), 2U);
    EXPECT_EQ(cursor_of(stream).state(), State::thinking);
    EXPECT_LE(run(stream, 100, 3).steps.size(), 5U);
    EXPECT_EQ(stop_of(stream), Stop::complete);
    run(stream, 1, 3);
    EXPECT_EQ(cursor_of(stream).state(), State::thinking);
}

}  // namespace
}  // namespace token_trie::test
