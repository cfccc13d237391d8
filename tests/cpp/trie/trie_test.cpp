#include "support.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace token_trie::test {
namespace {

Tokens to_vector(TokenSpan span) { return {span.begin(), span.end()}; }

// Nodes and the tokens that lead to them; a star where a leaf ends.
//
//            0
//          5/ \7
//          1*  2*
//            8/ \9
//            3*  4*
const std::vector<Leaf> kTiny = {{"D", {5}}, {"A", {7}}, {"B", {7, 8}}, {"C", {7, 9}}};

TEST(Trie, ChildrenOfANodeAreNeighboursInAscendingOrder) {
    const auto trie = trie_of(kTiny);
    ASSERT_EQ(trie->n_nodes(), 5U);
    EXPECT_EQ(to_vector(trie->children(0)), Tokens({5, 7}));
    EXPECT_EQ(to_vector(trie->children(1)), Tokens());
    EXPECT_EQ(to_vector(trie->children(2)), Tokens({8, 9}));
    EXPECT_EQ(to_vector(trie->children(3)), Tokens());
    EXPECT_EQ(to_vector(trie->children(4)), Tokens());
}

TEST(Trie, AStepLeadsToTheChildOrNowhere) {
    const auto trie = trie_of(kTiny);
    EXPECT_EQ(trie->child(0, 5), 1U);
    EXPECT_EQ(trie->child(0, 7), 2U);
    EXPECT_EQ(trie->child(2, 9), 4U);
    EXPECT_EQ(trie->child(0, 6), kNoNode);
    EXPECT_EQ(trie->child(0, 8), kNoNode);
    EXPECT_EQ(trie->child(4, 9), kNoNode);
    EXPECT_EQ(trie->child(0, -1), kNoNode);
    const Tokens path = {7, 9, 1};
    EXPECT_EQ(trie->descend(path.data(), 0), kRoot);
    EXPECT_EQ(trie->descend(path.data(), 2), 4U);
    EXPECT_EQ(trie->descend(path.data(), 3), kNoNode);
}

TEST(TokenSpan, FindsWhatIsThereHoweverUnevenlyItIsSpread) {
    std::mt19937 random(1);
    for (const std::size_t n : {1U, 2U, 64U, 65U, 66U, 300U, 5000U}) {
        for (const double skew : {0.1, 1.0, 8.0}) {
            std::set<Token> tokens;
            while (tokens.size() < n) {
                const auto at = std::generate_canonical<double, 32>(random);
                tokens.insert(static_cast<Token>(std::pow(at, skew) * 1e6));
            }
            const Tokens sorted(tokens.begin(), tokens.end());
            const TokenSpan span{sorted.data(), static_cast<std::uint32_t>(n)};
            for (std::uint32_t i = 0; i < n; ++i) {
                ASSERT_EQ(span.find(sorted[i]), i);
                ASSERT_EQ(span.find(sorted[i] + 1), tokens.count(sorted[i] + 1) > 0 ? i + 1 : n);
            }
            ASSERT_EQ(span.find(-1), n);
            ASSERT_EQ(span.find(2'000'000), n);
        }
    }
}

TEST(Trie, LeafIdsFollowTheOrderOfTheList) {
    const auto trie = trie_of({{"z", {9}}, {"a", {1, 2}}, {"m", {1}}});
    ASSERT_EQ(trie->n_leaves(), 3U);
    EXPECT_EQ(trie->n_tokens(), 4U);
    EXPECT_EQ(trie->max_token(), 9);
    const std::vector<Leaf> expected = {{"z", {9}}, {"a", {1, 2}}, {"m", {1}}};
    for (LeafId leaf = 0; leaf < 3; ++leaf) {
        EXPECT_EQ(trie->name(leaf), expected[leaf].name);
        EXPECT_EQ(trie->sequence(leaf), expected[leaf].tokens);
        EXPECT_EQ(trie->leaf(trie->leaf_node(leaf)), leaf);
        EXPECT_STREQ(trie->stored_name(leaf), expected[leaf].name.c_str());
    }
}

TEST(Trie, EmptyLeavesAreSkipped) {
    const auto trie = trie_of({{"nothing", {}}, {"a", {1}}, {"nothing again", {}}});
    ASSERT_EQ(trie->n_leaves(), 1U);
    EXPECT_EQ(trie->name(0), "a");
    EXPECT_EQ(trie->leaf(kRoot), kNoLeaf);
}

TEST(Trie, EqualLeavesBecomeOneUnderTheSmallestNameAtThePlaceOfTheFirst) {
    const auto trie = trie_of({{"m", {1, 2}}, {"other", {3}}, {"b", {1, 2}}, {"z", {1, 2}}, {"b", {1, 2}}});
    ASSERT_EQ(trie->n_leaves(), 2U);
    EXPECT_EQ(trie->name(0), "b");
    EXPECT_EQ(trie->name(1), "other");
    std::set<std::string> aliases;
    for (const Alias & alias : trie->aliases()) {
        EXPECT_EQ(alias.leaf, 0U);
        aliases.insert(alias.name);
    }
    EXPECT_EQ(aliases, std::set<std::string>({"m", "z"}));
}

TEST(Trie, UnnamedLeavesAreCalledByTheirPosition) {
    LeafList leaves;
    leaves.tokens = {4, 4, 6};
    leaves.offsets = {0, 0, 1, 2, 3};  // [], [4], [4], [6]
    const auto trie = Trie::build(leaves);
    ASSERT_EQ(trie->n_leaves(), 2U);
    EXPECT_EQ(trie->stored_name(0), nullptr);
    EXPECT_EQ(trie->name(0), "1");
    EXPECT_EQ(trie->name(1), "3");
    EXPECT_TRUE(trie->aliases().empty());
}

TEST(Trie, WhatCannotBeASetIsRefused) {
    EXPECT_EQ(message_of([] { trie_of({}); }), "no leaf with tokens: a set needs at least one");
    EXPECT_EQ(message_of([] { trie_of({{"a", {}}}); }), "no leaf with tokens: a set needs at least one");
    EXPECT_EQ(message_of([] { trie_of({{"a", {1}}, {"b", {2, -3}}}); }), "leaf \"b\": tokens[1]: -3 is not a token id");
    EXPECT_EQ(message_of([] { trie_of({{"long", Tokens(kMaxLeafTokens + 1, 1)}}); }),
              "leaf \"long\": more than 65535 tokens");
}

TEST(Trie, ALeafMayBeAsLongAsTheLimit) {
    const Tokens tokens(kMaxLeafTokens, 1);
    const auto trie = trie_of({{"long", tokens}});
    EXPECT_EQ(trie->n_nodes(), kMaxLeafTokens + 1);
    EXPECT_EQ(trie->sequence(0), tokens);
}

TEST(Trie, TokensMayBeAsLargeAsTheirType) {
    constexpr Token max = std::numeric_limits<Token>::max();
    const auto trie = trie_of({{"a", {max, max}}, {"b", {max, 0}}, {"c", {0, max}}});
    EXPECT_EQ(to_vector(trie->children(kRoot)), Tokens({0, max}));
    EXPECT_EQ(trie->sequence(0), Tokens({max, max}));
}

TEST(Trie, RandomTriesHoldTheirMembersAndNothingElse) {
    for (unsigned seed = 1; seed <= 200; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const std::set<Tokens> members = random_members(rng, 1 + seed % 40, 5, 2 + static_cast<Token>(seed % 7));
        const auto trie = unnamed_trie_of(members);

        std::set<Tokens> prefixes = {{}};
        for (Tokens path : members) {
            for (; !path.empty(); path.pop_back()) {
                prefixes.insert(path);
            }
        }
        ASSERT_EQ(trie->n_nodes(), prefixes.size());
        ASSERT_EQ(trie->n_leaves(), members.size());
        for (const Tokens & path : prefixes) {
            const NodeId node = trie->descend(path.data(), path.size());
            ASSERT_NE(node, kNoNode);
            Tokens continuations;
            for (Token token = 0; token < 10; ++token) {
                Tokens longer = path;
                longer.push_back(token);
                if (prefixes.count(longer) > 0) {
                    continuations.push_back(token);
                }
            }
            EXPECT_EQ(to_vector(trie->children(node)), continuations);
            ASSERT_EQ(trie->leaf(node) != kNoLeaf, members.count(path) > 0);
            if (trie->leaf(node) != kNoLeaf) {
                EXPECT_EQ(trie->sequence(trie->leaf(node)), path);
            }
        }
    }
}

TEST(Trie, StructureTakesAtMost16BytesANode) {
    for (const std::size_t n_leaves : {1U, 10U, 1000U, 100000U}) {
        for (const std::size_t max_length : {1U, 2U, 8U}) {
            std::mt19937 rng(7);
            const auto trie = unnamed_trie_of(random_members(rng, n_leaves, max_length, 50000));
            EXPECT_LE(trie->structure_bytes(), 16 * std::size_t{trie->n_nodes()})
                << n_leaves << " leaves of up to " << max_length;
            EXPECT_LE(trie->structure_bytes(), trie->total_bytes());
        }
    }
}

TEST(TokenSpan, FindTellsThePositionOrTheSize) {
    const Tokens tokens = {2, 3, 9};
    const TokenSpan span{tokens.data(), 3};
    EXPECT_EQ(span.find(2), 0U);
    EXPECT_EQ(span.find(9), 2U);
    EXPECT_EQ(span.find(4), 3U);
    EXPECT_FALSE(span.contains(10));
    EXPECT_FALSE(TokenSpan().contains(0));
}

}  // namespace
}  // namespace token_trie::test
