#include "walk/marker.h"

namespace [[gnu::visibility("default")]] token_trie {

Marker::Marker(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
    fallback_.reserve(tokens_.size());
    for (const Token token : tokens_) {
        fallback_.push_back(fallback_.empty() ? 0 : step(fallback_.back(), token));
    }
}

std::uint32_t Marker::step(std::uint32_t place, Token token) const noexcept {
    while (place > 0 && tokens_[place] != token) {
        place = fallback_[place - 1];
    }
    return place + (tokens_[place] == token ? 1 : 0);
}

}  // namespace token_trie
