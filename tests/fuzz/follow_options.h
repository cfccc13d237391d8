#pragma once

#include "sampler/cursor.h"

#include <algorithm>

namespace token_trie::fuzz {

// Whether options leave a way to end and hold what belongs to them, as the header tells.
inline bool are_valid(const FollowSet::Options & options) {
    const auto is_bad = [](Token t) { return t < 0; };
    if (std::any_of(options.end_tokens.begin(), options.end_tokens.end(), is_bad) ||
        std::any_of(options.separator.begin(), options.separator.end(), is_bad) || options.max_items < 0) {
        return false;
    }
    switch (options.on_complete) {
        case OnComplete::release:
            return options.end_tokens.empty() && options.separator.empty() && options.max_items == 0;
        case OnComplete::end: return !options.end_tokens.empty() && options.separator.empty() && options.max_items == 0;
        case OnComplete::restart: return !options.end_tokens.empty() || options.max_items > 0;
    }
    return false;
}

}  // namespace token_trie::fuzz
