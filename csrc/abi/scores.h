#pragma once

#include "stream/search.h"
#include "token_trie.h"

#include <string>

namespace token_trie {

static_assert(static_cast<int>(LeafEnd::any) == TOKEN_TRIE_LEAF_ANY, "one enum, two spellings");
static_assert(static_cast<int>(LeafEnd::longest) == TOKEN_TRIE_LEAF_LONGEST, "one enum, two spellings");
static_assert(static_cast<int>(LeafEnd::follow) == TOKEN_TRIE_LEAF_FOLLOW, "one enum, two spellings");

inline LeafEnd to_leaf_end(std::int32_t value, const char * what) {
    if (value < TOKEN_TRIE_LEAF_ANY || value > TOKEN_TRIE_LEAF_FOLLOW) {
        throw Error(Status::argument, std::string(what) + ": " + std::to_string(value) + " is none");
    }
    return static_cast<LeafEnd>(value);
}

// Of a struct that has them.
template <typename Struct>
void write_ranking(const Ranking & from, Struct & out) {
    out.gap = from.gap;
    out.rival_min = from.rival_min;
    out.rival_max = from.rival_max;
    out.mass_max = from.mass_max;
}

}  // namespace token_trie
