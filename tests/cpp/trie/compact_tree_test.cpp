#include "trie/compact_tree.h"

#include <algorithm>
#include "support.h"

namespace token_trie::test {
namespace {

Tokens to_vector(TokenSpan span) { return {span.begin(), span.end()}; }

NodeId node_at(const Trie & trie, const Tokens & path) { return trie.descend(path.data(), path.size()); }

bool is_compact(const std::shared_ptr<const Trie> & trie) { return compacted(trie) == trie; }

// The tree that is drawn in compact_tree.h.
std::shared_ptr<const CompactTree> drawn() {
    return compacted(trie_of({{"e", {9, 1}}, {"a", {5}}, {"b", {7}}, {"c", {7, 8, 4, 4}}, {"d", {7, 8, 6}}}));
}

TEST(CompactTree, InnerNodesComeLevelByLevelAndTailsBehindThem) {
    const auto trie = drawn();
    EXPECT_EQ(trie->n_inner(), 3U);
    EXPECT_EQ(trie->n_nodes(), 9U);
    EXPECT_EQ(node_at(*trie, {7}), 1U);
    EXPECT_EQ(node_at(*trie, {7, 8}), 2U);
    EXPECT_EQ(node_at(*trie, {5}), 3U);
    EXPECT_EQ(node_at(*trie, {9}), 4U);
    EXPECT_EQ(node_at(*trie, {9, 1}), 5U);
    EXPECT_EQ(node_at(*trie, {7, 8, 4, 4}), 7U);
    EXPECT_EQ(node_at(*trie, {7, 8, 6}), 8U);
    EXPECT_EQ(to_vector(trie->children(1)), Tokens({8}));
    EXPECT_EQ(to_vector(trie->children(4)), Tokens({1}));
    EXPECT_EQ(to_vector(trie->children(5)), Tokens());
}

TEST(CompactTree, MembersBelowANodeAreNeighbours) {
    const std::shared_ptr<const CompactTree> trie = drawn();
    const CompactTree & tree = *trie;
    const std::vector<std::pair<std::uint64_t, std::uint64_t>> expected = {{0, 5}, {1, 4}, {2, 4}};
    for (NodeId node = 0; node < 3; ++node) {
        const CompactTree::Range range = tree.members(node);
        EXPECT_EQ(std::pair(range.begin, range.end), expected[node]);
    }
    EXPECT_EQ(tree.leaf_of(0), 1U);
    EXPECT_EQ(tree.member_of(0), 4U);
}

void expect_alike(const Trie & flat, const Trie & compact) {
    ASSERT_EQ(compact.n_leaves(), flat.n_leaves());
    ASSERT_EQ(compact.n_nodes(), flat.n_nodes());
    EXPECT_EQ(compact.n_tokens(), flat.n_tokens());
    EXPECT_EQ(compact.max_length(), flat.max_length());
    EXPECT_EQ(compact.max_token(), flat.max_token());
    for (LeafId leaf = 0; leaf < flat.n_leaves(); ++leaf) {
        ASSERT_EQ(compact.name(leaf), flat.name(leaf));
        ASSERT_EQ(compact.sequence(leaf), flat.sequence(leaf));
        ASSERT_EQ(compact.leaf(compact.leaf_node(leaf)), leaf);
    }
    std::vector<std::uint16_t> to_ends(flat.n_nodes());
    for (NodeId node = flat.n_nodes(); node-- > 0;) {
        std::uint16_t least = UINT16_MAX;
        for (std::uint32_t i = 0; i < flat.children(node).size; ++i) {
            least = std::min<std::uint16_t>(least, static_cast<std::uint16_t>(to_ends[flat.child_at(node, i)] + 1));
        }
        to_ends[node] = flat.leaf(node) == kNoLeaf ? least : std::uint16_t{0};
    }
    std::vector<std::pair<NodeId, NodeId>> open{{kRoot, kRoot}};
    while (!open.empty()) {
        const auto [a, b] = open.back();
        open.pop_back();
        ASSERT_EQ(to_vector(compact.children(b)), to_vector(flat.children(a)));
        ASSERT_EQ(compact.leaf(b), flat.leaf(a));
        ASSERT_EQ(compact.tokens_to_end(b), to_ends[a]);
        for (std::uint32_t i = 0; i < flat.children(a).size; ++i) {
            const NodeId below = compact.child_at(b, i);
            const Token token = flat.children(a).data[i];
            ASSERT_EQ(compact.child(b, token), below);
            ASSERT_EQ(compact.parent(below), b);
            ASSERT_EQ(compact.token(below), token);
            ASSERT_GT(below, b);
            open.emplace_back(flat.child_at(a, i), below);
        }
        ASSERT_EQ(compact.child(b, flat.max_token() + 1), kNoNode);
        ASSERT_EQ(compact.child(b, -1), kNoNode);
    }
}

TEST(CompactTree, IsAsAFlatOne) {
    std::mt19937 random(7);
    for (const auto & [n_members, n_tokens, longest] :
         {std::tuple(1, 3, 4), std::tuple(40, 2, 9), std::tuple(300, 3, 7), std::tuple(900, 400, 5),
          std::tuple(200, 2, 300)}) {
        for (const bool is_named : {false, true}) {
            LeafList leaves;
            for (int i = 0; i < n_members; ++i) {
                for (auto k = random() % (static_cast<unsigned>(longest) + 1); k > 0; --k) {
                    leaves.tokens.push_back(static_cast<Token>(random() % static_cast<unsigned>(n_tokens)));
                }
                leaves.end_leaf();
                if (is_named) {
                    leaves.names.push_back(std::string(random() % 3, 'x') + std::to_string(i));
                }
            }
            leaves.tokens.push_back(1);
            leaves.end_leaf();
            if (is_named) {
                leaves.names.emplace_back("last");
            }
            const auto flat = Trie::build(leaves, Layout::flat);
            const auto compact = Trie::build(std::move(leaves), Layout::compact);
            ASSERT_FALSE(is_compact(flat));
            ASSERT_TRUE(is_compact(compact));
            expect_alike(*flat, *compact);
            expect_alike(*flat, *Trie::laid_out(flat, Layout::compact));
            expect_alike(*Trie::laid_out(compact, Layout::flat), *compact);
        }
    }
}

TEST(CompactTree, ASetOfManyLeavesIsOne) {
    LeafList leaves;
    for (Token i = 0; i < static_cast<Token>(kCompactLeaves); ++i) {
        leaves.tokens.insert(leaves.tokens.end(), {i % 256, i / 256});
        leaves.end_leaf();
    }
    EXPECT_TRUE(is_compact(Trie::build(leaves)));
    leaves.tokens.resize(leaves.tokens.size() - 2);
    leaves.offsets.pop_back();
    EXPECT_FALSE(is_compact(Trie::build(leaves)));
}

TEST(CompactTree, TakesAtMost20BytesAMemberOfEightUniformTokens) {
    std::mt19937 random(1);
    LeafList leaves;
    constexpr std::size_t n = 200000;
    for (std::size_t i = 0; i < n; ++i) {
        for (int k = 0; k < 8; ++k) {
            leaves.tokens.push_back(static_cast<Token>(random() % 2048));
        }
        leaves.end_leaf();
    }
    EXPECT_LE(Trie::build(std::move(leaves))->structure_bytes(), n * 20);
}

}  // namespace
}  // namespace token_trie::test
