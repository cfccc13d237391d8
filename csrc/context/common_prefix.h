#pragma once

#include <algorithm>
#include <cstddef>

namespace token_trie {

// How many items two sequences begin with alike.
template <typename Items>
std::size_t common_prefix(const Items & a, const Items & b) {
    return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace token_trie
