#pragma once

#include <cstddef>

namespace token_trie::test {

// Bytes that llama.cpp has fetched from its backends behind forward passes, in this process: what it calls
// ggml_backend_tensor_get_async for.
std::size_t bytes_fetched();

}  // namespace token_trie::test
