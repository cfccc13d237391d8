#include "stream/sequence.h"

#include "sampler/llama_version.h"

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

// A batch of up to so many tokens is as much a step as a prompt, and takes the threads of one: all threads that there
// are would wait for each other longer than they work.
constexpr std::size_t kStep = 32;
// How far a context made here may go beyond what its model was trained with: further than any way to stretch one, and
// short of what llama.cpp takes minutes to prepare, or the system promises and does not have.
constexpr std::int64_t kStretch = 16;

std::size_t common_prefix(const std::vector<Token> & a, const std::vector<Token> & b) {
    return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

std::string failure_of(std::int32_t result) {
    return result == 1 ? "the context is full" : "llama_decode failed with " + std::to_string(result);
}
std::uint64_t ns_since(std::chrono::steady_clock::time_point start) {
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

}  // namespace

bool can_drop_newest(const llama_model * model) {
    return !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model);
}

void Sequence::FreeModel::operator()(llama_model * model) const noexcept { llama_model_free(model); }
void Sequence::FreeContext::operator()(llama_context * context) const noexcept { llama_free(context); }

namespace {

// Sequence ids for a TreeEvaluator to work well with: enough for a batch to be worth it, and not more, as every pass
// compares them in pairs and the context keeps logits for each. llama.cpp ends the process on more than a batch has
// tokens.
std::uint32_t n_ids_for(const llama_model * model, const llama_context_params & params) {
    if (!can_drop_newest(model)) {
        return 1;
    }
    constexpr std::size_t logits_bytes = 64U << 20U;
    const auto row_bytes = sizeof(float) * static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
    const auto n_ctx = params.n_ctx == 0 ? static_cast<std::size_t>(llama_model_n_ctx_train(model)) : params.n_ctx;
    const auto n = std::min<std::size_t>({64, logits_bytes / row_bytes, params.n_batch, n_ctx});
    return static_cast<std::uint32_t>(std::max<std::size_t>(n, 1));
}

void check_model(const llama_model * model, const std::string & what) {
    if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
        throw Error(Status::argument, what + " is not a decoder");
    }
    const llama_vocab * vocab = llama_model_get_vocab(model);
    if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE || llama_vocab_n_tokens(vocab) == 0) {
        throw Error(Status::argument, what + " has no tokenizer");
    }
}

// llama.cpp ends the process on more.
void check_threads(std::int32_t n_threads, const std::string & what) {
    if (n_threads > GGML_MAX_N_THREADS) {
        throw Error(Status::argument,
                    what + ": " + std::to_string(n_threads) + " is above " + std::to_string(GGML_MAX_N_THREADS));
    }
}

void check_length(const llama_model * model, std::int32_t n_ctx) {
    const std::int32_t trained = llama_model_n_ctx_train(model);
    if (n_ctx > kStretch * trained) {
        throw Error(Status::argument, "n_ctx: " + std::to_string(n_ctx) + " is more than " + std::to_string(kStretch) +
                                          " times the " + std::to_string(trained) +
                                          " tokens that the model was trained with");
    }
}

}  // namespace

void Sequence::prepare(const llama_model * model, llama_context_params & params) {
    require_same_llama();
    check_model(model, "model: it");
    params.embeddings = false;
    params.attention_type = LLAMA_ATTENTION_TYPE_CAUSAL;
    params.kv_unified = true;
    params.swa_full = true;
    params.samplers = nullptr;
    params.n_samplers = 0;
    params.n_seq_max = n_ids_for(model, params);
    params.n_outputs_max = 0;  // llama.cpp ends the process where a batch asks for more logits than this
    OutputHead::listen(params);
}

Sequence::Sequence(llama_context * context) {
    require_same_llama();
    adopt(context);
}

