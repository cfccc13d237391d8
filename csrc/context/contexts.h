#pragma once

#include "context/output_head.h"
#include "trie/non_copyable.h"
#include "trie/trie.h"

#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// Tokens of a context above which the model turns them by other angles (LongRoPE), so that nothing may move between a
// context above and one below; 0 if it does not.
std::size_t turning_point(const llama_model * model);

// Sequence ids of a context that is to stay small, as it has memory for the logits of each.
std::size_t n_frugal_ids(const llama_vocab * vocab);

// Throws Error (context) for more tokens than a context may hold.
void check_fits(std::size_t n_tokens, std::size_t n_ctx);
// Throws Error (context) for what llama_decode returns, unless that is 0.
void check_decoded(std::int32_t result);
// Throws Error (argument) where llama.cpp would end the process.
void check_threads(std::int32_t n_threads, const std::string & what);

inline std::uint64_t ns_between(std::chrono::steady_clock::time_point start,
                                std::chrono::steady_clock::time_point end) {
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(end - start).count());
}

struct FreeModel {
    void operator()(llama_model * model) const noexcept { llama_model_free(model); }
};
struct FreeContext {
    void operator()(llama_context * context) const noexcept { llama_free(context); }
};
using OwnedContext = std::unique_ptr<llama_context, FreeContext>;

// The model gives values that are not finite: its file is damaged, or they overflow on a text. They stay in the cells
// of the text, and may reach all that is evaluated beside them, as llama.cpp masks cells by adding to their scores.
class NotFinite : public Error {
   public:
    NotFinite()
        : Error(
              Status::context,
              "the model gives no finite logits after this text (NaN or infinite): its file is damaged, or its values "
              "overflow; try another quantization, or a KV cache in F32") {}
};

// Throws NotFinite where tokens are wanted, and none of their logits is finite.
inline void check_finite(const float * logits, const AllowedSet & wanted, std::size_t n_vocab) {
    bool is_any_wanted = wanted.everything;
    const auto is_finite = [](float logit) { return std::isfinite(logit); };
    const bool is_none_finite =
        wanted.everything ? std::none_of(logits, logits + n_vocab, is_finite) : wanted.for_each([&](Token token) {
            is_any_wanted = true;
            return !is_finite(logits[token]);
        });
    if (is_any_wanted && is_none_finite) {
        throw NotFinite();
    }
}

// Throws NotFinite where one of them is not.
inline void check_finite(const std::vector<float> & state) {
    if (!std::all_of(state.begin(), state.end(), [](float value) { return std::isfinite(value); })) {
        throw NotFinite();
    }
}

// Makes the contexts of a stream or batch: of one model, params and adapters, in the size wanted.
class ContextMaker {
   public:
    struct FileOptions {
        std::int32_t n_ctx = 0;
        std::int32_t n_batch = 0;
        std::int32_t n_threads = 0;
        std::int32_t n_gpu_layers = 0;
        std::size_t max_state_bytes = 0;
    };
    // As llama_set_adapters_lora takes them.
    struct Adapters {
        std::vector<llama_adapter_lora *> adapters;
        std::vector<float> scales;
    };

    static constexpr std::size_t kMaxStateBytes = std::size_t{512} << 20U;
    static constexpr std::size_t kMinIds = 8;

    // On a model and adapters of the caller's, which must outlive this and what it makes. Throws Error (llama) if
    // another llama.cpp is loaded than the one compiled against, and Error (argument) on a model that a stream can do
    // nothing with. max_state_bytes: for the states of a context, which has as many sequence ids as fit, kMinIds at
    // least; 0: kMaxStateBytes.
    ContextMaker(llama_model * model,
                 const llama_context_params & params,
                 Adapters adapters,
                 std::size_t max_state_bytes = 0);
    // On a model file. Throws Error (argument) if it cannot be loaded, or the options are out of bounds.
    ContextMaker(const std::string & gguf_path, const FileOptions & options);

    const llama_model * model() const noexcept { return model_; }
    // The most that a context may hold.
    std::size_t max_tokens() const noexcept { return max_tokens_; }
    std::size_t max_ids() const noexcept { return max_ids_; }
    // Bytes of a sequence's state; 0: the model has none.
    std::size_t state_bytes() const noexcept { return state_bytes_; }
    // Whether a pass may have tokens of one sequence alone: of more, llama.cpp would end the process, or be wrong.
    bool takes_one_at_a_time() const noexcept { return takes_one_at_a_time_; }
    bool may_use_flash_attention() const noexcept { return params_.flash_attn_type != LLAMA_FLASH_ATTN_TYPE_DISABLED; }

