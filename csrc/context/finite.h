#pragma once

#include "cursor/cursor.h"
#include "trie/error.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// What a model gives where its file is damaged, or its values overflow on a text. It stays in the cells of the text,
// and may reach all that is evaluated beside them, as llama.cpp masks cells by adding to their scores.
class NotFinite : public Error {
   public:
    NotFinite()
        : Error(
              Status::context,
              "the model gives no finite logits after this text (NaN or infinite): its file is damaged, or its values "
              "overflow; try another quantization, or a KV cache in F32") {}
};

// Throws NotFinite where tokens are wanted, and none of their logits is finite.
inline void check_finite(const float * logits, const AllowedSet & wanted, std::size_t n_vocab) {
    bool is_any_wanted = wanted.everything;
    const auto is_finite = [](float logit) { return std::isfinite(logit); };
    const bool is_none_finite =
        wanted.everything ? std::none_of(logits, logits + n_vocab, is_finite) : wanted.for_each([&](Token token) {
            is_any_wanted = true;
            return !is_finite(logits[token]);
        });
    if (is_any_wanted && is_none_finite) {
        throw NotFinite();
    }
}

// Throws NotFinite where one of them is not.
inline void check_finite(const std::vector<float> & state) {
    if (!std::all_of(state.begin(), state.end(), [](float value) { return std::isfinite(value); })) {
        throw NotFinite();
    }
}

}  // namespace token_trie
