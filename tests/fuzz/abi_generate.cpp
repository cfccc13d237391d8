#include "abi_calls.h"
#include "answer.h"

namespace token_trie::fuzz {

using test::Tokens;

// A callback's behaviour, and what came of it.
struct Caller::Generation {
    Caller * caller = nullptr;
    std::uint32_t action = 0;  // see on_token
    std::int32_t left = 0;     // tokens until then
    std::int32_t n_tokens = 0;
    bool stopped = false;
    bool cancelled = false;
    bool closed = false;
    std::string text;
};

bool Caller::on_token(const token_trie_token * token, void * user) {
    auto & self = *static_cast<Generation *>(user);
    require(!self.stopped, "no token after the callback said no");
    require(token->size == sizeof *token, "a token's size");
    ++self.n_tokens;
    self.caller->model_.emit(*token);
    self.text.append(token->text, token->text_len);
    if (self.left-- != 0) {
        return true;
    }
    switch (self.action) {
        case 0: self.stopped = true; return false;
        case 1:
            token_trie_stream_cancel(self.caller->stream_);
            self.cancelled = true;
            return true;
        case 2:
            token_trie_stream_close(self.caller->stream_);
            self.closed = true;
            return true;
        case 3: self.caller->call_from_callback(static_cast<std::uint32_t>(self.n_tokens)); return true;
        default: return true;
    }
}

// All of these are refused, and change nothing.
void Caller::call_from_callback(std::uint32_t which) {
    const Token token = 10;
    auto state = sized<token_trie_stream_state>();
    auto out = sized<token_trie_token>();
    const std::string payload = test::payload_of({{"m0", {10}}});
    std::int32_t stop = 0;
    std::int32_t status = TOKEN_TRIE_ERROR_BUSY;
    require(is_closed_by_another_ || token_trie_stream_get_vocab(stream_) != nullptr,
            "a vocabulary can be had in a call");
    switch (which % 8) {
        case 0: status = token_trie_stream_prefill(stream_, &token, 1); break;
        case 1: status = token_trie_stream_set_token_trie(stream_, test::set_of(payload).get(), nullptr); break;
        case 2: status = token_trie_stream_get_state(stream_, &state); break;
        case 3: status = token_trie_stream_generate(stream_, 1, nullptr, nullptr); break;
        case 4: status = token_trie_stream_next(stream_, &out, &stop); break;
        case 5: status = test::set_sampling(stream_, 1); break;
        case 6:
            require(token_trie_stream_fork(stream_) == nullptr, "no fork in a call");
            status = token_trie_last_status();
            break;
        default: token_trie_stream_clear_token_trie(stream_); break;
    }
    const bool may_be_closed = is_closed_by_another_ && status == TOKEN_TRIE_ERROR_ARGUMENT;
    require(status == TOKEN_TRIE_ERROR_BUSY || may_be_closed, "a stream in a call refuses another");
}

void Caller::generate_until(Input & in) {
    static const std::array<std::vector<const char *>, 6> texts = {
        {{"E"}, {"AD_", "\n"}, {"READ_FILE"}, {"D", "READ"}, {"\xc3\xa9", "a"}, {"A", ""}}};
    generate(in, in.one_of(texts));
}

void Caller::generate(Input & in, const std::vector<const char *> & stops) {
    static constexpr std::array<float, 6> temperatures = {0, 0, 1, 0.5F, 100, -1};
    static constexpr std::array<float, 4> top_ps = {1, 1, 0.5F, -1};
    const std::uint32_t choice = in.byte();
    const float temperature = temperatures[choice % temperatures.size()];
    const float top_p = top_ps[choice / 8 % top_ps.size()];
    Expected sampled = expected();
    sampled.wrong_if(temperature < 0 || top_p < 0, TOKEN_TRIE_ERROR_ARGUMENT);
    if (!sampled.check(test::set_sampling(stream_, temperature, top_p))) {
        return;
    }
    const std::uint32_t rest = in.byte();
    const std::int32_t max_tokens = rest == 255 ? -1 : static_cast<std::int32_t>(rest % 8);
    Generation generation;
    generation.caller = this;
    generation.action = rest / 8 % 6;
    generation.left = static_cast<std::int32_t>(rest / 64);
    Expected wrong = expected();
    wrong.wrong_if(max_tokens < 0 || model_.tokens().empty(), TOKEN_TRIE_ERROR_ARGUMENT);
    const auto is_empty = [](const char * text) { return *text == '\0'; };
    const bool has_empty = std::any_of(stops.begin(), stops.end(), is_empty);
    wrong.wrong_if(has_empty, TOKEN_TRIE_ERROR_ARGUMENT);
    const bool is_refused = !is_open_ || has_empty || max_tokens < 0 || model_.tokens().empty();
    const StreamModel before = model_;
    if (!is_refused) {
        model_.begin_generate();
    }
    std::int32_t which = -2;
    const std::int32_t status = stops.empty()
                                    ? token_trie_stream_generate(stream_, max_tokens, on_token, &generation)
                                    : token_trie_stream_generate_until(stream_, max_tokens, stops.data(), stops.size(),
                                                                       on_token, &generation, &which);
    if (is_held_up() && (status == TOKEN_TRIE_ERROR_BUSY || status == TOKEN_TRIE_ERROR_ARGUMENT)) {
        require(generation.n_tokens == 0, "a refused call passes nothing on");
        model_ = before;
        return;
    }
    if (!is_refused) {
        // Only now is it known how far it came.
        wrong.wrong_if(status != TOKEN_TRIE_OK && model_.is_full(), TOKEN_TRIE_ERROR_CONTEXT);
        if (model_.has_grammar) {
            wrong.may(TOKEN_TRIE_ERROR_GRAMMAR);
        }
    }
    const bool succeeded = wrong.check(status);
    if (generation.closed) {
        is_open_ = false;
        return;
    }
    if (!succeeded) {
        require(status != TOKEN_TRIE_ERROR_CANCELLED, "a cancelled generate succeeds");
        return;
    }
    for (const char * text : stops) {
        require(generation.text.find(text) == std::string::npos, "no text to stop at is passed on");
    }
    auto state = sized<token_trie_stream_state>();
    std::int32_t got = TOKEN_TRIE_ERROR_BUSY;
    while ((got = token_trie_stream_get_state(stream_, &state)) == TOKEN_TRIE_ERROR_BUSY && is_held_up()) {
        std::this_thread::yield();
    }
    if (got != TOKEN_TRIE_OK) {
        require(is_closed_by_another_, "a state can be had");
        return;
    }
    const bool is_cut = !stops.empty() && state.stop == TOKEN_TRIE_STOP_MAX_TOKENS && generation.n_tokens < max_tokens;
    if (state.stop == TOKEN_TRIE_STOP_STRING || is_cut) {
        require(is_cut ? which == -1 : which >= 0 && static_cast<std::size_t>(which) < stops.size(),
                "it stops at one of the texts, or where the context is full before it");
        Tokens tokens(model_.capacity());
        std::size_t n = 0;
        while ((got = token_trie_stream_get_tokens(stream_, tokens.data(), tokens.size(), &n)) ==
                   TOKEN_TRIE_ERROR_BUSY &&
               is_held_up()) {
            std::this_thread::yield();
        }
        if (got != TOKEN_TRIE_OK) {
            require(is_closed_by_another_, "tokens can be had");
            return;
        }
        tokens.resize(n);
        const Tokens & begun = before.tokens();
        require(n >= begun.size() && std::equal(begun.begin(), begun.end(), tokens.begin()),
                "what stood before a text stands");
        require(n <= begun.size() + static_cast<std::size_t>(max_tokens), "no more than asked for");
        model_.end_at_string(std::move(tokens), state);
        return;
    }
    require(which == (stops.empty() ? -2 : -1), "it stops at none of the texts");
    model_.end_generate(state.stop);
    require((state.stop == TOKEN_TRIE_STOP_CALLBACK) == generation.stopped, "a callback that says no stops it");
    require(state.stop != TOKEN_TRIE_STOP_CANCELLED || generation.cancelled || is_disturbed_, "cancelled by someone");
    require(state.stop != TOKEN_TRIE_STOP_MAX_TOKENS || generation.n_tokens == max_tokens,
            "as many tokens as asked for");
    require(state.stop != TOKEN_TRIE_STOP_NONE && generation.n_tokens <= max_tokens, "no more than asked for");
}

void Caller::next(Input & in) {
    if (!expected().check(test::set_sampling(stream_, in.below(2) == 0 ? 0.0F : 1.0F))) {
        return;
    }
    auto token = sized<token_trie_token>();
    std::int32_t stop = -2;
    Expected wrong = expected();
    wrong.wrong_if(model_.tokens().empty(), TOKEN_TRIE_ERROR_ARGUMENT);
    const StreamModel before = model_;
    const bool begins = is_open_ && !model_.tokens().empty();
    if (begins) {
        model_.begin_generate();
        wrong.wrong_if(false, TOKEN_TRIE_ERROR_CONTEXT);
    }
    const std::int32_t status = token_trie_stream_next(stream_, &token, &stop);
    if (begins) {
        wrong.wrong_if(status != TOKEN_TRIE_OK && model_.is_full(), TOKEN_TRIE_ERROR_CONTEXT);
        if (model_.has_grammar) {
            wrong.may(TOKEN_TRIE_ERROR_GRAMMAR);
        }
    }
    if (!wrong.check(status)) {
        require(stop == -2 && token.text == nullptr, "on failure nothing is written");
        if (status == TOKEN_TRIE_ERROR_BUSY || status == TOKEN_TRIE_ERROR_ARGUMENT) {
            model_ = before;
        }
        return;
    }
    if (is_closed_by_another_) {
        return;  // and the text may be gone with the stream
    }
    if (token.id >= 0) {
        model_.emit(token);
    } else {
        require(token.id == -1 && token.text_len == 0 && *token.text == '\0', "no token has no text");
        require(stop != TOKEN_TRIE_STOP_MAX_TOKENS, "where there is no token it says why");
    }
    require(stop != TOKEN_TRIE_STOP_CANCELLED || is_disturbed_, "cancelled by someone");
    model_.end_generate(stop);
}

}  // namespace token_trie::fuzz
