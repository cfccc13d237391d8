#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace token_trie {

// Words that another object holds: a builder's, or a mapped file's.
struct Words {
    const std::uint64_t * data = nullptr;
    std::size_t size = 0;
};

// Bits that are counted, in blocks of a cache line each:
//
//     | ones before this block, 64 bits | 448 bits | ones before the next | 448 bits | ...
//
// and for select, where it has them, the block of every 512th one. Of n bits there is a block for bit n too, so that
// everything before it can be counted. A view: the words outlive it. What a damaged file holds in them makes an answer
// wrong, never an access to other memory: positions come back at most n, and counts are to be checked by callers that
// need them small.
class Bits {
   public:
    static constexpr std::uint64_t kBlock = 448;

    static constexpr std::uint64_t n_words(std::uint64_t n) { return (n / kBlock + 1) * 8; }

    static constexpr std::uint64_t kHint = 512;
    // Two in a word.
    static constexpr std::uint64_t n_hint_words(std::uint64_t n_ones) { return (n_ones / kHint + 2) / 2; }

    Bits() = default;
    // words has n_words(n); hints are none, or n_hint_words(n_ones).
    Bits(Words words, std::uint64_t n, std::uint64_t n_ones, Words hints = {}) noexcept
        : words_(words.data), hints_(reinterpret_cast<const std::uint32_t *>(hints.data)), n_(n), n_ones_(n_ones) {}

    std::uint64_t size() const noexcept { return n_; }
    std::uint64_t n_ones() const noexcept { return n_ones_; }
    // i < size().
    bool operator[](std::uint64_t i) const noexcept {
        const std::uint64_t at = i % kBlock;
        return (words_[i / kBlock * 8 + 1 + at / 64] >> at % 64 & 1U) != 0;
    }
    // Bit i is asked for soon.
    void prefetch(std::uint64_t i) const noexcept { __builtin_prefetch(words_ + i / kBlock * 8); }
    // Bits 64 * i and after, with zeros after the last.
    std::uint64_t word(std::uint64_t i) const noexcept { return words_[i / 7 * 8 + 1 + i % 7]; }
    // The ones before bit i, i <= size().
    std::uint64_t rank(std::uint64_t i) const noexcept;
    // The position of the kth one, from 0; size() if there is none.
    std::uint64_t select(std::uint64_t k) const noexcept { return select_of<true>(k); }
    // The same of zeros.
    std::uint64_t select_zero(std::uint64_t k) const noexcept { return select_of<false>(k); }
    // The first one from bit i on; size() if there is none.
    std::uint64_t next(std::uint64_t i) const noexcept;
    // Whether the counts are those of the bits, no bit after the last is set, and the ones are n_ones. One pass.
    bool is_consistent() const noexcept;

   private:
    template <bool One>
    std::uint64_t select_of(std::uint64_t k) const noexcept;
    template <bool One>
    std::uint64_t before_block(std::uint64_t block) const noexcept;

    const std::uint64_t * words_ = nullptr;
    const std::uint32_t * hints_ = nullptr;
    std::uint64_t n_ = 0;
    std::uint64_t n_ones_ = 0;
};

// Writes bits one after the other.
class BitsBuilder {
   public:
    BitsBuilder() : words_(8) {}
    void push(bool one) { push(std::uint64_t{one}, 1); }
    // n bits, the lowest first, all of one word of what is written, and none above them.
    void push(std::uint64_t bits, std::uint64_t n) {
        const std::uint64_t at = n_ % Bits::kBlock;
        words_[n_ / Bits::kBlock * 8 + 1 + at / 64] |= bits << at % 64;
        n_ones_ += static_cast<std::uint64_t>(__builtin_popcountll(bits));
        n_ += n;
        if (n_ % Bits::kBlock == 0) {
            words_.resize(words_.size() + 8);
            words_[n_ / Bits::kBlock * 8] = n_ones_;
        }
    }
    void append(const BitsBuilder & more);
    void reserve(std::uint64_t n) { words_.reserve(Bits::n_words(n)); }
    void shrink_to_fit() { words_.shrink_to_fit(); }
    std::uint64_t size() const noexcept { return n_; }
    std::uint64_t n_ones() const noexcept { return n_ones_; }
    // Words of the hints to what was pushed.
    std::vector<std::uint64_t> hints() const;
    // The words of Bits, counted; the builder has none any more.
    std::vector<std::uint64_t> take();

