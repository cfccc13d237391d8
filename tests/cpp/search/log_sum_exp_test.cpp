#include "search/scorer.h"

#include "support.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace token_trie::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double by_definition(const std::vector<float> & values) {
    const float max = *std::max_element(values.begin(), values.end());
    long double sum = 0;
    for (const float value : values) {
        sum += std::exp(static_cast<long double>(value) - max);
    }
    return static_cast<double>(std::log(sum) + max);
}

double log_sum_exp(const std::vector<float> & values) { return token_trie::log_sum_exp(values.data(), values.size()); }

TEST(LogSumExp, IsTheDefinitionAtEverySizeAndScale) {
    std::mt19937 rng(1);
    for (const std::size_t n : {1U, 2U, 15U, 16U, 17U, 1023U, 1024U, 1025U, 50000U}) {
        for (const float scale : {0.01F, 1.0F, 10.0F, 1000.0F}) {
            std::vector<float> values = random_logits(rng, n);
            for (float & value : values) {
                value *= scale;
            }
            EXPECT_NEAR(log_sum_exp(values), by_definition(values), 1e-6 + 1e-7 * scale) << n << " values x " << scale;
        }
    }
}

TEST(LogSumExp, ShiftsWithItsValues) {
    const std::vector<float> values = {1, 2, 3};
    for (const float shift : {-10000.0F, 10000.0F}) {
        EXPECT_NEAR(log_sum_exp({1 + shift, 2 + shift, 3 + shift}), log_sum_exp(values) + shift, 1e-3);
    }
}

TEST(LogSumExp, TakesWhatIsNoNumberForNothing) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_NEAR(log_sum_exp({0, nan, -kInfinity, 0}), std::log(2.0), 1e-6);
    EXPECT_EQ(log_sum_exp({nan, -kInfinity}), kInfinity);
    EXPECT_EQ(log_sum_exp({0, kInfinity}), kInfinity);
}

}  // namespace
}  // namespace token_trie::test