Sequence::Sequence(const std::string & gguf_path, const FileOptions & options) {
    require_same_llama();
    check_threads(options.n_threads, "n_threads");
    ggml_backend_load_all();
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = options.n_gpu_layers < 0 ? 9999 : options.n_gpu_layers;
    owned_model_.reset(llama_model_load_from_file(gguf_path.c_str(), model_params));
    if (!owned_model_) {
        throw Error(Status::argument, "gguf_path: " + quote(gguf_path) + " could not be loaded as a model");
    }
    check_length(owned_model_.get(), options.n_ctx);
    llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = static_cast<std::uint32_t>(options.n_ctx);
    if (options.n_batch > 0) {
        context_params.n_batch = static_cast<std::uint32_t>(options.n_batch);
    }
    if (options.n_threads > 0) {
        context_params.n_threads = options.n_threads;
        context_params.n_threads_batch = options.n_threads;
    }
    prepare(owned_model_.get(), context_params);
    owned_context_.reset(llama_init_from_model(owned_model_.get(), context_params));
    if (!owned_context_) {
        throw Error(Status::argument, "no context of " + std::to_string(options.n_ctx) + " tokens could be made");
    }
    adopt(owned_context_.get());
}

Sequence::~Sequence() {
    if (owned_context_ == nullptr && context_ != nullptr) {
        take_threads(/* of_step = */ false);
    }
}

void Sequence::adopt(llama_context * context) {
    const llama_model * model = llama_get_model(context);
    check_model(model, "context: its model");
    check_threads(llama_n_threads(context), "context: n_threads");
    check_threads(llama_n_threads_batch(context), "context: n_threads_batch");
    if (llama_get_memory(context) == nullptr) {
        throw Error(Status::argument, "context: it has no memory for a sequence");
    }
    context_ = context;
    vocab_ = llama_model_get_vocab(model);
    n_vocab_ = static_cast<std::size_t>(llama_vocab_n_tokens(vocab_));
    n_swa_ = llama_model_n_swa(model);
    n_batch_ = llama_n_batch(context);
    n_ubatch_ = llama_n_ubatch(context);
    n_threads_ = llama_n_threads(context);
    n_threads_batch_ = llama_n_threads_batch(context);
    capacity_ = llama_n_ctx_seq(context);
}

// There is no asking whether a context gives embeddings or looks ahead, and on some of these llama.cpp gives no logits,
// or ends the process.
void Sequence::take_over() {
    llama_memory_clear(llama_get_memory(context_), true);
    llama_set_embeddings(context_, false);
    llama_set_causal_attn(context_, true);
    has_taken_over_ = true;
}

void Sequence::replace(std::vector<Token> tokens, const std::atomic<bool> & cancelled) {
    if (tokens.size() > capacity_) {
        throw Error(Status::context,
                    std::to_string(tokens.size()) + " tokens do not fit the context of " + std::to_string(capacity_));
    }
    const std::size_t n_same = common_prefix(tokens_, tokens);
    const auto switch_to = [&](std::vector<Token> & other) {
        tokens_.swap(other);
        if (n_cached_ > n_same) {
            n_cached_ = n_same;
            cache_is_longer_ = true;
            has_logits_ = false;
        }
    };
    switch_to(tokens);
    try {
        static_cast<void>(logits({true, {}, {}}, false, cancelled));
    } catch (...) {
        switch_to(tokens);
        throw;
    }
}

void Sequence::append(Token token) {
    if (tokens_.size() == capacity_) {
        throw Error(Status::context, "the context of " + std::to_string(capacity_) + " tokens is full");
    }
    tokens_.push_back(token);
}

const float * Sequence::logits(const AllowedSet & wanted, bool step_by_step, const std::atomic<bool> & cancelled) {
    if (tokens_.empty()) {
        throw Error(Status::argument, "nothing to go on from: prefill first");
    }
    if (!has_logits_ || n_cached_ < tokens_.size()) {
        if (n_cached_ == tokens_.size()) {
            // All is cached but nobody kept the logits: the last token is evaluated again.
            --n_cached_;
            cache_is_longer_ = true;
        }
        trim_cache();
        const bool cut = !step_by_step && OutputHead::are_few(wanted, n_vocab_);
        while (n_cached_ < tokens_.size()) {
            if (cancelled) {
                throw Error(Status::cancelled, "cancelled");
            }
            const std::size_t n_left = tokens_.size() - n_cached_;
            const std::size_t n = std::min(step_by_step ? 1 : n_ubatch_, n_left);
            decode(&tokens_[n_cached_], n, cut && n == n_left);
        }
    }
    if (!kept_logits_.empty()) {
        return kept_logits_.data();
    }
    const auto started = std::chrono::steady_clock::now();
    float * row = llama_get_logits_ith(context_, -1);  // waits for the pass to end
    if (row == nullptr) {
        throw Error(Status::context, "the context gives no logits (was it made for embeddings?)");
    }
    if (head_.was_cut()) {
        head_.multiply(wanted, llama_n_threads(context_), row);
    }
    decode_ns_ += ns_since(started);
    return row;
}

