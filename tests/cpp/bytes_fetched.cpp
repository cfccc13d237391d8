#include "bytes_fetched.h"

#include <dlfcn.h>
#include <ggml-backend.h>

namespace {
std::size_t n_fetched = 0;
}

namespace token_trie::test {
std::size_t bytes_fetched() { return n_fetched; }
}  // namespace token_trie::test

// Stands before ggml's own of the name, for llama.cpp too.
extern "C" void ggml_backend_tensor_get_async(
    ggml_backend_t backend, const ggml_tensor * tensor, void * data, std::size_t offset, std::size_t size) {
    static const auto get =
        reinterpret_cast<decltype(&ggml_backend_tensor_get_async)>(dlsym(RTLD_NEXT, "ggml_backend_tensor_get_async"));
    n_fetched += size;
    get(backend, tensor, data, offset, size);
}
