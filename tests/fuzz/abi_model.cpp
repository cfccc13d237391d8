#include "abi_model.h"

#include "fuzz.h"

#include <cmath>
#include <cstring>

namespace token_trie::fuzz {
namespace {

// Whole characters of UTF-8, by a table of lengths; the reader of texts replaces what can be none.
bool is_utf8(const char * text, std::size_t n) {
    for (std::size_t i = 0; i < n;) {
        const auto first = static_cast<unsigned char>(text[i]);
        const std::size_t length = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 0;
        if (length == 0 || i + length > n) {
            return false;
        }
        for (std::size_t k = 1; k < length; ++k) {
            if ((static_cast<unsigned char>(text[i + k]) & 0xC0U) != 0x80U) {
                return false;
            }
        }
        i += length;
    }
    return true;
}

}  // namespace

void StreamModel::begin_span() {
    is_over_ = false;
    if (set_) {
        oracle_.emplace(set_->members, set_->options);
    }
}

void StreamModel::prefill(test::Tokens tokens) {
    tokens_ = std::move(tokens);
    begin_span();
}

void StreamModel::put(SetModel set) {
    set_ = std::move(set);
    begin_span();
}

void StreamModel::clear() {
    set_.reset();
    oracle_.reset();
}

StreamModel StreamModel::fork() const {
    StreamModel out = *this;
    out.n_forced_ = out.n_chosen_ = out.n_free_ = out.n_ends_ = 0;
    return out;
}

void StreamModel::begin_generate() {
    is_over_ = false;
    if (set_ && !is_constrained() && !is_released()) {
        begin_span();
    }
}

bool StreamModel::ends_span(Token token) const {
    test::Oracle next = *oracle_;
    // A member's last token may end the span too.
    return ends_.count(token) > 0 && next.accept(token) && next.state() == State::complete &&
           next.item() == oracle_->item() && next.n_items() == oracle_->n_items();
}

void StreamModel::emit(const token_trie_token & token) {
    require(!is_over_, "no token behind the end of a span");
    require(token.text_len == std::strlen(token.text) || std::memchr(token.text, 0, token.text_len) != nullptr,
            "a text's length");
    require(is_utf8(token.text, token.text_len), "texts are whole characters");
    require(tokens_.size() < capacity_, "a full context takes no token");
    const std::optional<std::set<Token>> allowed = is_constrained() ? oracle_->allowed() : std::nullopt;
    if (!allowed) {
        require(token.forced == 0 && std::isnan(token.logprob), "free text has no logprob");
        require(ends_.count(token.id) == 0 || (is_constrained() && !ends_span(token.id)), "ends are not passed on");
        ++n_free_;
    } else {
        require(allowed->count(token.id) > 0, "a token under a trie is allowed");
        require(!ends_span(token.id), "an end of generation that ends a span is not passed on");
        require((token.forced == 1) == (allowed->size() == 1), "a token is forced where it is the only one");
        require(token.forced == 0 || token.logprob == 0, "a forced token has the logprob 0");
        require(token.logprob <= 1e-5F, "a logprob is no more than 0");
        ++(token.forced == 1 ? n_forced_ : n_chosen_);
    }
    tokens_.push_back(token.id);
    if (!is_constrained()) {
        return;
    }
    require(oracle_->accept(token.id), "what is allowed is taken");
    if (is_constrained() && !is_released()) {
        // Nothing but ends of generation left: the span is over without one.
        const std::optional<std::set<Token>> next = oracle_->allowed();
        if (next && std::all_of(next->begin(), next->end(), [&](Token t) { return ends_span(t); })) {
            oracle_->accept(*next->begin());
        }
    }
    is_over_ = oracle_->state() == State::complete && !is_released();
}

void StreamModel::end_generate(std::int32_t stop) {
    if (stop != TOKEN_TRIE_STOP_COMPLETE && stop != TOKEN_TRIE_STOP_END) {
        require(!is_over_ || stop == TOKEN_TRIE_STOP_CALLBACK, "a span that is over stops");
        return;
    }
    if (stop == TOKEN_TRIE_STOP_COMPLETE) {
        require(set_.has_value() && !is_released(), "only a span completes");
    }
    if (is_over_) {
        require(stop == TOKEN_TRIE_STOP_COMPLETE, "a span that is over is complete");
        return;
    }
    if (!is_constrained()) {
        require(stop == TOKEN_TRIE_STOP_END, "free text ends");
        return;
    }
    // An end token that was not passed on.
    const std::optional<std::set<Token>> allowed = oracle_->allowed();
    require(!allowed == (stop == TOKEN_TRIE_STOP_END), "free text behind a released member ends, a span completes");
    const auto end = std::find_if(ends_.begin(), ends_.end(), [&](Token t) { return ends_span(t); });
    require(end != ends_.end(), "an end token was allowed");
    n_ends_ += allowed && allowed->size() > 1 ? 1 : 0;
    oracle_->accept(*end);
}

void StreamModel::end_at_string(test::Tokens tokens, const token_trie_stream_state & state) {
    require(state.n_forced >= n_forced_ && state.n_branches >= n_chosen_ + n_ends_ && state.n_free >= n_free_ &&
                state.n_forced + state.n_branches + state.n_free == n_forced_ + n_chosen_ + n_ends_ + n_free_ + 1,
            "the token that completes a text to stop at is counted, and it alone");
    n_forced_ = state.n_forced;
    n_chosen_ = state.n_branches - n_ends_;
    n_free_ = state.n_free;
    prefill(std::move(tokens));
}

void StreamModel::check(const token_trie_stream_state & state) const {
    require(state.n_tokens == tokens_.size(), "n_tokens");
    require(state.n_cached <= state.n_tokens, "n_cached");
    require(state.n_forced == n_forced_ && state.n_free == n_free_ && state.n_branches == n_chosen_ + n_ends_,
            "counts");
    require(!std::isnan(state.logprob) && state.logprob <= 1e-4, "a span's logprob");
    require(state.span == (set_ ? static_cast<std::int32_t>(oracle_->state()) : -1), "span");
    if (set_) {
        require(state.n_items == oracle_->n_items(), "n_items");
        require(state.leaf >= -1 && state.leaf < static_cast<std::int64_t>(set_->n_leaves), "leaf");
        require((state.leaf == -1) == (state.leaf_name == nullptr), "leaf_name");
        require(state.leaf_name == nullptr || std::strlen(state.leaf_name) == 2, "leaf_name is a name");
        require(oracle_->n_items() > 0 || state.leaf == -1, "no leaf before one is finished");
    }
}

}  // namespace token_trie::fuzz
