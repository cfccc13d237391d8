#include "trie/tensors.h"
#include "support.h"

namespace token_trie::test {
namespace {

// All members that the arrays lead to.
std::set<Tokens> members_of(const Tensors & tensors) {
    std::set<Tokens> out;
    struct Open {
        Tokens path;
        std::int32_t target;
    };
    std::vector<Open> open{{{}, 0}};
    while (!open.empty()) {
        const auto [path, target] = std::move(open.back());
        open.pop_back();
        Tokens longer = path;
        if (target == Tensors::kComplete) {
            out.insert(path);
        } else if (target < 0) {
            const std::int32_t place = ~target;
            const Token tail = tensors.tails[static_cast<std::size_t>(place)];
            longer.push_back(tail < 0 ? ~tail : tail);
            open.push_back({longer, tail < 0 ? Tensors::kComplete : target - 1});
        } else {
            const auto row = static_cast<std::size_t>(target);
            if (tensors.ends[row] != 0) {
                out.insert(path);
            }
            longer.push_back(0);
            for (auto edge = static_cast<std::size_t>(tensors.first[row]);
                 edge < static_cast<std::size_t>(tensors.first[row + 1]); ++edge) {
                longer.back() = tensors.tokens[edge];
                open.push_back({longer, tensors.targets[edge]});
            }
        }
    }
    return out;
}

TEST(Tensors, AreAsDrawn) {
    const Tensors made = to_tensors(
        Trie::build(leaf_list({{"A", {5}}, {"B", {7}}, {"C", {7, 8, 4, 4}}, {"D", {7, 8, 6}}}), Layout::compact));
    EXPECT_EQ(made.first, (std::vector<std::int32_t>{0, 2, 3, 5}));
    EXPECT_EQ(made.tokens, (Tokens{5, 7, 8, 4, 6}));
    EXPECT_EQ(made.targets, (std::vector<std::int32_t>{Tensors::kComplete, 1, 2, ~0, Tensors::kComplete}));
    EXPECT_EQ(made.tails, (Tokens{~4}));
    EXPECT_EQ(made.ends, (std::vector<std::uint8_t>{0, 1, 0}));
}

TEST(Tensors, HoldTheMembersOfEitherLayoutAndOfWhatAFilterLeaves) {
    for (unsigned seed = 1; seed <= 50; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 rng(seed);
        const std::set<Tokens> members = random_members(rng, 1 + seed * 2, 6, 5);
        const auto trie = unnamed_trie_of(members);
        EXPECT_EQ(members_of(to_tensors(Trie::laid_out(trie, Layout::flat))), members);
        const auto compact = Trie::laid_out(trie, Layout::compact);
        EXPECT_EQ(members_of(to_tensors(compact)), members);
        std::vector<std::uint8_t> keep(trie->n_leaves());
        std::set<Tokens> kept;
        for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
            keep[leaf] = leaf == 0 || rng() % 3 == 0 ? 1 : 0;
            if (keep[leaf] != 0) {
                kept.insert(compact->sequence(leaf));
            }
        }
        EXPECT_EQ(members_of(to_tensors(Trie::filtered(compact, keep.data()))), kept);
    }
}

}  // namespace
}  // namespace token_trie::test