    // Makes a context for so many tokens at least, and sequence ids. Null if there is no memory for it.
    OwnedContext make(std::size_t n_tokens, std::size_t n_ids) const;
    // A small one, that a short prompt and a small set will do with.
    OwnedContext take_first();
    // Frees what has measured the states.
    void forget_first() noexcept { first_.reset(); }

   private:
    void prepare(std::size_t max_state_bytes);
    void prepare_states(std::size_t max_state_bytes);

    std::unique_ptr<llama_model, FreeModel> owned_model_;
    llama_model * model_ = nullptr;
    llama_context_params params_{};
    Adapters adapters_;
    std::size_t min_tokens_ = 0;
    std::size_t max_tokens_ = 0;
    std::size_t max_ids_ = 0;
    std::size_t state_bytes_ = 0;
    bool takes_one_at_a_time_ = false;
    OwnedContext first_;  // that has measured the states
};

// The context that a sequence is evaluated in, in whose place a larger one comes when that is needed.
class GrowingContext : NonCopyable {
   public:
    // At first a small one. Throws Error (argument) where none can be made.
    explicit GrowingContext(ContextMaker maker);
    // At first one for so many tokens, and sequence ids. Throws Error (memory).
    GrowingContext(ContextMaker maker, std::size_t n_tokens, std::size_t n_ids);

    // Until a larger one comes.
    llama_context * get() const noexcept { return context_; }
    // For as long as this lives: the present context's.
    const llama_memory_t & memory() const noexcept { return memory_; }
    const llama_model * model() const noexcept { return llama_get_model(context_); }
    const llama_vocab * vocab() const noexcept { return llama_model_get_vocab(model()); }
    std::size_t n_vocab() const noexcept { return n_vocab_; }
    // The window of sliding attention; 0: none.
    std::int32_t n_swa() const noexcept { return n_swa_; }

    // Tokens, of the present context and of the largest; sequence ids likewise.
    std::size_t n_ctx() const noexcept { return llama_n_ctx(context_); }
    std::size_t n_ctx_max() const noexcept { return maker_.max_tokens(); }
    std::size_t n_ids() const noexcept { return llama_n_seq_max(context_); }
    std::size_t n_ids_max() const noexcept { return maker_.max_ids(); }
    std::size_t state_bytes() const noexcept { return maker_.state_bytes(); }
    bool takes_one_at_a_time() const noexcept { return maker_.takes_one_at_a_time(); }

    // Whether it has as many.
    bool has(std::size_t n_tokens, std::size_t n_ids) const noexcept {
        return n_tokens <= n_ctx() && n_ids <= this->n_ids();
    }
    // Goes on with a context that has as many and holds what this one does, of all ids; where that is anything, it has
    // tokens for some more, as all has to be copied. The logits of the last pass are gone then. Throws Error (memory),
    // and has then changed nothing.
    void grow(std::size_t n_tokens, std::size_t n_ids);

    // llama_decode, by the threads of a step or of a prompt, cut where only few logits are wanted. Returns what that
    // returns.
    std::int32_t decode(const llama_batch & batch, bool is_step, bool cut);
    template <typename Pass>
    std::int32_t decode_by(bool is_step, const Pass & pass) {
        take_threads(is_step);
        const std::int32_t result = wait_for(pass);
        ++n_passes_;
        return result;
    }
    // Runs what waits for a pass to end.
    template <typename Wait>
    auto wait_for(const Wait & wait) {
        const auto started = std::chrono::steady_clock::now();
        auto result = wait();
        decode_ns_ += ns_between(started, std::chrono::steady_clock::now());
        return result;
    }

    const OutputHead & head() const noexcept { return head_; }
    OutputHead & head() noexcept { return head_; }

    std::uint64_t n_passes() const noexcept { return n_passes_; }
    // Time inside forward passes, rows of the output matrix included.
    std::uint64_t decode_ns() const noexcept { return decode_ns_; }

   private:
    bool is_empty() const noexcept;
    void adopt(OwnedContext context);
    void take_threads(bool of_step);

    ContextMaker maker_;
    OwnedContext owned_;
    llama_context * context_ = nullptr;
    llama_memory_t memory_ = nullptr;
    std::size_t n_vocab_ = 0;
    std::int32_t n_swa_ = 0;
    std::int32_t n_threads_ = 0;        // as the context was made: of a step,
    std::int32_t n_threads_batch_ = 0;  // and of a prompt
    bool has_threads_of_step_ = false;
    OutputHead head_;
    std::uint64_t n_passes_ = 0;
    std::uint64_t decode_ns_ = 0;
};

}  // namespace token_trie
