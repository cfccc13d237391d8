#include "stream/sequence.h"

#include "sampler/llama_version.h"

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <optional>

namespace token_trie {
namespace {

// A batch of up to so many tokens is as much a step as a prompt, and takes the threads of one: all threads that there
// are would wait for each other longer than they work.
constexpr std::size_t kStep = 32;

std::size_t common_prefix(const std::vector<Token> & a, const std::vector<Token> & b) {
    return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

std::uint64_t ns_since(std::chrono::steady_clock::time_point start) {
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

// Meanwhile, a batch takes no more threads than a single token. llama.cpp logs each change, so none is made in vain.
class FewThreads {
   public:
    explicit FewThreads(llama_context * context)
        : context_(context), n_(llama_n_threads(context)), n_batch_(llama_n_threads_batch(context)) {
        if (n_ < n_batch_) {
            llama_set_n_threads(context_, n_, n_);
        }
    }
    ~FewThreads() {
        if (n_ < n_batch_) {
            llama_set_n_threads(context_, n_, n_batch_);
        }
    }
    FewThreads(const FewThreads &) = delete;
    FewThreads & operator=(const FewThreads &) = delete;
    FewThreads(FewThreads &&) = delete;
    FewThreads & operator=(FewThreads &&) = delete;

   private:
    llama_context * context_;
    std::int32_t n_;
    std::int32_t n_batch_;
};

}  // namespace

void Sequence::FreeModel::operator()(llama_model * model) const noexcept { llama_model_free(model); }
void Sequence::FreeContext::operator()(llama_context * context) const noexcept { llama_free(context); }

void Sequence::prepare(llama_context_params & params) {
    require_same_llama();
    params.embeddings = false;
    params.kv_unified = true;
    params.swa_full = true;
    OutputHead::listen(params);
}

Sequence::Sequence(llama_context * context) {
    require_same_llama();
    adopt(context);
}

Sequence::Sequence(const std::string & gguf_path, const FileOptions & options) {
    require_same_llama();
    ggml_backend_load_all();
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = options.n_gpu_layers < 0 ? 9999 : options.n_gpu_layers;
    owned_model_.reset(llama_model_load_from_file(gguf_path.c_str(), model_params));
    if (!owned_model_) {
        throw Error(Status::argument, "gguf_path: " + quote(gguf_path) + " could not be loaded as a model");
    }
    llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = static_cast<std::uint32_t>(options.n_ctx);
    if (options.n_batch > 0) {
        context_params.n_batch = static_cast<std::uint32_t>(options.n_batch);
    }
    if (options.n_threads > 0) {
        context_params.n_threads = options.n_threads;
        context_params.n_threads_batch = options.n_threads;
    }
    prepare(context_params);
    owned_context_.reset(llama_init_from_model(owned_model_.get(), context_params));
    if (!owned_context_) {
        throw Error(Status::argument, "no context of " + std::to_string(options.n_ctx) + " tokens could be made");
    }
    adopt(owned_context_.get());
}

Sequence::~Sequence() = default;

void Sequence::adopt(llama_context * context) {
    const llama_model * model = llama_get_model(context);
    context_ = context;
    vocab_ = llama_model_get_vocab(model);
    n_swa_ = llama_model_n_swa(model);
    n_batch_ = llama_n_batch(context);
    capacity_ = llama_n_ctx(context);
    if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
        throw Error(Status::argument, "context: its model is not a decoder");
    }
    if (llama_vocab_type(vocab_) == LLAMA_VOCAB_TYPE_NONE) {
        throw Error(Status::argument, "context: its model has no tokenizer");
    }
    if (llama_get_memory(context) == nullptr) {
        throw Error(Status::argument, "context: it has no memory for a sequence");
    }
    llama_memory_clear(llama_get_memory(context), true);
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
        const bool cut = !step_by_step && head_.suits(wanted);
        while (n_cached_ < tokens_.size()) {
            if (cancelled) {
                throw Error(Status::cancelled, "cancelled");
            }
            const std::size_t n_left = tokens_.size() - n_cached_;
            const std::size_t n = std::min(step_by_step ? 1 : n_batch_, n_left);
            decode(&tokens_[n_cached_], n, cut && n == n_left);
        }
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

// Drops the cache entries behind n_cached_. Where these cannot be dropped alone, as in recurrent models, or the window
// of sliding attention before them is gone, the cache begins anew.
void Sequence::trim_cache() {
    if (!cache_is_longer_) {
        return;
    }
    llama_memory_t memory = llama_get_memory(context_);
    const auto keep = static_cast<llama_pos>(n_cached_);
    const bool window_is_whole = llama_memory_seq_pos_min(memory, 0) <= std::max(0, keep - n_swa_);
    if (keep == 0 || !window_is_whole || !llama_memory_seq_rm(memory, 0, keep, -1)) {
        llama_memory_seq_rm(memory, 0, -1, -1);
        n_cached_ = 0;
    }
    cache_is_longer_ = false;
    has_logits_ = false;
}

void Sequence::decode(Token * tokens, std::size_t n, bool cut) {
    has_logits_ = false;
    cache_is_longer_ = true;  // some of a batch that fails may have been taken in
    const auto started = std::chrono::steady_clock::now();
    const std::optional<FewThreads> few = n <= kStep ? std::optional<FewThreads>(context_) : std::nullopt;
    const std::int32_t result = head_.decode(context_, llama_batch_get_one(tokens, static_cast<std::int32_t>(n)), cut);
    decode_ns_ += ns_since(started);
    ++n_passes_;
    if (result != 0) {
        throw Error(Status::context,
                    result == 1 ? "the context is full" : "llama_decode failed with " + std::to_string(result));
    }
    n_cached_ += n;
    cache_is_longer_ = false;
    has_logits_ = true;
}

}  // namespace token_trie