const float * Sequence::row(std::int32_t i) {
    const auto started = std::chrono::steady_clock::now();
    const float * logits = llama_get_logits_ith(context_, i);  // waits for the pass to end
    decode_ns_ += ns_since(started);
    if (logits == nullptr) {
        throw Error(Status::context, "the context gives no logits (was it made for embeddings?)");
    }
    return logits;
}

void Sequence::evaluate_beside(const llama_batch & batch) {
    has_logits_ = has_logits_ && n_cached_ == tokens_.size();  // those of a token with others behind it are not kept
    if (has_logits_ && kept_logits_.empty()) {
        const std::atomic<bool> not_cancelled{false};
        const float * logits = this->logits({true, {}, {}}, false, not_cancelled);
        kept_logits_.assign(logits, logits + n_vocab_);
    }
    take_threads(/* of_step = */ true);
    const std::int32_t result = timed_decode(batch, false);
    if (result != 0) {
        throw Error(Status::context, failure_of(result));
    }
}

void Sequence::forget_cache() noexcept {
    n_cached_ = 0;
    cache_is_longer_ = true;
    has_logits_ = false;
}

bool Sequence::window_is_whole() const noexcept {
    return llama_memory_seq_pos_min(llama_get_memory(context_), 0) <=
           std::max(0, static_cast<llama_pos>(n_cached_) - n_swa_);
}

void Sequence::check_window() noexcept {
    if (!window_is_whole()) {
        forget_cache();
    }
}

// Drops the cache entries behind n_cached_. Where these cannot be dropped alone, as in recurrent models, or the window
// of sliding attention before them is gone, the cache begins anew.
void Sequence::trim_cache() {
    if (!has_taken_over_) {
        take_over();
    }
    if (!cache_is_longer_) {
        return;
    }
    llama_memory_t memory = llama_get_memory(context_);
    const auto keep = static_cast<llama_pos>(n_cached_);
    if (keep == 0 || !window_is_whole() || !llama_memory_seq_rm(memory, 0, keep, -1)) {
        llama_memory_seq_rm(memory, 0, -1, -1);
        n_cached_ = 0;
    }
    cache_is_longer_ = false;
    has_logits_ = false;
}

void Sequence::decode(Token * tokens, std::size_t n, bool cut) {
    has_logits_ = false;
    kept_logits_.clear();
    cache_is_longer_ = true;  // some of a batch that fails may have been taken in
    take_threads(n <= kStep);
    const std::int32_t result = timed_decode(llama_batch_get_one(tokens, static_cast<std::int32_t>(n)), cut);
    if (result != 0) {
        throw Error(Status::context, failure_of(result));
    }
    n_cached_ += n;
    cache_is_longer_ = false;
    has_logits_ = true;
}

// Not for each pass and back: llama.cpp logs a change, and what listens may be slow, or Python.
void Sequence::take_threads(bool of_step) {
    if (of_step != has_threads_of_step_ && n_threads_ < n_threads_batch_) {
        llama_set_n_threads(context_, n_threads_, of_step ? n_threads_ : n_threads_batch_);
        has_threads_of_step_ = of_step;
    }
}

// What draws on the backend keeps the logits there. Costs next to nothing where none is set.
void Sequence::take_off_samplers() {
    for (std::uint32_t id = 0; id < llama_n_seq_max(context_); ++id) {
        llama_set_sampler(context_, static_cast<llama_seq_id>(id), nullptr);
    }
}

std::int32_t Sequence::timed_decode(const llama_batch & batch, bool cut) {
    take_off_samplers();
    const auto started = std::chrono::steady_clock::now();
    const std::int32_t result = head_.decode(context_, batch, cut);
    decode_ns_ += ns_since(started);
    ++n_passes_;
    return result;
}

}  // namespace token_trie
