#pragma once

#include "abi/open_handles.h"

namespace token_trie {

// Being in a call of a stream that is open.
inline SharedStream::Call enter(const token_trie_stream * handle) {
    return SharedStream::Call(open_streams().find(handle));
}

// Before the tokens are copied.
inline void check_prompt_length(const Stream & stream, std::size_t n) {
    if (n > stream.n_ctx_max()) {
        throw Error(Status::context,
                    std::to_string(n) + " tokens do not fit the context of " + std::to_string(stream.n_ctx_max()));
    }
}

}  // namespace token_trie
