#pragma once

#include "tiny_model.h"

namespace token_trie::fuzz {

// A model and context params of one of several odd makes, for streams.
struct TinyMake {
    test::TinyKind kind;
    std::uint32_t n_batch;
    std::uint32_t n_ubatch;
    bool is_odd;      // for embeddings, and looks ahead
    bool is_adapted;  // by an adapter of its output matrix
};

constexpr std::uint32_t kContexts = 12;
constexpr std::size_t kCapacity = 256;  // in tokens
const TinyMake & tiny_make_at(std::uint32_t index);
token_trie_stream * open_stream(const TinyMake & make, token_trie_stream_params & params);

}  // namespace token_trie::fuzz
