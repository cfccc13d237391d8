#pragma once

#include <llama.h>

#include <algorithm>
#include <limits>

namespace token_trie {

// Index of the best of n logits; the first of equals; a NaN never wins over a number.
template <typename LogitAt>
std::size_t best_of(std::size_t n, const LogitAt & logit_at) {
    std::size_t best = 0;
    float logit = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < n; ++i) {
        if (logit_at(i) > logit) {
            logit = logit_at(i);
            best = i;
        }
    }
    return best;
}

// The same for the first n candidates.
inline std::size_t best_of(const llama_token_data_array & candidates, std::size_t n) {
    return best_of(n, [&](std::size_t i) { return candidates.data[i].logit; });
}

inline bool any_above_minus_infinity(const llama_token_data_array & candidates, std::size_t n) {
    return std::any_of(candidates.data, candidates.data + n, [](const llama_token_data & candidate) {
        return candidate.logit > -std::numeric_limits<float>::infinity();
    });
}

}  // namespace token_trie
