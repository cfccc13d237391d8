#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <functional>
#include <type_traits>

namespace token_trie {

// Whether the headers' llama_sampler_i has the callbacks of samplers inside the compute graph, as those have that have
// copy_state.
template <typename Interface, typename = void>
struct RunsInGraph : std::false_type {};
template <typename Interface>
struct RunsInGraph<Interface, std::void_t<decltype(&Interface::copy_state)>> : std::true_type {};

// Whether a device has every operation of a graph that build makes, of 64 tensors at most.
bool has_operations(ggml_backend_buffer_type_t buffers, const std::function<void(ggml_context *)> & build);

inline ggml_tensor * as_rows(ggml_context * context, ggml_tensor * tensor) {
    return ggml_reshape_2d(context, tensor, 1, ggml_nelements(tensor));
}
inline ggml_tensor * as_row(ggml_context * context, ggml_tensor * tensor) {
    return ggml_reshape_1d(context, tensor, ggml_nelements(tensor));
}

}  // namespace token_trie
