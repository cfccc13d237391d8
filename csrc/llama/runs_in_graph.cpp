#include "llama/runs_in_graph.h"

#include <memory>

namespace token_trie {

bool has_operations(ggml_backend_buffer_type_t buffers, const std::function<void(ggml_context *)> & build) {
    ggml_backend_dev_t device = ggml_backend_buft_get_device(buffers);
    if (device == nullptr) {
        return true;  // the CPU
    }
    struct Free {
        void operator()(ggml_context * context) const noexcept { ggml_free(context); }
    };
    constexpr std::size_t n_tensors = 64;
    const std::unique_ptr<ggml_context, Free> context(
        ggml_init({n_tensors * ggml_tensor_overhead(), nullptr, /* no_alloc = */ true}));
    if (context == nullptr) {
        return false;
    }
    build(context.get());
    for (ggml_tensor * each = ggml_get_first_tensor(context.get()); each != nullptr;
         each = ggml_get_next_tensor(context.get(), each)) {
        if (each->op != GGML_OP_NONE && !ggml_backend_dev_supports_op(device, each)) {
            return false;
        }
    }
    return true;
}

}  // namespace token_trie
