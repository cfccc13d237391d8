#include "stream/sequence.h"

#include "stream/common_prefix.h"
#include "stream/finite.h"
#include "walk/reserve_more.h"

#include <algorithm>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

// A batch of up to so many tokens is as much a step as a prompt, and takes the threads of one: all threads that there
// are would wait for each other longer than they work.
constexpr std::size_t kStep = 32;

}  // namespace

Sequence::Sequence(llama_context * context) : context_(context) {}

Sequence::Sequence(ContextMaker maker) : context_(std::move(maker)) {}

Sequence::~Sequence() = default;

void Sequence::replace(std::vector<Token> tokens, const std::atomic<bool> & cancelled) {
    check_fits(tokens.size(), n_ctx_max());
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
    if (tokens_.size() >= n_ctx_max()) {
        throw Error(Status::context, "the context of " + std::to_string(n_ctx_max()) + " tokens is full");
    }
}

void Sequence::reserve(std::size_t n) { reserve_more(tokens_, n); }

void Sequence::cut(std::size_t n) {
    if (n >= tokens_.size()) {
        return;
    }
    tokens_.resize(n);
    count_cached(n);
}

const float * Sequence::logits(const AllowedSet & wanted, bool step_by_step, const std::atomic<bool> & cancelled) {
    const bool few = OutputHead::are_few(wanted, context_.n_vocab());
    const bool is_on_device =
        evaluate(step_by_step, !step_by_step && few, few ? &wanted : nullptr, DeviceHead::Want::logits, cancelled);
    const float * logits =
        is_on_device ? context_.wait_for([&] { return device_.fetch(wanted); }) : logits_.get(context_, wanted);
    or_forget([&] { check_finite(logits, wanted, context_.n_vocab()); });
    return logits;
}

std::vector<float> Sequence::hidden_state(const std::atomic<bool> & cancelled) {
    if (!has_logits() || !logits_.are_of_last_pass()) {
        logits_.forget();
        evaluate(/* step_by_step = */ false, /* cut = */ true, nullptr, DeviceHead::Want::logits, cancelled);
    }
    std::vector<float> state = context_.wait_for([&] {
        llama_synchronize(context());
        return context_.head().hidden_state();
    });
    or_forget([&] { check_finite(state); });
    return state;
}

std::optional<DeviceHead::Best> Sequence::best(const AllowedSet & wanted,
                                               bool step_by_step,
                                               const std::atomic<bool> & cancelled) {
    if (!is_on_device() || has_logits()) {
        return std::nullopt;
    }
    const bool cut = !step_by_step && OutputHead::are_few(wanted, context_.n_vocab());
    if (!evaluate(step_by_step, cut, &wanted, DeviceHead::Want::best, cancelled)) {
        return std::nullopt;
    }
    const DeviceHead::Best best = context_.wait_for([&] { return device_.best(); });
    or_forget([&] { check_finite({best.logprob}); });
    return best;
}

// What is not finite may stay in cells that others are evaluated beside.
template <typename Check>
void Sequence::or_forget(const Check & check) {
    try {
        check();
    } catch (const NotFinite &) {
        forget_all_branches();
        throw;
    }
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
    if (has_logits()) {
        return false;
    }
    if (n_cached_ == tokens_.size()) {
        // All is cached but nobody kept the logits: the last token is evaluated again.
        --n_cached_;
        cache_is_longer_ = true;
    }
    trim_cache();
    grow(tokens_.size());
    // What llama.cpp evaluates at a time, however large the batch.
    const std::size_t n_most = step_by_step ? 1 : llama_n_ubatch(context());
    while (n_cached_ < tokens_.size()) {
        if (cancelled) {
            throw Error(Status::cancelled, "cancelled");
        }
        const std::size_t n_left = tokens_.size() - n_cached_;
        const std::size_t n = std::min(n_most, n_left);
        const bool is_last = n == n_left;
        Token * const tokens = &tokens_[n_cached_];
        const bool ends_on_device =
            is_last && wanted != nullptr && is_on_device() &&
            device_.prepare(context(), static_cast<std::size_t>(first_free_id()), *wanted, want);
        begin_pass();
        if (ends_on_device) {
            check_pass(context_.decode_by(n <= kStep, [&] { return device_.decode(tokens, n, n_cached_, *wanted); }));
        } else {
            const llama_batch batch = llama_batch_get_one(tokens, static_cast<std::int32_t>(n));
            check_pass(context_.decode(batch, n <= kStep, cut && is_last));
            logits_.end_pass();
        }
        n_cached_ += n;
        cache_is_longer_ = false;
        if (ends_on_device) {
            return true;
        }
    }
    return false;
}