   private:
    std::vector<std::uint64_t> words_;
    std::uint64_t n_ = 0;
    std::uint64_t n_ones_ = 0;
};

// Numbers of 1 to 32 bits, one after the other. A view.
class PackedNumbers {
   public:
    static constexpr std::uint64_t n_words(std::uint64_t n, std::uint32_t width) { return n * width / 64 + 2; }

    PackedNumbers() = default;
    // words has n_words(n, width).
    PackedNumbers(Words words, std::uint64_t n, std::uint32_t width) noexcept
        : words_(words.data), n_(n), width_(width) {}

    std::uint64_t size() const noexcept { return n_; }
    // i < size().
    std::uint32_t operator[](std::uint64_t i) const noexcept {
        const std::uint64_t bit = i * width_;
        const std::uint64_t * word = words_ + bit / 64;
        const std::uint64_t shift = bit % 64;
        // The second shift in two steps, as one of 64 means nothing.
        const std::uint64_t value = word[0] >> shift | word[1] << 1U << (63 - shift);
        return static_cast<std::uint32_t>(value & ((std::uint64_t{1} << width_) - 1));
    }

   private:
    const std::uint64_t * words_ = nullptr;
    std::uint64_t n_ = 0;
    std::uint32_t width_ = 1;
};

class PackedBuilder {
   public:
    explicit PackedBuilder(std::uint32_t width) : words_(2), width_(width) {}
    void push(std::uint32_t value) { put(value, width_); }
    // Numbers as wide.
    void append(const PackedBuilder & more);
    void reserve(std::uint64_t n) { words_.reserve(PackedNumbers::n_words(n, width_) + 1); }
    void shrink_to_fit() { words_.shrink_to_fit(); }
    std::vector<std::uint64_t> take() { return std::move(words_); }

   private:
    void put(std::uint64_t bits, std::uint64_t n) {
        const std::uint64_t shift = n_bits_ % 64;
        words_[n_bits_ / 64] |= bits << shift;
        if (shift + n >= 64) {
            words_[n_bits_ / 64 + 1] |= shift == 0 ? 0 : bits >> (64 - shift);
            words_.push_back(0);
        }
        n_bits_ += n;
    }

    std::vector<std::uint64_t> words_;
    std::uint32_t width_;
    std::uint64_t n_bits_ = 0;
};

// The bits that numbers up to most take, at least 1.
std::uint32_t width_of(std::uint64_t most) noexcept;

// Numbers that never decrease, in 2 bits each and those of their mean distance (P. Elias, Efficient storage and
// retrieval by content and address of static files, J. ACM 21, 1974; R. M. Fano, 1971): the low bits packed, and for
// each number a one after as many zeros as its high bits have grown by. A view.
//
//     2 3 5 9   low 2 bits  2 3 1 1   high  0 0 1 2   1 1 0 1 0 1
class Ascending {
   public:
    // The width of low for n numbers up to most.
    static std::uint32_t low_width(std::uint64_t n, std::uint64_t most) noexcept;

    Ascending() = default;
    Ascending(PackedNumbers low, Bits high, std::uint32_t low_width) noexcept
        : low_(low), high_(high), width_(low_width) {}

    // i is below how many there are. Of damaged words, any number.
    std::uint64_t operator[](std::uint64_t i) const noexcept {
        return ((high_.select(i) - i) << width_) | (width_ == 0 ? 0 : low_[i]);
    }

   private:
    PackedNumbers low_;
    Bits high_;
    std::uint32_t width_ = 0;
};

class AscendingBuilder {
   public:
    // n numbers follow, none above most.
    AscendingBuilder(std::uint64_t n, std::uint64_t most)
        : width_(Ascending::low_width(n, most)), low_(width_ == 0 ? 1 : width_) {}
    void push(std::uint64_t value);
    std::uint32_t width() const noexcept { return width_; }
    std::uint64_t n_high() const noexcept { return high_.size(); }
    std::vector<std::uint64_t> hints() const { return high_.hints(); }
    std::vector<std::uint64_t> take_low() { return low_.take(); }
    std::vector<std::uint64_t> take_high() { return high_.take(); }

   private:
    std::uint32_t width_;
    PackedBuilder low_;
    BitsBuilder high_;
    std::uint64_t at_ = 0;  // high bits of the last
};

}  // namespace token_trie
