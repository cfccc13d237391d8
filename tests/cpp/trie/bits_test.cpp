#include "trie/bits.h"

#include <gtest/gtest.h>

#include <random>

namespace token_trie::test {
namespace {

struct Written {
    std::vector<bool> bits;
    std::vector<std::uint64_t> words;
    std::vector<std::uint64_t> hints;
    std::uint64_t n_ones = 0;

    Bits view() const { return Bits({words.data(), words.size()}, bits.size(), n_ones); }
    Bits hinted() const {
        return Bits({words.data(), words.size()}, bits.size(), n_ones, {hints.data(), hints.size()});
    }
};

Written random_bits(std::size_t n, unsigned of_a_thousand, unsigned seed) {
    std::mt19937 random(seed);
    Written out;
    BitsBuilder builder;
    for (std::size_t i = 0; i < n; ++i) {
        out.bits.push_back(random() % 1000 < of_a_thousand);
        builder.push(out.bits.back());
    }
    out.n_ones = builder.n_ones();
    out.hints = builder.hints();
    out.words = builder.take();
    return out;
}

TEST(Bits, RankSelectAndNextAreThoseOfCounting) {
    for (const std::size_t n : {0U, 1U, 63U, 64U, 447U, 448U, 449U, 512U, 5000U}) {
        for (const unsigned share : {0U, 3U, 500U, 1000U}) {
            const Written written = random_bits(n, share, static_cast<unsigned>(n));
            const Bits bits = written.view();
            const Bits hinted = written.hinted();
            ASSERT_EQ(written.words.size(), Bits::n_words(n));
            ASSERT_EQ(written.hints.size(), Bits::n_hint_words(written.n_ones));
            ASSERT_TRUE(bits.is_consistent());
            std::uint64_t ones = 0;
            for (std::size_t i = 0; i <= n; ++i) {
                ASSERT_EQ(bits.rank(i), ones);
                if (i == n) {
                    break;
                }
                ASSERT_EQ(bits[i], written.bits[i]);
                ASSERT_EQ(written.bits[i] ? bits.select(ones) : bits.select_zero(i - ones), i);
                ASSERT_TRUE(!written.bits[i] || hinted.select(ones) == i);
                ones += written.bits[i] ? 1 : 0;
            }
            ASSERT_EQ(bits.select(ones), n);
            ASSERT_EQ(hinted.select(ones), n);
            ASSERT_EQ(bits.select_zero(n - ones), n);
            std::uint64_t next = n;
            for (std::size_t i = n; i-- > 0;) {
                next = written.bits[i] ? i : next;
                ASSERT_EQ(bits.next(i), next);
            }
        }
    }
}

TEST(Bits, SelectFindsOnesThatLieTogether) {
    std::mt19937 random(1);
    BitsBuilder builder;
    std::vector<std::uint64_t> ones;
    for (std::uint64_t i = 0; i < 300'000; ++i) {
        const bool one = i / 10'000 % 7 == 6 ? random() % 2 == 0 : random() % 5000 == 0;
        builder.push(one);
        if (one) {
            ones.push_back(i);
        }
    }
    const std::vector<std::uint64_t> hints = builder.hints();
    const std::vector<std::uint64_t> words = builder.take();
    const Words held{words.data(), words.size()};
    const Bits bits(held, 300'000, ones.size());
    const Bits hinted(held, 300'000, ones.size(), {hints.data(), hints.size()});
    for (std::size_t k = 0; k < ones.size(); ++k) {
        ASSERT_EQ(bits.select(k), ones[k]);
        ASSERT_EQ(hinted.select(k), ones[k]);
    }
}

TEST(Bits, DamageIsSeen) {
    for (const std::size_t word : {0U, 3U, 8U, 15U}) {
        Written written = random_bits(600, 500, 1);
        written.words[word] ^= std::uint64_t{1} << 63U;
        EXPECT_FALSE(written.view().is_consistent()) << word;
    }
}

TEST(PackedNumbers, ComeBackAtEveryWidth) {
    for (std::uint32_t width = 1; width <= 32; ++width) {
        std::mt19937 random(width);
        std::vector<std::uint32_t> numbers;
        PackedBuilder builder(width);
        for (int i = 0; i < 300; ++i) {
            numbers.push_back(static_cast<std::uint32_t>(random() & ((std::uint64_t{1} << width) - 1)));
            builder.push(numbers.back());
        }
        const std::vector<std::uint64_t> words = builder.take();
        ASSERT_EQ(words.size(), PackedNumbers::n_words(numbers.size(), width));
        const PackedNumbers packed({words.data(), words.size()}, numbers.size(), width);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            ASSERT_EQ(packed[i], numbers[i]) << width;
        }
    }
}

TEST(Ascending, NumbersComeBack) {
    for (const std::uint64_t step : {0U, 1U, 7U, 1000000U}) {
        std::mt19937_64 random(step);
        std::vector<std::uint64_t> numbers{step == 0 ? 5 : random() % step};
        for (int i = 0; i < 999; ++i) {
            numbers.push_back(numbers.back() + (step == 0 ? 0 : random() % (2 * step)));
        }
        AscendingBuilder builder(numbers.size(), numbers.back());
        for (const std::uint64_t number : numbers) {
            builder.push(number);
        }
        const std::uint32_t width = builder.width();
        const std::uint64_t n_high = builder.n_high();
        const std::vector<std::uint64_t> low = builder.take_low();
        const std::vector<std::uint64_t> high = builder.take_high();
        const Ascending ascending(PackedNumbers({low.data(), low.size()}, numbers.size(), width == 0 ? 1 : width),
                                  Bits({high.data(), high.size()}, n_high, numbers.size()), width);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            ASSERT_EQ(ascending[i], numbers[i]);
        }
    }
}

}  // namespace
}  // namespace token_trie::test
