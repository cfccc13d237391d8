#include "context/growing_context.h"

#include "llama/version.h"

#include <algorithm>

namespace token_trie {
namespace {

// A context keeps logits for each of its sequence ids. They are added so many at a time.
constexpr std::size_t kIds = 4;

}  // namespace

GrowingContext::GrowingContext(llama_context * context) {
    require_same_llama();
    adopt(context);
}

GrowingContext::GrowingContext(ContextMaker maker)
    : maker_(std::make_unique<ContextMaker>(std::move(maker))), owned_(maker_->make_first()), is_taken_(true) {
    if (owned_ == nullptr) {
        throw Error(Status::argument, "no context could be made of the model and the params");
    }
    adopt(owned_.get());
}

GrowingContext::~GrowingContext() {
    if (!is_own()) {
        take_threads(/* of_step = */ false);
    }
}

void GrowingContext::adopt(llama_context * context) {
    const llama_model * model = llama_get_model(context);
    check_model(model, "context: its model");
    check_threads(llama_n_threads(context), "context: n_threads");
    check_threads(llama_n_threads_batch(context), "context: n_threads_batch");
    if (llama_get_memory(context) == nullptr) {
        throw Error(Status::argument, "context: it has no memory for a sequence");
    }
    context_ = context;
    n_vocab_ = static_cast<std::size_t>(llama_vocab_n_tokens(vocab()));
    n_swa_ = llama_model_n_swa(model);
    n_threads_ = llama_n_threads(context);
    n_threads_batch_ = llama_n_threads_batch(context);
    has_threads_of_step_ = false;
    head_.expect_another();
}

bool GrowingContext::shares_cells() const noexcept {
    return can_drop_newest(model()) && llama_n_ctx_seq(context_) == llama_n_ctx(context_);
}

OwnedContext GrowingContext::make_larger(std::size_t n_tokens, std::size_t n_ids, bool by_steps) const {
    const std::size_t n_here = n_ctx();
    const std::size_t n_next = n_tokens <= n_here ? n_here
                               : by_steps         ? std::max(n_tokens, n_here + n_here / 2)
                                                  : n_tokens;
    OwnedContext next = maker_->make(n_next, n_ids <= this->n_ids() ? this->n_ids() : (n_ids + kIds - 1) / kIds * kIds);
    if (next == nullptr) {
        throw Error(Status::memory, "no context of " + std::to_string(n_next) + " tokens could be made");
    }
    return next;
}

void GrowingContext::replace(OwnedContext next) {
    adopt(next.get());
    owned_ = std::move(next);
}

// llama.cpp does not tell whether a context gives embeddings or looks ahead, and on some of these llama.cpp gives no
// logits, or ends the process.
void GrowingContext::take() {
    if (is_taken_) {
        return;
    }
    llama_memory_clear(memory(), true);
    llama_set_embeddings(context_, false);
    llama_set_causal_attn(context_, true);
    is_taken_ = true;
}

std::int32_t GrowingContext::decode(const llama_batch & batch, bool is_step, bool cut) {
    take_off_samplers();
    return decode_by(is_step, [&] { return head_.decode(context_, batch, cut); });
}

// Not for each pass and back: llama.cpp logs a change, and what listens may be slow, or Python.
void GrowingContext::take_threads(bool of_step) {
    if (of_step != has_threads_of_step_ && n_threads_ < n_threads_batch_) {
        llama_set_n_threads(context_, n_threads_, of_step ? n_threads_ : n_threads_batch_);
        has_threads_of_step_ = of_step;
    }
}

// What draws on the backend keeps the logits there. Costs next to nothing where none is set.
void GrowingContext::take_off_samplers() {
    if (is_own()) {
        return;  // there are none but the device head's
    }
    for (std::uint32_t id = 0; id < llama_n_seq_max(context_); ++id) {
        llama_set_sampler(context_, static_cast<llama_seq_id>(id), nullptr);
    }
}

}  // namespace token_trie