const float * Sequence::row(std::int32_t i) {
    const float * logits = context_.wait_for([&] { return LastLogits::row_of(context_, i); });
    or_forget([&] { check_finite(logits, {true, {}, {}}, context_.n_vocab()); });
    return logits;
}

void Sequence::begin_pass() noexcept {
    logits_.begin_pass();
    cache_is_longer_ = true;  // some of a batch that fails may have been taken in
}

// Before the context's go.
void Sequence::keep_logits() {
    if (!has_logits()) {
        logits_.forget();  // those of a token with others behind it are not kept
    }
    logits_.keep(context_);
}

void Sequence::grow(std::size_t n_tokens, std::size_t n_ids) {
    n_tokens += n_elsewhere();
    n_ids += static_cast<std::size_t>(first_free_id()) - 1;
    if (context_.has(n_tokens, n_ids)) {
        return;
    }
    trim_cache();
    keep_logits();
    OwnedContext next = context_.make_larger(n_tokens, n_ids, /* by_steps = */ n_cached_ > 0);
    // The state of an empty cache is none to go on from: llama.cpp may end the process on it.
    if (n_cached_ > 0 && !SavedState(context(), 0).restore(next.get(), 0)) {
        forget_cache();
        forget_sharing();
    }
    device_.detach();
    move_cells(llama_get_memory(next.get()));
    context_.replace(std::move(next));
}

// After the tokens behind the first n have changed.
void Sequence::count_cached(std::size_t n) {
    if (!import_.held.empty()) {
        count_imported();
        logits_.forget();
    } else if (n_cached_ > n) {
        n_cached_ = n;
        cache_is_longer_ = true;
        logits_.forget();
    }
}

void Sequence::count_imported() {
    n_cached_ = common_prefix(import_.held, tokens_);
    cache_is_longer_ = n_cached_ < import_.held.size();
}

void Sequence::evaluate_beside(const llama_batch & batch) {
    device_.detach();
    keep_logits();
    check_pass(context_.decode(batch, /* is_step = */ true, /* cut = */ false));
}

// Of a batch that fails, llama.cpp may already have taken cells out of a window, and left a gap in it.
void Sequence::check_pass(std::int32_t result) {
    if (result != 0 && context_.n_swa() > 0) {
        forget_all_branches();
    }
    check_decoded(result);
}

void Sequence::forget_cache() noexcept {
    n_cached_ = 0;
    import_.held.clear();
    cache_is_longer_ = true;
    logits_.forget();
}

void Sequence::check_window() noexcept {
    if (!cells_.has_window(0, n_cached_)) {
        forget_cache();
    }
}

// Drops the cache entries behind n_cached_. Where these cannot be dropped alone, as in recurrent models, or the window
// of sliding attention before them is gone, the cache begins anew.
void Sequence::trim_cache() {
    context_.take();
    import_.held.clear();
    if (!cache_is_longer_) {
        return;
    }
    keep_logits();
    if (!cells_.has_window(0, n_cached_) || !cells_.cut(0, n_cached_)) {
        cells_.cut(0, 0);
        n_cached_ = 0;
    }
    cache_is_longer_ = false;
    if (!has_logits()) {
        logits_.forget();
    }
}

}  // namespace token_trie
