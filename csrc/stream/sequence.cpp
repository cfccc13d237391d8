#include "stream/sequence.h"

#include "llama/version.h"
#include "stream/common_prefix.h"
#include "stream/window.h"
#include "walk/make_room.h"

#include <algorithm>
#include <chrono>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

// A batch of up to so many tokens is as much a step as a prompt, and takes the threads of one: all threads that there
// are would wait for each other longer than they work.
constexpr std::size_t kStep = 32;
// A context keeps logits for each of its sequence ids. They are added so many at a time.
constexpr std::size_t kIds = 4;

std::uint64_t ns_since(std::chrono::steady_clock::time_point start) {
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

}  // namespace

Sequence::Sequence(llama_context * context) {
    require_same_llama();
    adopt(context);
}

Sequence::Sequence(ContextMaker maker)
    : maker_(std::make_unique<ContextMaker>(std::move(maker))), owned_context_(maker_->make_first()), is_own_(true) {
    if (owned_context_ == nullptr) {
        throw Error(Status::argument, "no context could be made of the model and the params");
    }
    adopt(owned_context_.get());
    capacity_ = maker_->max_tokens();
    n_ids_ = maker_->max_ids();
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
    has_threads_of_step_ = false;
    head_.expect_another();
    n_ids_ = llama_n_seq_max(context);
    capacity_ = room_ = llama_n_ctx_seq(context);
}

// There is no asking whether a context gives embeddings or looks ahead, and on some of these llama.cpp gives no logits,
// or ends the process.
void Sequence::make_own() {
    llama_memory_clear(llama_get_memory(context_), true);
    llama_set_embeddings(context_, false);
    llama_set_causal_attn(context_, true);
    is_own_ = true;
}

void Sequence::replace(std::vector<Token> tokens, const std::atomic<bool> & cancelled) {
    if (tokens.size() > capacity()) {
        throw Error(Status::context,
                    std::to_string(tokens.size()) + " tokens do not fit the context of " + std::to_string(capacity()));
    }
    const std::size_t n_same = common_prefix(tokens_, tokens);
    const auto switch_to = [&](std::vector<Token> & other) {
        tokens_.swap(other);
        count_cached(n_same);
    };
    switch_to(tokens);
    try {
        static_cast<void>(logits({true, {}, {}}, false, cancelled));
        if (cancelled) {  // in the last pass
            throw Error(Status::cancelled, "cancelled");
        }
    } catch (...) {
        switch_to(tokens);
        throw;
    }
}

void Sequence::append(Token token) {
    check_not_full();
    tokens_.push_back(token);
}

void Sequence::check_not_full() const {
    if (tokens_.size() >= capacity()) {
        throw Error(Status::context, "the context of " + std::to_string(capacity()) + " tokens is full");
    }
}

void Sequence::reserve(std::size_t n) { token_trie::make_room(tokens_, n); }

void Sequence::cut(std::size_t n) {
    if (n >= tokens_.size()) {
        return;
    }
    tokens_.resize(n);
    count_cached(n);
}

const float * Sequence::logits(const AllowedSet & wanted, bool step_by_step, const std::atomic<bool> & cancelled) {
    const bool few = OutputHead::are_few(wanted, n_vocab_);
    if (evaluate(step_by_step, !step_by_step && few, few ? &wanted : nullptr, DeviceHead::Want::logits, cancelled)) {
        device_logits_.resize(n_vocab_);
        const auto started = std::chrono::steady_clock::now();
        device_.fetch(wanted, device_logits_.data());
        decode_ns_ += ns_since(started);
        return device_logits_.data();
    }
    return last_logits(wanted);
}

std::optional<DeviceHead::Best> Sequence::best(const AllowedSet & wanted,
                                               bool step_by_step,
                                               const std::atomic<bool> & cancelled) {
    if (!is_on_device() || (has_logits_ && n_cached_ == tokens_.size())) {
        return std::nullopt;
    }
    const bool cut = !step_by_step && OutputHead::are_few(wanted, n_vocab_);
    if (!evaluate(step_by_step, cut, &wanted, DeviceHead::Want::best, cancelled)) {
        return std::nullopt;
    }
    const auto started = std::chrono::steady_clock::now();
    const DeviceHead::Best best = device_.best();
    decode_ns_ += ns_since(started);
    return best;
}

// Catches up; with tokens wanted, the last pass ends on the device if it can, and then true is returned: the context
// has no logits, but what was wanted.
bool Sequence::evaluate(bool step_by_step,
                        bool cut,
                        const AllowedSet * wanted,
                        DeviceHead::Want want,
                        const std::atomic<bool> & cancelled) {
    if (tokens_.empty()) {
        throw Error(Status::argument, "nothing to go on from: prefill first");
    }
    if (has_logits_ && n_cached_ == tokens_.size()) {
        return false;
    }
    if (n_cached_ == tokens_.size()) {
        // All is cached but nobody kept the logits: the last token is evaluated again.
        --n_cached_;
        cache_is_longer_ = true;
    }
    trim_cache();
    make_room(tokens_.size());
    while (n_cached_ < tokens_.size()) {
        if (cancelled) {
            throw Error(Status::cancelled, "cancelled");
        }
        const std::size_t n_left = tokens_.size() - n_cached_;
        const std::size_t n = std::min(step_by_step ? 1 : n_ubatch_, n_left);
        const bool is_last = n == n_left;
        if (is_last && wanted != nullptr && is_on_device() &&
            device_.prepare(context_, static_cast<std::size_t>(first_free_id()), *wanted, want)) {
            decode_on_device(n, *wanted);
            return true;
        }
        decode(&tokens_[n_cached_], n, cut && is_last);
    }
    return false;
}

