#pragma once

#include <llama.h>

#include <algorithm>
#include <limits>

namespace token_trie {

// Index of the best candidate among the first n; the first of equals; a NaN never wins over a number.
inline std::size_t best_of(const llama_token_data_array & candidates, std::size_t n) {
    std::size_t best = 0;
    float logit = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < n; ++i) {
        if (candidates.data[i].logit > logit) {
            logit = candidates.data[i].logit;
            best = i;
        }
    }
    return best;
}

inline bool any_above_minus_infinity(const llama_token_data_array & candidates, std::size_t n) {
    return std::any_of(candidates.data, candidates.data + n, [](const llama_token_data & candidate) {
        return candidate.logit > -std::numeric_limits<float>::infinity();
    });
}

}  // namespace token_trie
