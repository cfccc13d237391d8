#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace token_trie {

// So that n more elements find memory; of a vector that grows as push_back lets it.
template <typename Element>
void reserve_more(std::vector<Element> & elements, std::size_t n = 1) {
    if (n > elements.capacity() - elements.size()) {
        elements.reserve(std::max({std::size_t{16}, elements.size() + n, 2 * elements.size()}));
    }
}

}  // namespace token_trie
