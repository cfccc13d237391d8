#include "cursor/remainder.h"
#include "support.h"
#include "trie/views.h"

#include <algorithm>
#include <map>
#include <thread>

namespace token_trie::test {
namespace {

// Every member that leads from the root, with its leaf; and that edges and nodes lead both ways.
std::map<Tokens, LeafId> members_of(const Trie & trie) {
    std::map<Tokens, LeafId> out;
    std::vector<std::pair<Tokens, NodeId>> open{{{}, kRoot}};
    while (!open.empty()) {
        const auto [path, node] = std::move(open.back());
        open.pop_back();
        EXPECT_LT(node, trie.n_nodes());
        if (const LeafId leaf = trie.leaf(node); leaf != kNoLeaf) {
            out.emplace(path, leaf);
            EXPECT_EQ(trie.leaf_node(leaf), node);
            EXPECT_EQ(trie.sequence(leaf), path);
        }
        const TokenSpan children = trie.children(node);
        EXPECT_TRUE(std::is_sorted(children.begin(), children.end()));
        for (std::uint32_t i = 0; i < children.size; ++i) {
            const EdgeId edge = trie.edge_at(node, i);
            const NodeId child = trie.child_at(node, i);
            EXPECT_EQ(trie.edge_by(node, children.data[i]), edge);
            EXPECT_EQ(trie.child(node, children.data[i]), child);
            EXPECT_EQ(trie.token_of(edge), children.data[i]);
            EXPECT_EQ(trie.source(edge), node);
            EXPECT_EQ(trie.edge_to(child), edge);
            Tokens longer = path;
            longer.push_back(children.data[i]);
            open.emplace_back(std::move(longer), child);
        }
    }
    return out;
}

struct Two {
    std::shared_ptr<const Trie> base;
    std::shared_ptr<const Trie> more;
    std::vector<Tokens> members;  // base's leaves and then more's
};

Two draw(unsigned seed, std::size_t n) {
    std::mt19937 rng(seed);
    const std::set<Tokens> all = random_members(rng, n, 6, 4);
    Two out;
    std::vector<Leaf> leaves[2];
    std::vector<Tokens> order(all.begin(), all.end());
    std::shuffle(order.begin(), order.end(), rng);
    for (std::size_t i = 0; i < order.size(); ++i) {
        const std::size_t which = i == 0 ? 0 : i == 1 ? 1 : rng() % 3 == 0 ? 1 : 0;
        leaves[which].push_back({"m" + std::to_string(i), order[i]});
    }
    out.base = Trie::build(leaf_list(leaves[0]), Layout::compact);
    out.more = Trie::build(leaf_list(leaves[1]), seed % 2 == 0 ? Layout::flat : Layout::compact);
    for (const auto & some : leaves) {
        for (const Leaf & leaf : some) {
            out.members.push_back(leaf.tokens);
        }
    }
    return out;
}

TEST(Joined, IsTheTreeOfBoth) {
    for (unsigned seed = 1; seed <= 80; ++seed) {
        SCOPED_TRACE(seed);
        const Two two = draw(seed, 2 + seed);
        std::mt19937 rng(seed);
        std::vector<std::uint8_t> keep(two.base->n_leaves());
        std::generate(keep.begin(), keep.end(), [&] { return rng() % 3 != 0 ? 1 : 0; });
        const auto joined = Trie::joined(two.base, two.more, keep.data());
        std::map<Tokens, LeafId> expected;
        for (LeafId leaf = 0; leaf < two.members.size(); ++leaf) {
            const bool is_kept = leaf >= keep.size() || keep[leaf] != 0;
            EXPECT_EQ(joined->has_leaf(leaf), is_kept);
            if (is_kept) {
                expected.emplace(two.members[leaf], leaf);
            }
        }
        EXPECT_EQ(members_of(*joined), expected);
        EXPECT_EQ(joined->n_members(), expected.size());
        // And filtered once more.
        std::vector<std::uint8_t> again(two.members.size());
        std::generate(again.begin(), again.end(), [&] { return rng() % 2 != 0 ? 1 : 0; });
        for (auto at = expected.begin(); at != expected.end();) {
            at = again[at->second] != 0 ? std::next(at) : expected.erase(at);
        }
        if (expected.empty()) {
            EXPECT_EQ(status_of([&] { Trie::filtered(joined, again.data()); }), Status::argument);
            continue;
        }
        const auto left = Trie::filtered(joined, again.data());
        EXPECT_EQ(members_of(*left), expected);
        const auto alone = Trie::laid_out(left, Layout::by_size);
        EXPECT_FALSE(alone->is_view());
        ASSERT_EQ(alone->n_leaves(), expected.size());
        for (const auto & [tokens, leaf] : expected) {
            EXPECT_EQ(alone->name(alone->leaf(alone->descend(tokens.data(), tokens.size()))), left->name(leaf));
        }
    }
}

TEST(Joined, LosesMembersAsAnyTreeDoes) {
    for (unsigned seed = 1; seed <= 40; ++seed) {
        SCOPED_TRACE(seed);
        const Two two = draw(seed, 3 + seed);
        const auto joined = Trie::joined(two.base, two.more);
        const auto plain = Trie::laid_out(joined, Layout::flat);
        std::mt19937 rng(seed);
        std::vector<LeafId> out;
        for (LeafId leaf = 0; leaf < joined->n_leaves(); ++leaf) {
            if (rng() % 2 == 0) {
                out.push_back(leaf);
            }
        }
        const auto left = Remainder::of(*joined, out, true);
        const auto expected = Remainder::of(*plain, out, true);
        ASSERT_EQ(left->empty(), expected->empty());
        std::vector<std::pair<NodeId, NodeId>> open{{kRoot, kRoot}};
        while (!open.empty() && !left->empty()) {
            const auto [a, b] = open.back();
            open.pop_back();
            EXPECT_EQ(left->has_member_at(*joined, a), expected->has_member_at(*plain, b));
            const TokenSpan children = joined->children(a);
            for (std::uint32_t i = 0; i < children.size; ++i) {
                ASSERT_EQ(left->is_out(a, children.data[i]), expected->is_out(b, children.data[i]));
                if (!left->is_out(a, children.data[i])) {
                    open.emplace_back(joined->child_at(a, i), plain->child_at(b, i));
                }
            }
        }
    }
}

TEST(Joined, MayBeAskedByManyThreads) {
    const Two two = draw(7, 200);
    const auto joined = Trie::joined(two.base, two.more);
    const std::size_t n = two.members.size();
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] { EXPECT_EQ(members_of(*joined).size(), n); });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
}

TEST(Joined, WhatCannotBeIsRefused) {
    const auto a = trie_of({{"A", {1}}, {"B", {2, 3}}});
    const auto b = trie_of({{"C", {2, 3}}});
    EXPECT_EQ(message_of([&] { Trie::joined(a, b); }), "a member of both sets: \"C\"");
    const std::uint8_t keep[] = {0, 0};
    const auto one = Trie::joined(a, b, keep);
    EXPECT_EQ(members_of(*one), (std::map<Tokens, LeafId>{{{2, 3}, 2}}));
    EXPECT_EQ(status_of([&] { Trie::joined(one, trie_of({{"D", {9}}})); }), Status::argument);
}

TEST(Joined, NamesLeadToLeaves) {
    const std::uint8_t keep[] = {1, 0, 1};
    const auto joined = Trie::joined(trie_of({{"A", {1}}, {"B", {2}}, {"A", {3}}}), trie_of({{"B", {4}}}), keep);
    using Found = std::vector<std::pair<std::size_t, LeafId>>;
    EXPECT_EQ(joined->leaves_named({"A", "C", "B", "A"}), (Found{{0, 0}, {0, 2}, {2, 3}, {3, 0}, {3, 2}}));
}

}  // namespace
}  // namespace token_trie::test
