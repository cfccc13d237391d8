#pragma once

#include "cursor/cursor.h"

#include <algorithm>

namespace token_trie::fuzz {

// Whether options leave a way to end and hold what belongs to them, as the header tells; n_left: members that are not
// excluded, the names in exclude being those of members.
inline bool are_valid(const FollowSet::Options & options, std::size_t n_left) {
    const auto is_bad = [](Token t) { return t < 0; };
    if (std::any_of(options.end_tokens.begin(), options.end_tokens.end(), is_bad) ||
        std::any_of(options.separator.begin(), options.separator.end(), is_bad) || options.max_items < 0 ||
        options.min_items < 0 || n_left == 0) {
        return false;
    }
    const bool asks_for_too_many = (options.max_items > 0 && options.min_items > options.max_items) ||
                                   (options.unique && static_cast<std::size_t>(options.min_items) > n_left);
    const bool is_list = !options.separator.empty() || options.max_items > 0 || options.min_items > 0 || options.unique;
    switch (options.on_complete) {
        case OnComplete::release: return options.end_tokens.empty() && !is_list;
        case OnComplete::end: return !options.end_tokens.empty() && !is_list;
        case OnComplete::restart:
            return !asks_for_too_many && (!options.end_tokens.empty() || options.max_items > 0 || options.unique);
    }
    return false;
}

}  // namespace token_trie::fuzz
