#pragma once

#include "trie/trie.h"

#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// A sequence of tokens to be found in a longer one, read token by token, by the algorithm of Knuth, Morris and Pratt.
// Remembered of what was read is one number, the tokens of the marker that stand at its end:
//
//     marker    A A B        read      A A A B
//     fallback  0 1 0        place   0 1 2 2 3 = found
class Marker {
   public:
    explicit Marker(std::vector<Token> tokens);

    bool empty() const noexcept { return tokens_.empty(); }
    std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(tokens_.size()); }
    const std::vector<Token> & tokens() const noexcept { return tokens_; }
    // The place after one more token; where place is the size, nothing goes on.
    std::uint32_t step(std::uint32_t place, Token token) const noexcept;

   private:
    std::vector<Token> tokens_;
    // Of each place but the first: the place of the longest shorter beginning that stands there too.
    std::vector<std::uint32_t> fallback_;
};

}  // namespace token_trie
