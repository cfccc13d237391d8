#pragma once

#include "tiny_model.h"

namespace token_trie::fuzz {

// A context of one of several odd makes, made when it is first asked for and then used by one input after the other, as
// opening a stream empties it.
struct TinyContext {
    llama_context * context;
    llama_adapter_lora * adapter;  // for its model
    std::size_t capacity;          // in tokens, of one sequence
};

constexpr std::uint32_t kContexts = 14;
const TinyContext & tiny_context_at(std::uint32_t make);

}  // namespace token_trie::fuzz
