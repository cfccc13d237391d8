#include "trie/filter.h"
#include "support.h"

#include <algorithm>
#include <thread>

namespace token_trie::test {
namespace {

using Paths = std::set<std::pair<Tokens, std::string>>;

// Every member that leads from the root, with its name.
Paths members_of(const Trie & trie) {
    Paths out;
    std::vector<std::pair<Tokens, NodeId>> open{{{}, kRoot}};
    while (!open.empty()) {
        const auto [path, node] = std::move(open.back());
        open.pop_back();
        if (const LeafId leaf = trie.leaf(node); leaf != kNoLeaf) {
            out.emplace(path, trie.name(leaf));
        }
        const TokenSpan children = trie.children(node);
        for (std::uint32_t i = 0; i < children.size; ++i) {
            Tokens longer = path;
            longer.push_back(children.data[i]);
            EXPECT_EQ(trie.child(node, children.data[i]), trie.child_at(node, i));
            open.emplace_back(std::move(longer), trie.child_at(node, i));
        }
    }
    return out;
}

struct Drawn {
    std::shared_ptr<const Trie> trie;
    std::vector<Leaf> leaves;
};

Drawn draw(unsigned seed, std::size_t n) {
    std::mt19937 random(seed);
    std::set<Tokens> words;
    while (words.size() < n) {
        Tokens word;
        for (auto k = 1 + random() % 6; k > 0; --k) {
            word.push_back(static_cast<Token>(random() % 5));
        }
        words.insert(word);
    }
    Drawn out;
    for (const Tokens & word : words) {
        out.leaves.push_back({std::to_string(out.leaves.size()), word});
    }
    std::shuffle(out.leaves.begin(), out.leaves.end(), random);
    out.trie = Trie::build(leaf_list(out.leaves), Layout::compact);
    return out;
}

TEST(Filter, LeavesWhatItKeepsAndNothingElse) {
    for (unsigned seed = 1; seed <= 60; ++seed) {
        SCOPED_TRACE(seed);
        const Drawn drawn = draw(seed, 1 + seed * 3);
        std::mt19937 random(seed);
        std::vector<std::uint8_t> keep(drawn.leaves.size());
        Paths expected;
        for (std::size_t i = 0; i < keep.size(); ++i) {
            keep[i] = random() % (1 + seed % 7) == 0 || i == seed % keep.size() ? 255 : 0;
            if (keep[i] != 0) {
                expected.emplace(drawn.leaves[i].tokens, drawn.leaves[i].name);
            }
        }
        const auto left = Trie::filtered(drawn.trie, keep.data());
        EXPECT_EQ(members_of(*left), expected);
        EXPECT_EQ(left->n_members(), expected.size());
        EXPECT_EQ(left->n_leaves(), drawn.leaves.size());
        EXPECT_EQ(members_of(*Trie::laid_out(left, Layout::by_size)), expected);
        for (LeafId leaf = 0; leaf < left->n_leaves(); ++leaf) {
            EXPECT_EQ(left->has_leaf(leaf), keep[leaf] != 0);
        }
    }
}

TEST(Filter, ThreadsThatAskForTheSameNodesSeeTheSame) {
    const Drawn drawn = draw(3, 900);
    std::vector<std::uint8_t> keep(drawn.leaves.size());
    for (std::size_t i = 0; i < keep.size(); i += 3) {
        keep[i] = 1;
    }
    for (int round = 0; round < 20; ++round) {
        const auto left = Trie::filtered(drawn.trie, keep.data());
        std::vector<Paths> seen(4);
        std::vector<std::thread> threads;
        threads.reserve(seen.size());
        for (Paths & paths : seen) {
            threads.emplace_back([&paths, &left] { paths = members_of(*left); });
        }
        for (std::thread & thread : threads) {
            thread.join();
        }
        for (const Paths & paths : seen) {
            ASSERT_EQ(paths, seen.front());
        }
        ASSERT_EQ(seen.front().size(), left->n_members());
    }
}

}  // namespace
}  // namespace token_trie::test
