#include "cursor/matcher.h"

#include "oracle.h"
#include "support.h"

#include <climits>

namespace token_trie::test {
namespace {

constexpr Token kEnd = 2;
constexpr std::int32_t kVocab = 40;

Matcher matcher_of(const std::shared_ptr<const Trie> & trie,
                   FollowSet::Options options,
                   std::int32_t n_vocab = kVocab) {
    return {Cursor(trie, std::make_shared<const FollowSet>(*trie, std::move(options))), n_vocab};
}

//    0
//   7|
//    1*  READ
//   8|
//    2*  READ_FILE
Matcher read_or_read_file(FollowSet::Options options = {OnComplete::end, {kEnd}, {}, 0}) {
    return matcher_of(trie_of({{"READ", {7}}, {"READ_FILE", {7, 8}}}), std::move(options));
}

std::set<Token> allowed(const Matcher & matcher) {
    std::set<Token> out;
    matcher.for_each_allowed([&](Token token) { out.insert(token); });
    return out;
}

std::set<Token> masked_in(const Matcher & matcher) {
    std::vector<std::int32_t> words(matcher.n_words(), 0x55555555);
    matcher.fill(words.data());
    std::set<Token> out;
    for (Token token = 0; token < matcher.n_vocab(); ++token) {
        const auto word = static_cast<std::uint32_t>(words[static_cast<std::size_t>(token) / 32]);
        if ((word >> static_cast<std::uint32_t>(token) % 32 & 1U) != 0) {
            out.insert(token);
        }
    }
    return out;
}

std::set<Token> all_tokens(std::int32_t n_vocab = kVocab) {
    std::set<Token> out;
    for (Token token = 0; token < n_vocab; ++token) {
        out.insert(token);
    }
    return out;
}

using Set = std::set<Token>;

TEST(Matcher, AWalkByHand) {
    Matcher matcher = read_or_read_file();
    EXPECT_EQ(allowed(matcher), Set({7}));
    EXPECT_EQ(matcher.forced(10), Tokens({7}));
    EXPECT_FALSE(matcher.accept(8)) << "not allowed, and nothing has changed";
    EXPECT_EQ(allowed(matcher), Set({7}));
    EXPECT_TRUE(matcher.accept(7));
    EXPECT_EQ(allowed(matcher), Set({kEnd, 8}));
    EXPECT_EQ(matcher.forced(10), Tokens());
    EXPECT_TRUE(matcher.accept(8));
    EXPECT_EQ(masked_in(matcher), Set({kEnd}));
    EXPECT_EQ(matcher.forced(10), Tokens()) << "an end token is the host's to add";
    EXPECT_FALSE(matcher.is_terminated());
    EXPECT_TRUE(matcher.accept(kEnd));
    EXPECT_TRUE(matcher.is_terminated());
    EXPECT_EQ(masked_in(matcher), Set({kEnd}));
}

TEST(Matcher, BehindTheEndEndTokensAreCountedAndOthersRefused) {
    Matcher matcher = read_or_read_file();
    const Tokens tokens{7, kEnd, kEnd, kEnd, 7};
    EXPECT_EQ(matcher.accept_all(tokens.data(), tokens.size()), 4U);
    EXPECT_EQ(message_of([&] { matcher.accept(7); }), "7 comes after the end, where only end tokens may");
    matcher.rollback(2);
    EXPECT_TRUE(matcher.is_terminated());
    matcher.rollback(1);
    EXPECT_EQ(allowed(matcher), Set({kEnd, 8}));
    EXPECT_EQ(message_of([&] { matcher.rollback(2); }), "2 tokens to take back of 1 accepted");
    matcher.rollback(1);
    EXPECT_EQ(allowed(matcher), Set({7}));
    matcher.rollback(0);
}

TEST(Matcher, AReleasedSpanAllowsEverythingAndTakesItBack) {
    Matcher matcher = read_or_read_file({});
    EXPECT_TRUE(matcher.accept(7));
    std::vector<std::int32_t> words(matcher.n_words());
    EXPECT_FALSE(matcher.fill(words.data())) << "no need to apply it";
    EXPECT_EQ(words, std::vector<std::int32_t>(2, -1));
    for (const Token free : {30, 31, 32}) {
        EXPECT_TRUE(matcher.accept(free));
    }
    EXPECT_FALSE(matcher.is_terminated());
    EXPECT_EQ(allowed(matcher), all_tokens());
    matcher.rollback(3);
    EXPECT_TRUE(matcher.accept(8)) << "READ_FILE is still to be had";
    matcher.rollback(2);
    EXPECT_EQ(allowed(matcher), Set({7}));
}

TEST(Matcher, TokensOutsideTheVocabularyAreNamedAndNoneIsTaken) {
    Matcher matcher = read_or_read_file();
    const Tokens tokens{7, 40};
    EXPECT_EQ(message_of([&] { matcher.accept_all(tokens.data(), 2); }),
              "tokens[1]: 40 is outside the vocabulary (40 tokens)");
    EXPECT_EQ(message_of([&] { matcher.accept(-1); }), "-1 is outside the vocabulary (40 tokens)");
    EXPECT_EQ(matcher.n_accepted(), 0U);
    EXPECT_EQ(message_of([] { matcher_of(trie_of({{"a", {7}}, {"b", {40}}}), {}); }),
              "leaf \"b\": tokens[0]: 40 is outside the vocabulary (40 tokens)");
    EXPECT_EQ(message_of([] { matcher_of(trie_of({{"a", {7}}}), {OnComplete::end, {99}, {}, 0}); }),
              "end_tokens[0]: 99 is outside the vocabulary (40 tokens)");
    EXPECT_EQ(message_of([] { matcher_of(trie_of({{"a", {7}}}), {}, 0); }), "n_vocab: 0 is no size of a vocabulary");
}

TEST(Matcher, ForcedTokensRunOverSeparatorsAndAreBounded) {
    const Matcher matcher =
        matcher_of(trie_of({{"a", {7, 8}}}), {OnComplete::restart, {kEnd}, {3}, 0, /* min_items = */ INT_MAX});
    EXPECT_EQ(matcher.forced(5), Tokens({7, 8, 3, 7, 8}));
    EXPECT_EQ(matcher.forced(0), Tokens());
}

TEST(Matcher, AListAsLongAsMaxSpanEndsAndGoesOnWhereTokensAreTakenBack) {
    FollowSet::Options options{OnComplete::restart, {kEnd}, {3}, 0};
    options.max_span = 3;
    Matcher matcher = matcher_of(trie_of({{"a", {7}}, {"b", {8}}}), options);
    const Tokens tokens{7, 3, 8};
    EXPECT_EQ(matcher.accept_all(tokens.data(), tokens.size()), 3U);
    EXPECT_EQ(allowed(matcher), Set({kEnd}));
    matcher.rollback(2);
    EXPECT_EQ(allowed(matcher), Set({kEnd, 3}));
}

TEST(Matcher, WhereThoughtMustEndTheMarkerIsForced) {
    FollowSet::Options options{OnComplete::end, {kEnd}, {}, 0};
    options.start_after = {20, 21};
    options.max_before = 3;
    options.not_before = {kEnd};
    Matcher matcher = matcher_of(trie_of({{"a", {7}}}), options);
    std::set<Token> free = all_tokens();
    free.erase(kEnd);
    EXPECT_EQ(allowed(matcher), free);
    EXPECT_EQ(masked_in(matcher), free);
    EXPECT_FALSE(matcher.accept(kEnd));
    for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(matcher.accept(5));
    }
    EXPECT_EQ(matcher.forced(10), Tokens({20, 21, 7}));
    matcher.rollback(1);
    EXPECT_EQ(allowed(matcher), free);
}

TEST(Matcher, ALongSpanIsTakenBackToAnyPlace) {
    FollowSet::Options options{OnComplete::end, {kEnd}, {}, 0};
    options.start_after = {20};
    options.max_before = 1000;
    Matcher matcher = matcher_of(trie_of({{"a", {7}}}), options);
    for (int i = 0; i < 1000; ++i) {
        ASSERT_TRUE(matcher.accept(5));
    }
    for (const std::uint64_t kept : {999U, 768U, 767U, 513U, 512U, 511U, 300U, 256U, 255U, 1U}) {
        matcher.rollback(matcher.n_accepted() - kept);
        Matcher again = matcher;
        for (std::uint64_t i = kept; i < 1000; ++i) {
            ASSERT_EQ(again.forced(1), Tokens()) << kept << " kept";
            again.accept(5);
        }
        EXPECT_EQ(again.forced(1), Tokens({20})) << kept << " kept, and the budget is used up at the same place";
    }
}

// Every answer of a matcher beside one that was made anew and accepted the same, and beside the oracle.
TEST(Matcher, RandomWalksWithRollbacksAgreeWithTheOracle) {
    constexpr Token n_tokens = 6;
    for (unsigned seed = 0; seed < 3000; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const RandomCase drawn(rng, n_tokens);
        Matcher matcher = matcher_of(unnamed_trie_of(drawn.members), drawn.options, n_tokens);
        Tokens accepted;
        for (int step = 0; step < 30; ++step) {
            Oracle oracle(drawn.members, drawn.options);
            for (const Token token : accepted) {
                oracle.accept(token);
            }
            const bool is_terminated = oracle.state() == State::complete && !drawn.options.end_tokens.empty();
            const Set ends(drawn.options.end_tokens.begin(), drawn.options.end_tokens.end());
            const Set expected = is_terminated ? ends : oracle.allowed().value_or(all_tokens(n_tokens));
            ASSERT_EQ(matcher.is_terminated(), is_terminated);
            ASSERT_EQ(allowed(matcher), expected);
            ASSERT_EQ(masked_in(matcher), expected);
            ASSERT_EQ(matcher.n_accepted(), accepted.size());
            if (rng() % 4 == 0) {
                const std::size_t n = rng() % (accepted.size() + 1);
                matcher.rollback(n);
                accepted.resize(accepted.size() - n);
                continue;
            }
            const auto token = static_cast<Token>(rng() % n_tokens);
            if (expected.count(token) > 0) {
                ASSERT_TRUE(matcher.accept(token));
                accepted.push_back(token);
            } else {
                ASSERT_EQ(matcher.accept_all(&token, 1), 0U);
            }
        }
        matcher.reset();
        EXPECT_EQ(matcher.n_accepted(), 0U);
    }
}

}  // namespace
}  // namespace token_trie::test
