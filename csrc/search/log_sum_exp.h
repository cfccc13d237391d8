#pragma once

#include <cstddef>

namespace [[gnu::visibility("default")]] token_trie {

// ln of the sum of e^x over n values, to a relative 1e-6: the normalizer that turns logits into log-probabilities. NaN
// counts as -inf; +inf if a value is, or all are -inf, so that no value has a finite log-probability then.
double log_sum_exp(const float * values, std::size_t n) noexcept;

}  // namespace token_trie
