#include "support.h"

#include <algorithm>

namespace token_trie::test {
namespace {

using Named = std::pair<std::string, LeafId>;

std::vector<Named> aliases_of(const Trie & trie) {
    std::vector<Named> out;
    for (const Alias & alias : trie.aliases()) {
        out.emplace_back(alias.name, alias.leaf);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

struct Drawn {
    LeafList whole;
    std::vector<std::shared_ptr<const Trie>> parts;
    std::vector<std::uint64_t> first_rows;
};

// Leaves of few tokens, many of them equal and some empty, in a list and the same cut into parts.
Drawn draw(unsigned seed, bool is_named) {
    std::mt19937 random(seed);
    Drawn out;
    out.whole.vocab = "sha256:x";
    LeafList part = out.whole;
    std::uint64_t first_row = 0;
    const std::size_t n = 1 + random() % 60;
    for (std::size_t i = 0; i < n; ++i) {
        const std::string name = std::to_string(random() % 5);
        for (auto k = random() % 5; k > 0; --k) {
            const auto token = static_cast<Token>(random() % 3);
            out.whole.tokens.push_back(token);
            part.tokens.push_back(token);
        }
        for (LeafList * list : {&out.whole, &part}) {
            list->end_leaf();
            if (is_named) {
                list->names.push_back(name);
            }
        }
        if ((random() % 8 == 0 || i + 1 == n) && !part.tokens.empty()) {
            const std::size_t n_rows = part.size();
            out.parts.push_back(Trie::build(std::move(part), Layout::compact));
            out.first_rows.push_back(first_row);
            first_row += n_rows;
            part = LeafList();
            part.vocab = out.whole.vocab;
        }
    }
    return out;
}

TEST(Merge, PartsOfAListAreTheSetOfTheList) {
    for (unsigned seed = 0; seed < 500; ++seed) {
        const bool is_named = seed % 2 == 0;
        Drawn drawn = draw(seed, is_named);
        if (drawn.parts.empty()) {
            continue;
        }
        const auto whole = Trie::build(std::move(drawn.whole), Layout::compact);
        const auto merged = Trie::merged(drawn.parts, drawn.first_rows);
        ASSERT_EQ(merged->n_leaves(), whole->n_leaves()) << seed;
        ASSERT_EQ(merged->n_nodes(), whole->n_nodes()) << seed;
        EXPECT_EQ(merged->n_tokens(), whole->n_tokens());
        EXPECT_EQ(merged->max_length(), whole->max_length());
        EXPECT_EQ(merged->max_token(), whole->max_token());
        EXPECT_EQ(merged->vocab(), whole->vocab());
        EXPECT_EQ(merged->has_names(), is_named);
        EXPECT_EQ(aliases_of(*merged), aliases_of(*whole)) << seed;
        for (LeafId leaf = 0; leaf < whole->n_leaves(); ++leaf) {
            ASSERT_EQ(merged->sequence(leaf), whole->sequence(leaf)) << seed;
            ASSERT_EQ(merged->name(leaf), whole->name(leaf)) << seed;
            ASSERT_EQ(merged->leaf_node(leaf), whole->leaf_node(leaf)) << seed;
        }
    }
}

TEST(Merge, WhatDoesNotGoTogetherIsRefused) {
    const auto made = [](const char * name, const char * vocab, Layout layout) {
        LeafList leaves;
        leaves.tokens = {1, 2};
        leaves.end_leaf();
        if (name != nullptr) {
            leaves.names.emplace_back(name);
        }
        leaves.vocab = vocab;
        return Trie::build(std::move(leaves), layout);
    };
    const auto named = made("a", "x", Layout::compact);
    EXPECT_THROW(Trie::merged({}, {}), Error);
    EXPECT_THROW(Trie::merged({named, nullptr}, {0, 1}), Error);
    EXPECT_THROW(Trie::merged({named}, {0, 1}), Error);
    EXPECT_THROW(Trie::merged({named, named}, {0, 0}), Error);
    EXPECT_THROW(Trie::merged({named}, {UINT64_MAX}), Error);
    EXPECT_THROW(Trie::merged({named, made("a", "y", Layout::compact)}, {0, 1}), Error);
    EXPECT_THROW(Trie::merged({named, made(nullptr, "x", Layout::compact)}, {0, 1}), Error);
    EXPECT_THROW(Trie::merged({named, made("a", "x", Layout::flat)}, {0, 1}), Error);
}

}  // namespace
}  // namespace token_trie::test
