#include "decode/decoder.h"

#include "llama/library.h"
#include "llama/vocab.h"

#include <llama.h>

#include <limits>

namespace token_trie {
namespace {

// Whether the span is over, which it is too where only end-of-generation tokens are left: no need to query the model
// which. The cursor then takes one.
bool finish_span(Cursor & cursor, const llama_vocab * vocab) {
    const bool released = cursor.follow().on_complete() == OnComplete::release;
    if (cursor.state() == State::constrained && !released) {
        const AllowedSet next = cursor.allowed();
        Token end = -1;
        if (!next.everything && next.for_each([&](Token token) {
                end = token;
                return llama_vocab_is_eog(vocab, token) && cursor.ends_with(token);
            })) {
            cursor.accept(end);
        }
    }
    return cursor.state() == State::complete && !released;
}

}  // namespace

Decoder::Decoder(const llama_vocab * vocab, const Sampling & sampling, bool has_text)
    : vocab_(vocab), has_text_(has_text), picker_(vocab, sampling) {}

void Decoder::set_trie(Cursor cursor, Mode mode) {
    cursor_ = std::move(cursor);
    mode_ = mode;
    begin_span();
}

void Decoder::begin() noexcept {
    if (cursor_ && !cursor_->is_active() && cursor_->follow().on_complete() != OnComplete::release) {
        begin_span();
    }
}

void Decoder::restart() noexcept {
    picker_.restart();
    text_.reset();
    begin_span();
}

void Decoder::add_counts(const Counts & other) noexcept {
    counts_.n_forced += other.n_forced;
    counts_.n_branches += other.n_branches;
    counts_.n_free += other.n_free;
    counts_.n_closed += other.n_closed;
}

void Decoder::begin_span() noexcept {
    counts_.span_logprob = 0;
    if (cursor_) {
        cursor_->reset();
    }
}

Decoder::Outcome Decoder::step(Host & host, WrittenText * written) {
    picker_.reserve();
    host.reserve();
    Cursor * const cursor = cursor_.has_value() && cursor_->is_active() ? &*cursor_ : nullptr;
    const AllowedSet allowed = this->allowed();
    last_ = pick(host, allowed);
    const Step & step = last_;
    const double span_logprob = counts_.span_logprob + (allowed.everything ? 0 : static_cast<double>(step.logprob));
    if (llama_vocab_is_eog(vocab_, step.token) && (cursor == nullptr || cursor->ends_with(step.token))) {
        counts_.n_branches += !allowed.everything && !step.forced ? 1 : 0;
        counts_.span_logprob = span_logprob;
        if (cursor != nullptr) {
            cursor->accept(step.token);
        }
        return {false, allowed.everything ? Stop::end : Stop::complete};
    }
    Utf8Stream text = text_;
    if (has_text_) {
        last_.text = text.feed(detokenize(vocab_, &step.token, 1, /* special = */ false));
    }
    std::uint64_t & count = allowed.everything ? counts_.n_free : step.forced ? counts_.n_forced : counts_.n_branches;
    // The marker's own tokens stay where they are, also where they spell a stop string.
    const bool begins_span = cursor != nullptr && cursor->begins_span(step.token);
    if (written != nullptr && !begins_span && written->add(step.text, text.is_whole())) {
        ++count;
        return {false, Stop::string};
    }
    host.check_not_full();
    const bool is_text = written != nullptr && cursor != nullptr && cursor->state() == State::thinking;
    bool is_closed = false;
    if (cursor != nullptr) {
        const bool was_closed = cursor->is_closed();
        cursor->accept(step.token);
        is_closed = !was_closed && cursor->is_closed();
    }
    host.append(step.token);
    text_ = std::move(text);
    counts_.span_logprob = span_logprob;
    picker_.accept(step.token);
    ++count;
    if (is_closed) {
        ++counts_.n_closed;
        log_warning(kSpanClosed);
    }
    const bool is_over =
        cursor != nullptr && cursor_ && (is_text ? cursor_->state() != State::thinking : finish_span(*cursor_, vocab_));
    return {true, is_over ? Stop::complete : Stop::none};
}

Decoder::Step Decoder::pick(Host & host, const AllowedSet & allowed) {
    if (allowed.everything) {
        const Token token = picker_.pick_any(host.logits(allowed), /* under_grammar = */ !cursor_, allowed.except);
        return {token, false, std::numeric_limits<float>::quiet_NaN(), {}};
    }
    if (const Token only = allowed.only(); only >= 0) {
        host.before_forced(allowed);
        return {only, true, 0, {}};
    }
    const bool greedy = mode_ == Mode::greedy;
    const std::optional<Picker::Pick> best = picker_.takes_the_best(greedy) ? host.best(allowed) : std::nullopt;
    const Picker::Pick pick = best ? *best : picker_.pick_allowed(allowed, host.logits(allowed), greedy);
    return {pick.token, false, pick.logprob, {}};
}

}  // namespace token_trie
