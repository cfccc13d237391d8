#pragma once

#include "abi/open_handles.h"

namespace token_trie {

// Being in a call of a stream that is open.
inline SharedStream::Call enter(const token_trie_stream * handle) {
    return SharedStream::Call(open_streams().find(handle));
}

}  // namespace token_trie
