#include "cursor/remainder.h"

#include "oracle.h"
#include "support.h"

namespace token_trie::test {
namespace {

using Set = std::set<Token>;
constexpr Token kEnd = 2;
constexpr Token kComma = 3;

Cursor cursor_of(const std::shared_ptr<const Trie> & trie, FollowSet::Options options) {
    return {trie, std::make_shared<const FollowSet>(*trie, std::move(options))};
}

FollowSet::Options list(Tokens separator = {kComma}) {
    FollowSet::Options options{OnComplete::restart, {kEnd}, std::move(separator), 0};
    options.unique = true;
    return options;
}

Set allowed(const Cursor & cursor) {
    Set out;
    cursor.allowed().for_each([&](Token token) { return out.insert(token).second; });
    return out;
}

Set after(Cursor & cursor, const Tokens & tokens) {
    for (const Token token : tokens) {
        EXPECT_TRUE(cursor.accept(token)) << token;
    }
    return allowed(cursor);
}

//       0
//     5/ \7
//   D*    A*
//       8/ \9
//      B*   C*
std::shared_ptr<const Trie> four() { return trie_of({{"A", {7}}, {"B", {7, 8}}, {"C", {7, 9}}, {"D", {5}}}); }

TEST(Remainder, AMemberTakenIsOutAndSoIsWhatLeadsToItAlone) {
    Cursor cursor = cursor_of(four(), list());
    EXPECT_EQ(after(cursor, {7, 9}), Set({kEnd, kComma}));
    EXPECT_EQ(after(cursor, {kComma}), Set({5, 7}));
    EXPECT_EQ(after(cursor, {7}), Set({kEnd, kComma, 8})) << "C is out";
    EXPECT_EQ(after(cursor, {8, kComma, 7}), Set({kEnd, kComma})) << "A, and nothing behind it";
    EXPECT_EQ(cursor.n_items(), 3);
    EXPECT_EQ(after(cursor, {kComma}), Set({5})) << "nothing is left behind 7";
    EXPECT_EQ(after(cursor, {5}), Set({kEnd})) << "nothing is left";
    EXPECT_EQ(cursor.n_items(), 4);
}

TEST(Remainder, ABeginningThatIsOutStillLeadsToTheLongerOneAndIsNoMemberThere) {
    Cursor cursor = cursor_of(four(), list());
    after(cursor, {7, kComma});
    EXPECT_EQ(after(cursor, {7}), Set({8, 9})) << "A is out: no end and no comma here";
    EXPECT_EQ(cursor.leaf(), kNoLeaf);
    EXPECT_EQ(cursor.n_items(), 1);
    EXPECT_FALSE(cursor.accept(kComma));
    EXPECT_EQ(cursor.state(), State::escaped);
}

TEST(Remainder, AMemberPassedThroughIsNotTaken) {
    Cursor cursor = cursor_of(four(), list());
    after(cursor, {7, 8, kComma});
    EXPECT_EQ(after(cursor, {7}), Set({kEnd, kComma, 9})) << "A was not finished on the way to B";
    EXPECT_EQ(cursor.trie().name(cursor.leaf()), "A");
}

TEST(Remainder, CopiesAndResetsLoseNothing) {
    Cursor cursor = cursor_of(four(), list());
    after(cursor, {5, kComma});
    Cursor copy = cursor;
    after(cursor, {7, 8, kComma});
    EXPECT_EQ(after(copy, {7}), Set({kEnd, kComma, 8, 9})) << "the copy has not taken B";
    EXPECT_EQ(after(cursor, {7}), Set({kEnd, kComma, 9}));
    cursor.reset();
    EXPECT_EQ(allowed(cursor), Set({5, 7}));
}

TEST(Remainder, WithoutASeparatorWhatBeginsTheNextItemIsWhatIsLeft) {
    FollowSet::Options options = list({});
    options.end_tokens = {5};
    Cursor cursor = cursor_of(four(), options);
    EXPECT_EQ(after(cursor, {7, 9}), Set({5, 7}));
    EXPECT_EQ(after(cursor, {5}), Set({5, 7})) << "5 was D; another one is the end";
    EXPECT_EQ(cursor.state(), State::constrained);
    EXPECT_TRUE(cursor.accept(5));
    EXPECT_EQ(cursor.state(), State::complete);
}

TEST(Remainder, ALeafIsNotFollowedByItselfWithoutASeparator) {
    Cursor cursor = cursor_of(trie_of({{"A", {7}}, {"D", {5}}}), list({}));
    EXPECT_EQ(after(cursor, {7}), Set({kEnd, 5}));
}

TEST(Remainder, AListOfAllThereIsEndsWhereThereAreNoEndTokens) {
    FollowSet::Options options = list();
    options.end_tokens.clear();
    Cursor cursor = cursor_of(four(), options);
    EXPECT_EQ(after(cursor, {5, kComma, 7, 8, kComma, 7, 9, kComma}), Set({7}));
    EXPECT_TRUE(cursor.accept(7));
    EXPECT_EQ(cursor.state(), State::complete);
    EXPECT_EQ(cursor.n_items(), 4);
}

TEST(Remainder, AListDoesNotEndBeforeMinItems) {
    FollowSet::Options options = list();
    options.unique = false;
    options.min_items = 2;
    Cursor cursor = cursor_of(four(), options);
    EXPECT_EQ(after(cursor, {5}), Set({kComma}));
    EXPECT_FALSE(cursor.ends_with(kEnd));
    EXPECT_EQ(after(cursor, {kComma, 5}), Set({kEnd, kComma}));

    options.separator.clear();
    Cursor bare = cursor_of(four(), options);
    EXPECT_EQ(after(bare, {5}), Set({5, 7}));
    EXPECT_EQ(after(bare, {7}), Set({kEnd, 5, 7, 8, 9}));
}

TEST(Remainder, WhatIsExcludedIsOutFromTheBeginningUnderEveryFollowSet) {
    const auto trie = trie_of({{"A", {7}}, {"B", {7, 8}}, {"B2", {7, 8}}, {"C", {7, 9}}, {"D", {5}}});
    for (const OnComplete on_complete : {OnComplete::release, OnComplete::end, OnComplete::restart}) {
        FollowSet::Options options;
        options.on_complete = on_complete;
        if (on_complete != OnComplete::release) {
            options.end_tokens = {kEnd};
        }
        options.exclude = {"B2", "A", "A", "D"};
        Cursor cursor = cursor_of(trie, options);
        EXPECT_EQ(allowed(cursor), Set({7}));
        EXPECT_EQ(cursor.allowed().only(), 7);
        EXPECT_EQ(after(cursor, {7}), Set({9})) << "B2 gave way to B, and names it";
        EXPECT_EQ(cursor.leaf(), kNoLeaf);
        EXPECT_TRUE(cursor.accept(9));
        EXPECT_EQ(cursor.trie().name(cursor.leaf()), "C");
        EXPECT_EQ(cursor.state(), on_complete == OnComplete::release ? State::complete : State::constrained);
    }
}

// As many members as there are, on every kind of set: what is left always leads to all of them.
TEST(Remainder, EveryListGoesOnToTheLastMember) {
    for (unsigned seed = 1; seed <= 1000; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        RandomCase random(rng, 8);
        random.members = random_members(rng, 1 + rng() % 40, 5, 6);
        random.options = list({kComma + 10});
        const auto trie = unnamed_trie_of(random.members);
        random.exclude_some(rng);
        random.options.min_items = static_cast<std::int32_t>(random.members.size());
        random.options.end_tokens = {20};
        Cursor cursor = cursor_of(trie, random.options);
        std::set<Tokens> seen;
        Tokens item;
        while (cursor.state() == State::constrained) {
            const Set choices = allowed(cursor);
            ASSERT_FALSE(choices.empty()) << "a dead end";
            const Token token = *std::next(choices.begin(), static_cast<std::ptrdiff_t>(rng() % choices.size()));
            ASSERT_TRUE(cursor.accept(token));
            if (token < 10) {
                item.push_back(token);
            } else {
                ASSERT_TRUE(seen.insert(item).second) << "a repeat";
                item.clear();
            }
        }
        ASSERT_EQ(seen, random.members);
    }
}

TEST(Remainder, WhatCannotBeIsRefused) {
    const auto refusal = [&](auto && change) {
        FollowSet::Options options = list();
        change(options);
        return message_of([&] { cursor_of(four(), options); });
    };
    EXPECT_EQ(refusal([](auto & o) { o.exclude = {"A", "E\n", "F"}; }), R"(exclude[1]: "E\n" is no member of the set)");
    EXPECT_EQ(refusal([](auto & o) { o.exclude = {"A", "B", "C", "D"}; }), "exclude: no member of the set is left");
    EXPECT_EQ(refusal([](auto & o) { o.min_items = 5; }), "min_items: 5 without repeats, but there are 4 members");
    EXPECT_EQ(refusal([](auto & o) {
                  o.min_items = 4;
                  o.exclude = {"A"};
              }),
              "min_items: 4 without repeats, but there are 3 members");
    EXPECT_EQ(refusal([](auto & o) {
                  o.min_items = 3;
                  o.max_items = 2;
              }),
              "min_items: 3 is more than max_items, 2");
    EXPECT_EQ(refusal([](auto & o) { o.min_items = -1; }), "min_items: -1 is negative");
    EXPECT_EQ(refusal([](auto & o) { o = {OnComplete::end, {kEnd}, {}, 0, 0, true}; }),
              "min_items and unique go with on_complete restart alone");
    EXPECT_EQ(refusal([](auto & o) { o = {OnComplete::release, {}, {}, 0, 1}; }),
              "min_items and unique go with on_complete restart alone");
}

}  // namespace
}  // namespace token_trie::test
