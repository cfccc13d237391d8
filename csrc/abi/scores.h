#pragma once

#include "stream/search.h"
#include "token_trie.h"

#include <cmath>
#include <string>
#include <vector>

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

// Of the struct that is called what; none without any.
template <typename Struct>
std::vector<double> read_leaf_weights(const Struct & from, const Trie & trie, const std::string & what) {
    if (from.leaf_weights == nullptr) {
        return {};
    }
    if (from.n_leaf_weights != trie.n_leaves()) {
        throw Error(Status::argument, what + ".n_leaf_weights: " + std::to_string(from.n_leaf_weights) +
                                          " where the trie has " + std::to_string(trie.n_leaves()));
    }
    for (std::size_t i = 0; i < from.n_leaf_weights; ++i) {
        if (!std::isfinite(from.leaf_weights[i])) {
            throw Error(Status::argument, what + ".leaf_weights[" + std::to_string(i) +
                                              "]: " + std::to_string(from.leaf_weights[i]) + " is not finite");
        }
    }
    return {from.leaf_weights, from.leaf_weights + from.n_leaf_weights};
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
