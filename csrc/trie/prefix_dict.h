#pragma once

#include "trie/trie.h"

#include <istream>

namespace [[gnu::visibility("default")]] token_trie {

// A set as RTP-LLM's tree decode configuration gives one: for each beginning of a member, spelled out as the text of
// its token ids, the tokens that may follow.
//
//     {"start_token_id": 225, "end_token_id": 2, "sep": "_",          members
//      "prefix_dict": {"225": [7, 9],  "225_7": [2, 8]}}              [9]  [7]  [7, 8]
//
// A beginning without a key is a member, and so are one whose list holds the end token and one whose list is empty.
struct PrefixDict {
    LeafList members;  // unnamed, in ascending order of their tokens
    Token start = 225;
    Token end = 2;
    std::string sep = "_";
    // What was passed over: ids in lists that are no tokens, and keys that no beginning leads to.
    std::uint64_t n_ids_skipped = 0;
    std::uint64_t n_keys_unreached = 0;
    std::vector<std::string> keys_unreached;  // the first few

    void add_unreached(const std::string & key);
};

// Reads one as a stream, in two passes if the separator comes after the keys and is not "_"; what is held meanwhile
// is four bytes a token of the keys and lists, and a trie of the keys. Throws Error (payload, limit) with a message
// that begins with the place, such as `prefix_dict["225_7"][1]`.
PrefixDict read_prefix_dict(std::istream & json);

}  // namespace token_trie
