#pragma once

#include "cursor/cursor.h"
#include "trie/non_copyable.h"

#include <ggml-backend.h>
#include <llama.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

namespace token_trie {

// The end of a model's graph, where a forward pass over a large vocabulary spends half its time, evaluated for a few
// tokens alone: the pass is cut before the output matrix, and only the rows wanted are multiplied.
//
//     layers -> result_norm, a row an output -> output matrix, a row a token -> logits
//                    |
//                    '-> some of the matrix's rows                          -> logits of those tokens
//
// This is an optimization: the same pass, left whole, gives the same logits bit for bit, read from llama.cpp. Each pass
// is looked at for itself, as adapters come and go: it is cut where the graph ends in that product and nothing more, of
// a matrix that lies in this process's memory as it is; llama.cpp's own kernel multiplies the rows.
//
// llama.cpp queries the nodes of a graph, in their order, before it computes them. The product is made a node
// without an operation, which computes nothing, when it is queried; one more node after it, and it is itself
// again.
class OutputHead : NonCopyable {
   public:
    // Makes contexts of these params report here, unless they are to report elsewhere. Passes that are reported here
    // are right for several sequences on processors with AMX too.
    static void listen(llama_context_params & params);

    // The switch: without cuts, each pass is whole.
    void allow_cuts(bool allowed) noexcept { may_cut_ = allowed; }

    // llama_decode, cut if wanted and where that is possible. After a pass that was cut, the context's logits are not
    // valid.
    std::int32_t decode(llama_context * context, const llama_batch & batch, bool cut);
    bool was_cut() const noexcept { return was_cut_; }

    // A token's hidden state, which the output matrix is multiplied with: that of an output of the last pass, by index,
    // or of its last output. If llama.cpp takes a pass apart, the last part's outputs count. Throws Error (context)
    // where the model's graph has none that can be read.
    std::vector<float> hidden_state(std::optional<std::size_t> output = std::nullopt) const;

    // Bytes of the buffers in which a context has its cache, of whatever kind that is, from its first pass on.
    std::size_t cache_bytes() const noexcept { return cache_bytes_; }
    // Whether a context's logits come to be on a device, reported by its first pass.
    bool is_on_device() const noexcept { return is_on_device_; }
    // Whether all weights that tokens are multiplied with lie on devices, reported likewise.
    bool has_layers_on_device() const noexcept { return has_weights_on_device_ && !has_weights_on_host_; }
    // Says that the next pass is one of another context, and that the last one's may go.
    void expect_another() noexcept {
        observes_cache_ = true;
        norm_ = nullptr;
    }

    // Whether a pass for these tokens, of a vocabulary, is worth cutting.
    static bool are_few(const AllowedSet & wanted, std::size_t n_vocab) noexcept;

    // After a pass that was cut: the logits of the tokens wanted, in an output of the pass, by index, each at its
    // own index; the others are left as they are. Throws Error (context).
    void multiply(const AllowedSet & wanted, std::int32_t n_threads, float * logits, std::size_t output = 0);

   private:
    struct [[gnu::visibility("default")]] Free {
        void operator()(ggml_backend * backend) const noexcept { ggml_backend_free(backend); }
        void operator()(ggml_context * context) const noexcept { ggml_free(context); }
    };

    void observe(ggml_tensor & node);
    void observe_cache(const ggml_tensor * tensor);
    void observe_weights(const ggml_tensor & node);
    bool can_skip(const ggml_tensor & node);
    void put_back() noexcept;
    bool flatten(ggml_tensor & node) noexcept;
    void unflatten() noexcept;
    bool prepare(ggml_tensor * matrix);
    void compute(ggml_cgraph * graph, std::int32_t n_threads);

    bool may_cut_ = true;
    // In the pass under way, or the last one:
    bool cut_ = false;
    bool was_cut_ = false;
    ggml_tensor * norm_ = nullptr;     // llama.cpp's, until the context's next pass
    ggml_tensor * skipped_ = nullptr;  // the product, while it is without its operation
    std::vector<float> norms_;         // outputs of the last pass that was cut

    // A product while it is made as of one matrix, and the sizes that it has otherwise.
    ggml_tensor * flat_ = nullptr;
    std::array<std::int64_t, GGML_MAX_DIMS> sizes_{};

    bool observes_cache_ = true;                // in the pass under way, or the next
    std::vector<ggml_backend_buffer *> cache_;  // observed so far
    std::size_t cache_bytes_ = 0;
    bool is_on_device_ = false;
    bool has_weights_on_device_ = false;
    bool has_weights_on_host_ = false;

    // For the matrix observed last.
    std::unique_ptr<ggml_backend, Free> backend_;
    std::unique_ptr<ggml_context, Free> context_;  // holds the tensors below
    ggml_tensor * norm_row_ = nullptr;
    ggml_tensor * matrix_ = nullptr;  // the model's
    ggml_tensor * rows_ = nullptr;    // some of its rows
    ggml_tensor * logits_ = nullptr;
    ggml_tensor * logits_of_rows_ = nullptr;
    ggml_cgraph * multiply_matrix_ = nullptr;
    ggml_cgraph * multiply_rows_ = nullptr;
};

}  // namespace token_trie
