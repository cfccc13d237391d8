#include "stream/pass_cost.h"

#include <gtest/gtest.h>

namespace token_trie::test {
namespace {

PassCost after(std::size_t n_passes, double of_a_pass, double of_a_row) {
    PassCost cost;
    for (std::size_t i = 0; i < n_passes; ++i) {
        const std::size_t n_rows = 1 + i * 7 % 16;
        cost.add(n_rows, of_a_pass + of_a_row * static_cast<double>(n_rows));
    }
    return cost;
}

TEST(PassCostTest, IsExpectedToBeFourRowsUntilPassesOfDifferentSizesSayOtherwise) {
    EXPECT_EQ(PassCost().overhead(), 4);
    EXPECT_NEAR(after(1, 1e6, 1e6).overhead(), 4, 1e-9);
    EXPECT_NEAR(after(1, 1e6, 0).overhead(), 4, 1e-9);
}

TEST(PassCostTest, IsWhereTheLineThroughTheLatestPassesBegins) {
    EXPECT_NEAR(after(200, 12e6, 2e6).overhead(), 6, 0.1);
    PassCost cost = after(200, 12e6, 2e6);
    for (std::size_t i = 0; i < 200; ++i) {
        cost.add(1 + i % 16, 80e6 + 2e6 * static_cast<double>(1 + i % 16));
    }
    EXPECT_NEAR(cost.overhead(), 40, 1) << "of a sequence that has grown";
}

TEST(PassCostTest, StaysWithinItsBounds) {
    EXPECT_EQ(after(200, 1e6, 0).overhead(), 64);
    EXPECT_EQ(after(200, 1e9, 1).overhead(), 64);
    EXPECT_EQ(after(200, 0, 1e6).overhead(), 3);
    EXPECT_EQ(after(200, 0, 0).overhead(), 64) << "a clock that stands";
    EXPECT_EQ(after(200, 1e6, -1e4).overhead(), 64) << "more rows in less time";
}

}  // namespace
}  // namespace token_trie::test
