#include "trie/bits.h"

#include <algorithm>

namespace token_trie {
namespace {

// The position of the kth one in a word, which has more than k.
std::uint32_t select_in_word(std::uint64_t word, std::uint64_t k) noexcept {
    std::uint32_t at = 0;
    for (;;) {
        const auto ones = static_cast<std::uint64_t>(__builtin_popcountll(word & 0xffU));
        if (k < ones) {
            break;
        }
        k -= ones;
        word >>= 8U;
        at += 8;
    }
    for (; k > 0; --k) {
        word &= word - 1;
    }
    return at + static_cast<std::uint32_t>(__builtin_ctzll(word));
}

}  // namespace

std::uint64_t Bits::rank(std::uint64_t i) const noexcept {
    const std::uint64_t * block = words_ + i / kBlock * 8;
    const std::uint64_t at = i % kBlock;
    std::uint64_t ones = block[0];
    for (std::uint64_t word = 0; word < at / 64; ++word) {
        ones += static_cast<std::uint64_t>(__builtin_popcountll(block[1 + word]));
    }
    const std::uint64_t rest = at % 64;
    if (rest != 0) {
        ones += static_cast<std::uint64_t>(__builtin_popcountll(block[1 + at / 64] & ((std::uint64_t{1} << rest) - 1)));
    }
    return ones;
}

template <bool One>
std::uint64_t Bits::before_block(std::uint64_t block) const noexcept {
    const std::uint64_t ones = words_[block * 8];
    return One ? ones : block * kBlock - std::min(ones, block * kBlock);
}

template <bool One>
std::uint64_t Bits::select_of(std::uint64_t k) const noexcept {
    const std::uint64_t n = One ? n_ones_ : n_ - std::min(n_ones_, n_);
    if (k >= n) {
        return n_;
    }
    const std::uint64_t n_blocks = n_ / kBlock + 1;
    std::uint64_t first = 0;
    std::uint64_t end = n_blocks;
    // Where it would be if all were spread evenly, and from there in steps that double.
    std::uint64_t low = 0;
    if (One && hints_ != nullptr) {
        // Damaged ones lead elsewhere, but not out of here.
        first = std::min<std::uint64_t>(hints_[k / kHint], n_blocks - 1);
        if (k / kHint < n_ones_ / kHint) {
            end = std::clamp<std::uint64_t>(hints_[k / kHint + 1] + std::uint64_t{1}, first + 1, n_blocks);
        }
        low = first + k % kHint * (end - first) / kHint;
    } else {
        low =
            static_cast<std::uint64_t>(static_cast<double>(k) / static_cast<double>(n) * static_cast<double>(n_blocks));
        low = std::min(low, n_blocks - 1);
    }
    std::uint64_t high = low + 1;
    for (std::uint64_t step = 1; low > first && before_block<One>(low) > k; step *= 2) {
        high = low;
        low -= std::min(low - first, step);
    }
    for (std::uint64_t step = 1; high < end && before_block<One>(high) <= k; step *= 2) {
        low = high;
        high = std::min(end, high + step);
    }
    while (high - low > 1) {
        const std::uint64_t middle = low + (high - low) / 2;
        (before_block<One>(middle) <= k ? low : high) = middle;
    }
    std::uint64_t rest = k - std::min(k, before_block<One>(low));
    const std::uint64_t * words = words_ + low * 8 + 1;
    for (std::uint64_t i = 0; i < kBlock / 64; ++i) {
        const std::uint64_t word = One ? words[i] : ~words[i];
        const auto ones = static_cast<std::uint64_t>(__builtin_popcountll(word));
        if (rest < ones) {
            return std::min(n_, low * kBlock + i * 64 + select_in_word(word, rest));
        }
        rest -= ones;
    }
    return n_;
}

template std::uint64_t Bits::select_of<true>(std::uint64_t) const noexcept;
template std::uint64_t Bits::select_of<false>(std::uint64_t) const noexcept;

std::uint64_t Bits::next(std::uint64_t i) const noexcept {
    while (i < n_) {
        const std::uint64_t at = i % kBlock;
        const std::uint64_t * block = words_ + i / kBlock * 8;
        std::uint64_t word = block[1 + at / 64] >> at % 64;
        if (word != 0) {
            return std::min(n_, i + static_cast<std::uint64_t>(__builtin_ctzll(word)));
        }
        i += 64 - at % 64;
    }
    return n_;
}

bool Bits::is_consistent() const noexcept {
    std::uint64_t ones = 0;
    for (std::uint64_t block = 0; block <= n_ / kBlock; ++block) {
        const std::uint64_t * words = words_ + block * 8;
        if (words[0] != ones) {
            return false;
        }
        for (std::uint64_t i = 0; i < kBlock / 64; ++i) {
            const std::uint64_t begin = block * kBlock + i * 64;
            const std::uint64_t allowed = begin >= n_        ? 0
                                          : n_ - begin >= 64 ? ~std::uint64_t{0}
                                                             : (std::uint64_t{1} << (n_ - begin)) - 1;
            if ((words[1 + i] & ~allowed) != 0) {
                return false;
            }
            ones += static_cast<std::uint64_t>(__builtin_popcountll(words[1 + i]));
        }
    }
    return ones == n_ones_;
}

void BitsBuilder::append(const BitsBuilder & more) {
    const Bits bits({more.words_.data(), more.words_.size()}, more.n_, more.n_ones_);
    for (std::uint64_t begin = 0; begin < more.n_; begin += 64) {
        const std::uint64_t word = bits.word(begin / 64);
        const std::uint64_t n = std::min<std::uint64_t>(64, more.n_ - begin);
        const std::uint64_t here = std::min(n, 64 - n_ % 64);
        push(word << (64 - here) >> (64 - here), here);
        if (here < n) {
            push(word >> here, n - here);
        }
    }
}

std::vector<std::uint64_t> BitsBuilder::hints() const {
    std::vector<std::uint64_t> out(Bits::n_hint_words(n_ones_));
    std::uint64_t block = 0;
    for (std::uint64_t i = 0; i * Bits::kHint < n_ones_; ++i) {
        while ((block + 1) * 8 < words_.size() && words_[(block + 1) * 8] <= i * Bits::kHint) {
            ++block;
        }
        out[i / 2] |= block << (i % 2 * 32);
    }
    if (n_ones_ % Bits::kHint == 0) {
        // One more is looked at after the last.
        out[n_ones_ / Bits::kHint / 2] |= (words_.size() / 8 - 1) << (n_ones_ / Bits::kHint % 2 * 32);
    }
    return out;
}

std::vector<std::uint64_t> BitsBuilder::take() {
    std::vector<std::uint64_t> out = std::move(words_);
    *this = BitsBuilder();
    return out;
}

void PackedBuilder::append(const PackedBuilder & more) {
    for (std::uint64_t begin = 0; begin < more.n_bits_; begin += 64) {
        put(more.words_[begin / 64], std::min<std::uint64_t>(64, more.n_bits_ - begin));
    }
}

std::uint32_t width_of(std::uint64_t most) noexcept {
    return most == 0 ? 1 : 64 - static_cast<std::uint32_t>(__builtin_clzll(most));
}

std::uint32_t Ascending::low_width(std::uint64_t n, std::uint64_t most) noexcept {
    const std::uint64_t distance = n == 0 ? 0 : most / n;
    return distance < 2 ? 0 : std::min(width_of(distance) - 1, 32U);
}

void AscendingBuilder::push(std::uint64_t value) {
    for (const std::uint64_t high = value >> width_; at_ < high; ++at_) {
        high_.push(false);
    }
    high_.push(true);
    if (width_ > 0) {
        low_.push(static_cast<std::uint32_t>(value & ((std::uint64_t{1} << width_) - 1)));
    }
}

}  // namespace token_trie
