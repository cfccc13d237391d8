#pragma once

#include "trie/trie.h"

#include <llama.h>

#include <memory>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// Whether a model's memory can drop the tokens that came last, and share those before: attention alone can.
bool can_drop_newest(const llama_model * model);

// Tokens of a context above which the model turns them by other angles (LongRoPE), so that nothing may move between a
// context above and one below; 0 if it does not.
std::size_t turning_point(const llama_model * model);

// Sequence ids of a context that is to stay small, as it has memory for the logits of each.
std::size_t n_frugal_ids(const llama_vocab * vocab);

// Throws Error (argument) where a stream can do nothing with a model.
void check_model(const llama_model * model, const std::string & what);
// Throws Error (context) for more tokens than a context may hold.
void check_fits(std::size_t n_tokens, std::size_t n_ctx);
// Throws Error (context) for what llama_decode returns, unless that is 0.
void check_decoded(std::int32_t result);
// Throws Error (argument) where llama.cpp would end the process.
void check_threads(std::int32_t n_threads, const std::string & what);

struct FreeModel {
    void operator()(llama_model * model) const noexcept;
};
struct FreeContext {
    void operator()(llama_context * context) const noexcept;
};
using OwnedContext = std::unique_ptr<llama_context, FreeContext>;

// Makes the contexts of a stream that has its own: of one model, params and adapters, in the size wanted.
class ContextMaker {
   public:
    struct FileOptions {
        std::int32_t n_ctx = 0;
        std::int32_t n_batch = 0;
        std::int32_t n_threads = 0;
        std::int32_t n_gpu_layers = 0;
    };
    struct Adapter {
        llama_adapter_lora * adapter;
        float scale;
    };

    // Sets what a stream wants of a context. Throws Error (llama) if another llama.cpp is loaded than the one compiled
    // against, and Error (argument) on a model that a stream can do nothing with.
    static void prepare(const llama_model * model, llama_context_params & params);

    // On a model and adapters of the caller's, which must outlive this and what it makes. Throws as prepare does.
    ContextMaker(llama_model * model, const llama_context_params & params, std::vector<Adapter> adapters);
    // On a model file. Throws Error (argument) if it cannot be loaded, or the options are out of bounds.
    ContextMaker(const std::string & gguf_path, const FileOptions & options);

    // The most that a context may hold.
    std::size_t max_tokens() const noexcept { return max_tokens_; }
    std::size_t max_ids() const noexcept { return max_ids_; }

    // Makes a context for so many tokens at least, and sequence ids. Null if there is no memory for it.
    OwnedContext make(std::size_t n_tokens, std::size_t n_ids) const;
    // A small one, that a short prompt and a small set will do with.
    OwnedContext make_first() const;

   private:
    void set_limits();

    std::unique_ptr<llama_model, FreeModel> owned_model_;
    llama_model * model_ = nullptr;
    llama_context_params params_{};
    std::vector<Adapter> adapters_;
    std::size_t min_tokens_ = 0;
    std::size_t max_tokens_ = 0;
    std::size_t max_ids_ = 0;
};

}  // namespace token_trie
