#pragma once

#include "sampler/sampler.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <vector>

namespace token_trie {

// A trie's part in llama.cpp's compute graph, where a model's logits are sampled before they leave the device: one
// piece after the logits, and one after what the rest of the chain selects.
//
//     logits [V] -> + free         -> set rows ids to their logits -> logits [V], -inf outside of what is allowed ->
//     ... 0 .. V - 1 -> * own + other  -> set rows ids to ids          -> table [V]
//                                                 ... -> selected -> row of the table -> token
//
// The graph is built once for many steps, so what a step allows comes in as numbers: ids are padded to a fixed width,
// and in free text `free` is 0 and the ids say nothing. The table has an allowed token for each that is not, as
// llama.cpp's draw falls back to the last index there is where rounding leaves it none. Greedy mode sets rows once
// more, for the best token alone.
//
// A span that is thought before has no such part: the host's draw there goes by another order of the tokens.
class GraphPart {
   public:
    // The tensors of struct llama_sampler_data.
    struct Tensors {
        ggml_tensor *& logits;
        ggml_tensor *& probs;
        ggml_tensor *& sampled;
        ggml_tensor *& candidates;
    };

    // n_vocab is 0 where it is not known, and then there is no such part.
    explicit GraphPart(std::int32_t n_vocab) noexcept : n_vocab_(n_vocab) {}

    // Whether it can be one on that kind of buffer, with one output of the sequence in a batch. One pass over the
    // trie. No more than once: what a second graph needs has no place here.
    bool init(const Cursor & cursor, Mode mode, ggml_backend_buffer_type_t buffers, std::uint32_t n_outputs) noexcept;
    // Forgets the graph it was last applied in.
    void reset() noexcept { context_ = nullptr; }
    void apply(ggml_context * context, const Tensors & tensors);
    // At the end of the chain: leaves the token alone, an allowed one, the best where nothing is selected.
    void apply_end(ggml_context * context, const Tensors & tensors) const;
    // Uploads what the cursor allows now. Allocates nothing.
    void set_input(const Cursor & cursor) noexcept;

   private:
    bool is_supported(ggml_backend_buffer_type_t buffers);

    std::int32_t n_vocab_;
    Mode mode_ = Mode::greedy;
    bool was_initialized_ = false;
    std::size_t width_ = 0;       // of ids
    std::int64_t n_logits_ = 0;   // V
    std::vector<float> staging_;  // ids, free, own and other

    ggml_context * context_ = nullptr;  // of the graph it was last applied in, as what follows
    ggml_tensor * numbers_ = nullptr;
    ggml_tensor * table_ = nullptr;
};

}  // namespace token_trie
