#pragma once

#include "abi/open_streams.h"

namespace token_trie {

// Being in a call of a stream that is open.
inline SharedStream::Call enter(const token_trie_stream * handle) {
    return SharedStream::Call(OpenStreams::shared().find(handle));
}

inline void check_not_negative(std::int32_t value, const char * what) {
    if (value < 0) {
        throw Error(Status::argument, std::string(what) + ": " + std::to_string(value) + " is negative");
    }
}

// Before the tokens are copied.
inline void check_prompt_length(const Stream & stream, std::size_t n) {
    if (n > stream.capacity()) {
        throw Error(Status::context,
                    std::to_string(n) + " tokens do not fit the context of " + std::to_string(stream.capacity()));
    }
}

}  // namespace token_trie