const float * Sequence::last_logits(const AllowedSet & wanted) {
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

// Before the context's go.
void Sequence::keep_logits() {
    has_logits_ = has_logits_ && n_cached_ == tokens_.size();  // those of a token with others behind it are not kept
    if (has_logits_ && kept_logits_.empty()) {
        const float * logits = last_logits({true, {}, {}});
        kept_logits_.assign(logits, logits + n_vocab_);
    }
}

void Sequence::make_room(std::size_t n_tokens, std::size_t n_ids) {
    const std::size_t n_ids_here = llama_n_seq_max(context_);
    n_tokens += n_elsewhere();
    n_ids += static_cast<std::size_t>(first_free_id()) - 1;
    if (!maker_ || (n_tokens <= room_ && n_ids <= n_ids_here)) {
        return;
    }
    trim_cache();
    keep_logits();
    // What grows token by token is not copied for each few of them.
    const std::size_t n_next = n_tokens <= room_ ? room_
                               : n_cached_ > 0   ? std::max(n_tokens, room_ + room_ / 2)
                                                 : n_tokens;
    OwnedContext next = maker_->make(n_next, n_ids <= n_ids_here ? n_ids_here : (n_ids + kIds - 1) / kIds * kIds);
    if (next == nullptr) {
        throw Error(Status::memory, "no context of " + std::to_string(n_next) + " tokens could be made");
    }
    // The state of an empty cache is none to go on from: llama.cpp may end the process on it.
    if (n_cached_ > 0 && !SavedState(context_, 0).restore(next.get(), 0)) {
        forget_cache();
    }
    device_.detach();
    move_resting(next.get());
    adopt(next.get());
    capacity_ = maker_->max_tokens();
    n_ids_ = maker_->max_ids();
    owned_context_ = std::move(next);
}

// After the tokens behind the first n have changed.
void Sequence::count_cached(std::size_t n) {
    if (!taken_over_.empty()) {
        count_taken_over();
        has_logits_ = false;
    } else if (n_cached_ > n) {
        n_cached_ = n;
        cache_is_longer_ = true;
        has_logits_ = false;
    }
}

void Sequence::count_taken_over() {
    n_cached_ = common_prefix(taken_over_, tokens_);
    cache_is_longer_ = n_cached_ < taken_over_.size();
}

void Sequence::evaluate_beside(const llama_batch & batch) {
    device_.detach();
    keep_logits();
    take_threads(/* of_step = */ true);
    const std::int32_t result = timed_decode(batch, false);
    check_pass(result);
}

// Of a batch that fails, llama.cpp may already have taken cells out of a window, and left a gap in it.
void Sequence::check_pass(std::int32_t result) {
    if (result == 0) {
        return;
    }
    if (n_swa_ > 0) {
        forget_all_branches();
    }
    throw Error(Status::context,
                result == 1 ? "the context is full" : "llama_decode failed with " + std::to_string(result));
}

void Sequence::forget_cache() noexcept {
    n_cached_ = 0;
    taken_over_.clear();
    cache_is_longer_ = true;
    has_logits_ = false;
}

void Sequence::check_window() noexcept {
    if (!has_window(llama_get_memory(context_), 0, n_cached_, n_swa_)) {
        forget_cache();
    }
}

// Drops the cache entries behind n_cached_. Where these cannot be dropped alone, as in recurrent models, or the window
// of sliding attention before them is gone, the cache begins anew.
void Sequence::trim_cache() {
    if (!is_own_) {
        make_own();
    }
    taken_over_.clear();
    if (!cache_is_longer_) {
        return;
    }
    keep_logits();
    llama_memory_t memory = llama_get_memory(context_);
    const auto keep = static_cast<llama_pos>(n_cached_);
    if (keep == 0 || !has_window(memory, 0, n_cached_, n_swa_) || !llama_memory_seq_rm(memory, 0, keep, -1)) {
        llama_memory_seq_rm(memory, 0, -1, -1);
        n_cached_ = 0;
    }
    cells_.resize(std::min(cells_.size(), n_cached_));
    cache_is_longer_ = false;
    has_logits_ = has_logits_ && n_cached_ == tokens_.size();
}

void Sequence::decode(Token * tokens, std::size_t n, bool cut) {
    has_logits_ = false;
    kept_logits_.clear();
    cache_is_longer_ = true;  // some of a batch that fails may have been taken in
    take_threads(n <= kStep);
    const std::int32_t result = timed_decode(llama_batch_get_one(tokens, static_cast<std::int32_t>(n)), cut);
    check_pass(result);
    n_cached_ += n;
    cache_is_longer_ = false;
    has_logits_ = true;
}

void Sequence::decode_on_device(std::size_t n, const AllowedSet & wanted) {
    has_logits_ = false;
    kept_logits_.clear();
    cache_is_longer_ = true;
    take_threads(n <= kStep);
    const auto started = std::chrono::steady_clock::now();
    const std::int32_t result = device_.decode(&tokens_[n_cached_], n, n_cached_, wanted);
    decode_ns_ += ns_since(started);
    ++n_passes_;
    check_pass(result);
    ++n_on_device_;
    n_cached_ += n;
    cache_is_longer_ = false;
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
    if (maker_) {
        return;  // there are none but the device head's
    }
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
