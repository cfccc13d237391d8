#pragma once

#include "trie/trie.h"

#include <map>
#include <optional>
#include <string_view>

namespace [[gnu::visibility("default")]] token_trie {

constexpr std::size_t kMaxPayloadBytes = std::size_t{1} << 30U;

// Reads the leaves of a TokenTreePayload, of one path or of all.
//
// n_vocab > 0 refuses token ids from n_vocab on. Throws Error (payload, vocab, limit) with a message that begins with
// the place, such as `descriptors[0].leaves[3].tokens[1]`.
LeafList read_payload(std::string_view json, const std::optional<std::string> & path, std::int32_t n_vocab);

// Reads the leaves of each path, all at once; at least one path. Throws as read_payload does.
std::map<std::string, LeafList> read_paths(std::string_view json, std::int32_t n_vocab);

}  // namespace token_trie
