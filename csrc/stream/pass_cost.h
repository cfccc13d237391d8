#pragma once

#include <algorithm>
#include <cstddef>

namespace token_trie {

// What passes take by their rows, learned from those made: a straight line, fitted to the latest.
//
//     time |          .·   the line's overhead is where it begins, in the time of a row: a processor takes as long
//          |     .·        as two or four rows whatever there is to do, a graphics card as long as hundreds
//          |.·
//          '------------ rows
class PassCost {
   public:
    void add(std::size_t n_rows, double time) noexcept {
        const auto rows = static_cast<double>(n_rows);
        if (rows_ == 0) {
            // As if others had been seen on the line that is expected.
            rows_ = rows;
            time_ = time;
            variance_ = kDoubt * kDoubt;
            covariance_ = variance_ * time / (kExpected + rows);
            return;
        }
        const double by_rows = rows - rows_;
        const double by_time = time - time_;
        rows_ += kWeight * by_rows;
        time_ += kWeight * by_time;
        variance_ = (1 - kWeight) * (variance_ + kWeight * by_rows * by_rows);
        covariance_ = (1 - kWeight) * (covariance_ + kWeight * by_rows * by_time);
    }

    // Of a pass, in rows.
    double overhead() const noexcept {
        if (rows_ == 0) {
            return kExpected;
        }
        const double all = time_ * variance_;
        // Where more rows seem to take no longer, the most.
        const double overhead = covariance_ * kMost > all ? all / covariance_ - rows_ : kMost;
        return std::clamp(overhead, kLeast, kMost);
    }

   private:
    static constexpr double kExpected = 4;
    static constexpr double kLeast = 3;
    static constexpr double kMost = 64;
    static constexpr double kDoubt = 4;          // rows that what is expected is spread over
    static constexpr double kWeight = 1.0 / 16;  // of the latest pass

    double rows_ = 0;  // means, and so on
    double time_ = 0;
    double variance_ = 0;
    double covariance_ = 0;
};

}  // namespace token_trie
