#include "cursor/cursor.h"

#include "oracle.h"
#include "support.h"

namespace token_trie::test {
namespace {

Cursor cursor_of(const std::shared_ptr<const Trie> & trie, FollowSet::Options options = {}) {
    return {trie, std::make_shared<const FollowSet>(*trie, std::move(options))};
}

std::optional<std::set<Token>> allowed(const Cursor & cursor) {
    const AllowedSet set = cursor.allowed();
    if (set.everything) {
        return std::nullopt;
    }
    std::set<Token> out;
    Token last = -1;
    set.for_each([&](Token token) {
        EXPECT_GT(token, last) << "ascending, each once";
        EXPECT_TRUE(set.contains(token));
        last = token;
        out.insert(token);
        return true;
    });
    return out;
}

using Set = std::set<Token>;
constexpr Token kEnd = 2;
constexpr Token kComma = 3;

//    0
//   7|
//    1*  READ
//   8|
//    2*  READ_FILE
std::shared_ptr<const Trie> read_and_read_file() { return trie_of({{"READ", {7}}, {"READ_FILE", {7, 8}}}); }

TEST(Cursor, UnderReleaseBothALeafAndItsContinuationAreReachable) {
    Cursor cursor = cursor_of(read_and_read_file());
    EXPECT_EQ(allowed(cursor), Set({7}));
    EXPECT_TRUE(cursor.accept(7));
    EXPECT_EQ(cursor.state(), State::constrained) << "READ_FILE is still to be had";
    EXPECT_EQ(allowed(cursor), std::nullopt) << "so is any text after READ";
    Cursor longer = cursor;
    EXPECT_TRUE(cursor.accept(99));
    EXPECT_EQ(cursor.state(), State::complete);
    EXPECT_EQ(cursor.trie().name(cursor.leaf()), "READ");
    EXPECT_TRUE(longer.accept(8));
    EXPECT_EQ(longer.state(), State::complete);
    EXPECT_EQ(longer.trie().name(longer.leaf()), "READ_FILE");
}

TEST(Cursor, UnderEndBothALeafAndItsContinuationAreReachable) {
    Cursor cursor = cursor_of(read_and_read_file(), {OnComplete::end, {kEnd}, {}, 0});
    cursor.accept(7);
    EXPECT_EQ(allowed(cursor), Set({kEnd, 8}));
    Cursor longer = cursor;
    EXPECT_TRUE(cursor.accept(kEnd));
    EXPECT_EQ(cursor.state(), State::complete);
    EXPECT_EQ(cursor.trie().name(cursor.leaf()), "READ");
    longer.accept(8);
    EXPECT_EQ(allowed(longer), Set({kEnd}));
    EXPECT_TRUE(longer.accept(kEnd));
    EXPECT_EQ(longer.trie().name(longer.leaf()), "READ_FILE");
}

TEST(Cursor, UnderRestartBothALeafAndItsContinuationAreReachable) {
    Cursor cursor = cursor_of(read_and_read_file(), {OnComplete::restart, {kEnd}, {kComma, kComma}, 2});
    cursor.accept(7);
    EXPECT_EQ(allowed(cursor), Set({kEnd, kComma, 8}));
    EXPECT_EQ(cursor.n_items(), 1);
    cursor.accept(kComma);
    EXPECT_EQ(allowed(cursor), Set({kComma}));
    cursor.accept(kComma);
    EXPECT_EQ(allowed(cursor), Set({7}));
    cursor.accept(7);
    EXPECT_EQ(allowed(cursor), Set({kEnd, 8})) << "two members at most";
    cursor.accept(8);
    EXPECT_EQ(cursor.n_items(), 2);
    EXPECT_EQ(cursor.trie().name(cursor.leaf()), "READ_FILE");
    EXPECT_TRUE(cursor.accept(kEnd));
    EXPECT_EQ(cursor.state(), State::complete);
}

TEST(Cursor, ATokenOutsideTheAllowedSetEndsTheSpan) {
    Cursor cursor = cursor_of(read_and_read_file(), {OnComplete::end, {kEnd}, {}, 0});
    EXPECT_FALSE(cursor.accept(99));
    EXPECT_EQ(cursor.state(), State::escaped);
    EXPECT_EQ(allowed(cursor), std::nullopt);
    EXPECT_TRUE(cursor.accept(7)) << "no constraint since";
    EXPECT_EQ(cursor.state(), State::escaped);
    cursor.reset();
    EXPECT_EQ(cursor.state(), State::constrained);
    EXPECT_EQ(allowed(cursor), Set({7}));
}

TEST(Cursor, LeafIsTheOneFinishedLast) {
    Cursor cursor = cursor_of(trie_of({{"A", {1}}, {"B", {1, 2, 3}}}));
    EXPECT_EQ(cursor.leaf(), kNoLeaf);
    cursor.accept(1);
    EXPECT_EQ(cursor.leaf(), 0U);
    cursor.accept(2);
    EXPECT_EQ(cursor.leaf(), kNoLeaf) << "under way to B";
    cursor.accept(3);
    EXPECT_EQ(cursor.leaf(), 1U);
}

// A token after a finished leaf means: the leaf's continuation first, then a separator or new member, then the
// end.
TEST(Cursor, ATokenOfTwoMeaningsTakesTheFirstOfThem) {
    const auto trie = trie_of({{"A", {1}}, {"B", {1, 5}}, {"C", {6}}});
    Cursor by_separator = cursor_of(trie, {OnComplete::restart, {5, 6}, {5}, 0});
    by_separator.accept(1);
    by_separator.accept(5);
    EXPECT_EQ(by_separator.leaf(), 1U) << "5 went on to B; it began no separator";
    by_separator.accept(5);
    EXPECT_EQ(by_separator.state(), State::constrained) << "5 was the separator, not the end";
    EXPECT_EQ(allowed(by_separator), Set({1, 6}));

    Cursor by_member = cursor_of(trie, {OnComplete::restart, {6}, {}, 0});
    by_member.accept(1);
    by_member.accept(6);
    EXPECT_EQ(by_member.state(), State::constrained) << "6 began C, not the end";
    EXPECT_EQ(by_member.n_items(), 2);
}

TEST(Cursor, AListOfAllItsItemsAndNoEndTokensIsReleased) {
    Cursor cursor = cursor_of(trie_of({{"A", {1}}}), {OnComplete::restart, {}, {}, 2});
    cursor.accept(1);
    EXPECT_EQ(allowed(cursor), Set({1}));
    cursor.accept(1);
    EXPECT_EQ(cursor.state(), State::complete);
    EXPECT_EQ(cursor.n_items(), 2);
}

TEST(Cursor, RandomWalksAgreeWithTheOracle) {
    constexpr Token n_tokens = 8;
    for (unsigned seed = 1; seed <= 2000; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        RandomCase random(rng, n_tokens);
        const auto trie = unnamed_trie_of(random.members);
        random.exclude_some(rng);
        Cursor cursor = cursor_of(trie, random.options);
        Oracle oracle(random.members, random.options);
        for (int step = 0; step < 32; ++step) {
            const std::optional<std::set<Token>> expected = oracle.allowed();
            ASSERT_EQ(allowed(cursor), expected) << "step " << step;
            ASSERT_TRUE(!expected || !expected->empty()) << "a dead end at step " << step;
            ASSERT_EQ(cursor.state(), oracle.state()) << "step " << step;
            ASSERT_EQ(cursor.n_items(), oracle.n_items()) << "step " << step;
            // Mostly a token that is allowed, at times any.
            auto token = static_cast<Token>(rng() % n_tokens);
            if (expected && rng() % 16 != 0) {
                token = *std::next(expected->begin(), static_cast<std::ptrdiff_t>(rng() % expected->size()));
            }
            ASSERT_EQ(cursor.accept(token), oracle.accept(token)) << "step " << step;
        }
        cursor.reset();
        ASSERT_EQ(allowed(cursor), Oracle(random.members, random.options).allowed());
        ASSERT_EQ(cursor.state(), State::constrained);
        ASSERT_EQ(cursor.n_items(), 0);
        ASSERT_EQ(cursor.leaf(), kNoLeaf);
    }
}

TEST(FollowSet, OptionsThatLeaveNoWayToEndAreRefused) {
    const auto trie = read_and_read_file();
    const auto refusal = [&](FollowSet::Options options) {
        return message_of([&] { FollowSet(*trie, std::move(options)); });
    };
    EXPECT_EQ(refusal({OnComplete::end, {}, {}, 0}), "on_complete end needs end_tokens or a vocabulary that has some");
    EXPECT_EQ(refusal({OnComplete::restart, {}, {kComma}, 0}),
              "on_complete restart needs end_tokens, a vocabulary that has some, max_items, or unique: the list could "
              "never end");
    EXPECT_EQ(refusal({OnComplete::restart, {}, {kComma}, 1}), "");
    EXPECT_EQ(refusal({OnComplete::restart, {kEnd}, {kComma}, -1}), "max_items: -1 is negative");
    EXPECT_EQ(refusal({OnComplete::end, {-1}, {}, 0}),
              "end_tokens, separator and start_after hold token ids, which are not negative");
    EXPECT_EQ(refusal({OnComplete::restart, {kEnd}, {-1}, 0}),
              "end_tokens, separator and start_after hold token ids, which are not negative");
    EXPECT_EQ(refusal({OnComplete::end, {kEnd}, {kComma}, 0}),
              "separator and max_items go with on_complete restart alone");
    EXPECT_EQ(refusal({OnComplete::release, {}, {}, 1}), "separator and max_items go with on_complete restart alone");
    EXPECT_EQ(refusal({OnComplete::release, {kEnd}, {}, 0}), "end_tokens go with on_complete end or restart");
}

}  // namespace
}  // namespace token_trie::test
