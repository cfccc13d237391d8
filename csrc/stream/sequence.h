#pragma once

#include "stream/output_head.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

struct llama_batch;
struct llama_context;
struct llama_context_params;
struct llama_model;
struct llama_vocab;

namespace [[gnu::visibility("default")]] token_trie {

// Whether a model's memory can drop the tokens that came last, and share those before: attention alone can.
bool can_drop_newest(const llama_model * model);

// What evaluating nodes of a trie took.
struct Cost {
    std::uint64_t n_evaluated = 0;  // nodes, those included that were needed again for their descendants alone
    std::uint64_t n_passes = 0;
    std::uint64_t decode_ns = 0;
};

// One sequence of tokens and the KV cache behind it. The cache lags behind: it holds a prefix of the sequence and
// catches up, in one batch, when the logits after the last token are asked for.
//
//     tokens     The weather in Oslo : GET _ WEATHER
//                |--- n_cached ---|  |-- lag ---|
//
// Whatever fails here leaves the tokens as they were; the cache may be shorter, which costs time and nothing else.
class Sequence {
   public:
    struct FileOptions {
        std::int32_t n_ctx = 0;
        std::int32_t n_batch = 0;
        std::int32_t n_threads = 0;
        std::int32_t n_gpu_layers = 0;
    };

    // Sets what this wants of a context. Throws Error (llama) if another llama.cpp is loaded than the one compiled
    // against, and Error (argument) on a model that this can do nothing with.
    static void prepare(const llama_model * model, llama_context_params & params);

    // On a context of the caller's, which must outlive this and is used by nobody else meanwhile. It is left as it is
    // until something is evaluated, when it is emptied. Throws Error (argument) on one that this can do nothing with.
    explicit Sequence(llama_context * context);
    // On a model file. Throws Error (argument) if it cannot be loaded, or the options are out of bounds.
    Sequence(const std::string & gguf_path, const FileOptions & options);
    ~Sequence();
    Sequence(const Sequence &) = delete;
    Sequence & operator=(const Sequence &) = delete;
    Sequence(Sequence &&) = delete;
    Sequence & operator=(Sequence &&) = delete;

    llama_context * context() const noexcept { return context_; }
    const llama_vocab * vocab() const noexcept { return vocab_; }
    const std::vector<Token> & tokens() const noexcept { return tokens_; }
    std::size_t n_cached() const noexcept { return n_cached_; }
    // Tokens that the context has room for: where its sequences do not share one cache, in one of these.
    std::size_t capacity() const noexcept { return capacity_; }
    std::size_t n_batch() const noexcept { return n_batch_; }
    std::uint64_t n_passes() const noexcept { return n_passes_; }
    // Time inside forward passes, rows of the output matrix included.
    std::uint64_t decode_ns() const noexcept { return decode_ns_; }

    // Makes the sequence these tokens, evaluated; what it begins with of them already is not evaluated again. A set
    // cancelled stops it between passes. Throws Error (context, cancelled).
    void replace(std::vector<Token> tokens, const std::atomic<bool> & cancelled);

    // Throws Error (context) where the context has no room.
    void append(Token token);

    // Logits after the last token, over the vocabulary, valid until the next call; only those of the tokens wanted mean
    // anything. step_by_step evaluates the lag one token a pass, and each to its end. Throws Error (context,
    // cancelled).
    const float * logits(const AllowedSet & wanted, bool step_by_step, const std::atomic<bool> & cancelled);

    // Evaluates a batch that is no part of the sequence, whose logits are kept. Throws Error (context).
    void evaluate_beside(const llama_batch & batch);
    // Logits after token i of that batch, valid until the next call.
    const float * row(std::int32_t i);
    // Drops what the cache holds behind the tokens that are cached: of a sequence given up, or of a batch that failed.
    void trim_cache();
    // Says that the cache was lost; it begins anew when it is needed.
    void forget_cache() noexcept;
    // Forgets it if the window of sliding attention before its end is gone.
    void check_window() noexcept;

   private:
    struct FreeModel {
        void operator()(llama_model * model) const noexcept;
    };
    struct FreeContext {
        void operator()(llama_context * context) const noexcept;
    };

    void adopt(llama_context * context);
    void take_over();
    void decode(Token * tokens, std::size_t n, bool cut);
    std::int32_t timed_decode(const llama_batch & batch, bool cut);
    void take_threads(bool of_step);
    void take_off_samplers();
    bool window_is_whole() const noexcept;

    std::unique_ptr<llama_model, FreeModel> owned_model_;
    std::unique_ptr<llama_context, FreeContext> owned_context_;
    llama_context * context_ = nullptr;
    const llama_vocab * vocab_ = nullptr;
    std::size_t capacity_ = 0;
    std::size_t n_batch_ = 0;
    std::size_t n_ubatch_ = 0;  // what llama.cpp evaluates at a time, however large the batch
    std::size_t n_vocab_ = 0;
    std::int32_t n_swa_ = 0;
    std::int32_t n_threads_ = 0;        // as the context was made: of a step,
    std::int32_t n_threads_batch_ = 0;  // and of a prompt
    bool has_threads_of_step_ = false;
    bool has_taken_over_ = false;  // until then the context is as the caller left it

    OutputHead head_;
    std::vector<Token> tokens_;
    std::size_t n_cached_ = 0;        // tokens whose cache entries are right
    bool cache_is_longer_ = false;    // entries of dropped tokens follow them
    bool has_logits_ = false;         // of the last cached token, in the context or, after a cut, to be had of the head
    std::vector<float> kept_logits_;  // these, when the context holds others
    std::uint64_t n_passes_ = 0;
    std::uint64_t decode_ns_ = 0;
};

}  // namespace token_trie
