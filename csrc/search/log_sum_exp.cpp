#include "search/scorer.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// Compiled once for each width of vector instructions, of which the loader takes the processor's widest. A sanitizer is
// not ready when the loader asks.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TOKEN_TRIE_FOR_ALL_WIDTHS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TOKEN_TRIE_FOR_ALL_WIDTHS
#endif

namespace [[gnu::visibility("default")]] token_trie {
namespace {

constexpr std::size_t kLanes = 16;

// e^x for x in [-87, 0], without a branch or a call, so that a loop over it becomes vector instructions: x = n ln 2 + r
// with |r| <= ln 2 / 2, e^r by its Taylor series to r^6 (relative error below 2e-7), 2^n by adding n to the exponent.
inline float exp_of(float x) noexcept {
    constexpr float kLog2E = 1.44269504F;
    constexpr float kLn2High = 0.693359375F;
    constexpr float kLn2Low = -2.12194440e-4F;
    constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    const float n = x * kLog2E + kRound - kRound;
    const float r = x - n * kLn2High - n * kLn2Low;
    const float e_r =
        1 + r * (1 + r * (1.0F / 2 + r * (1.0F / 6 + r * (1.0F / 24 + r * (1.0F / 120 + r * (1.0F / 720))))));
    std::int32_t bits = 0;
    std::memcpy(&bits, &e_r, sizeof bits);
    bits += static_cast<std::int32_t>(n) * (1 << 23);
    float out = 0;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

TOKEN_TRIE_FOR_ALL_WIDTHS float max_of(const float * values, std::size_t n) noexcept {
    float lanes[kLanes];
    for (float & lane : lanes) {
        lane = -std::numeric_limits<float>::infinity();
    }
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (std::size_t j = 0; j < kLanes; ++j) {
            lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
        }
    }
    for (; i < n; ++i) {
        lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
    }
    float max = lanes[0];
    for (const float lane : lanes) {
        max = lane > max ? lane : max;
    }
    return max;
}

}  // namespace

TOKEN_TRIE_FOR_ALL_WIDTHS double log_sum_exp(const float * values, std::size_t n) noexcept {
    const float max = max_of(values, n);
    if (!std::isfinite(max)) {
        return std::numeric_limits<double>::infinity();
    }
    // A value that is further below the maximum adds less than 1e-37.
    const auto term = [max](float value) {
        const float x = value - max;
        return exp_of(x > -87.0F ? x : -87.0F);
    };
    double sum = 0;
    std::size_t i = 0;
    while (i + kLanes <= n) {
        // In float as long as the error stays far below the terms', then in double.
        float lanes[kLanes] = {};
        const std::size_t end = i + 64 * kLanes;
        for (; i + kLanes <= n && i < end; i += kLanes) {
            for (std::size_t j = 0; j < kLanes; ++j) {
                lanes[j] += term(values[i + j]);
            }
        }
        for (const float lane : lanes) {
            sum += static_cast<double>(lane);
        }
    }
    for (; i < n; ++i) {
        sum += static_cast<double>(term(values[i]));
    }
    return static_cast<double>(max) + std::log(sum);
}

}  // namespace token_trie
