#pragma once

#include "trie/trie.h"

namespace [[gnu::visibility("default")]] token_trie {

// A trie as plain arrays of 32 bits, for devices that gather. Nodes with children are rows; where only one member is
// left, its tokens lie flat:
//
//     leaves  A=[5]  B=[7]  C=[7,8,4,4]  D=[7,8,6]       row      0      1      2
//                                                        first    0      2      3      5
//          0                                             token    5  7   8      4  6
//        5/ \7                                           target   *  1   2      ~0 *        * complete, ~ place of a
//        *   1*                                          ends     0      1      0             tail's next token
//            8|                                          tail     ~4
//             2
//           4/ \6
//        ~0 .   *                                        a tail's last token is written as its complement
//          4|
//           *
//
// Rows are the nodes with children, of a compact trie the inner nodes.
struct Tensors {
    // A target that ends a member and has no children.
    static constexpr std::int32_t kComplete = INT32_MAX;

    std::vector<std::int32_t> first;  // one a row, and the number of edges
    std::vector<Token> tokens;
    std::vector<std::int32_t> targets;
    std::vector<Token> tails;
    std::vector<std::uint8_t> ends;  // whether a member ends at the row
};

// A filtered trie gives what is left. Throws Error: limit beyond 2^31 - 2 edges or tokens of tails; payload for a
// damaged file.
Tensors to_tensors(const std::shared_ptr<const Trie> & given);

}  // namespace token_trie
