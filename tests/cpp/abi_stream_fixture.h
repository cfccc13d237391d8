#pragma once

#include "answer.h"

namespace token_trie::test {

// A callback made of a function object, which is called on every token.
struct Listener {
    std::function<bool(const token_trie_token &)> on_token = [](const token_trie_token & /*token*/) { return true; };
    std::string text;
    Tokens tokens;

    static bool call(const token_trie_token * token, void * user) {
        auto & self = *static_cast<Listener *>(user);
        self.tokens.push_back(token->id);
        self.text.append(token->text, token->text_len);
        return self.on_token(*token);
    }
};

class AbiStream : public WithTinyModel {
   protected:
    static inline const Tokens kPrompt = bytes("Do: ");
    static inline const std::string kReadOrSend = payload_of({{"READ", bytes("READ")}, {"SEND", bytes("SEND")}});
    static inline const std::string kRead4 = payload_of({{"READ", bytes("READ")}});

    static token_trie_params end_params() {
        auto params = sized<token_trie_params>();
        params.on_complete = TOKEN_TRIE_END;
        return params;
    }

    static Handle open(const token_trie_stream_params & params = sized<token_trie_stream_params>(),
                       TinyKind kind = TinyKind::attention) {
        Handle out = open_tiny(tiny_context_params(), kind, params);
        EXPECT_EQ(prefill(out, kPrompt), TOKEN_TRIE_OK) << token_trie_last_error();
        return out;
    }
    static Handle open_file(const token_trie_stream_params & params) {
        return Handle(token_trie_stream_open_file(tiny_model_path().c_str(), &params));
    }
    static token_trie_stream_params file_params() {
        auto params = sized<token_trie_stream_params>();
        params.n_ctx = 256;
        params.n_batch = 64;
        params.n_threads = 1;
        return params;
    }

    static std::int32_t prefill(const Handle & stream, const Tokens & tokens) {
        return token_trie_stream_prefill(stream.get(), tokens.data(), tokens.size());
    }
    static std::int32_t set(const Handle & stream, const std::string & payload, int mode = TOKEN_TRIE_GREEDY) {
        return set_trie(stream.get(), payload, mode);
    }
    static std::int32_t generate(const Handle & stream, Listener & listener, std::int32_t max_tokens = 32) {
        return token_trie_stream_generate(stream.get(), max_tokens, Listener::call, &listener);
    }
    static std::string text_of(const Handle & stream, std::int32_t max_tokens = 32) {
        Listener listener;
        EXPECT_EQ(generate(stream, listener, max_tokens), TOKEN_TRIE_OK) << token_trie_last_error();
        return listener.text;
    }
    static token_trie_stream_state state_of(const Handle & stream) {
        auto state = sized<token_trie_stream_state>();
        EXPECT_EQ(token_trie_stream_get_state(stream.get(), &state), TOKEN_TRIE_OK) << token_trie_last_error();
        return state;
    }

    // The message of a call that failed, whose status last_status agrees with.
    static std::string refusal(std::int32_t expected, std::int32_t status) {
        EXPECT_EQ(status, expected) << token_trie_last_error();
        EXPECT_EQ(token_trie_last_status(), expected);
        return token_trie_last_error();
    }
    static std::string refusal(std::int32_t expected, const void * pointer) {
        EXPECT_EQ(pointer, nullptr);
        EXPECT_EQ(token_trie_last_status(), expected) << token_trie_last_error();
        return token_trie_last_error();
    }

    // Every function, on a handle that is none.
    static void expect_all_refused(token_trie_stream * stream, const std::string & message) {
        const token_trie_params params = end_params();
        auto state = sized<token_trie_stream_state>();
        auto token = sized<token_trie_token>();
        std::int32_t stop = 0;
        const auto expect = [&](std::int32_t status) {
            EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, status), message);
        };
        EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_get_vocab(stream)), message);
        expect(token_trie_stream_prefill(stream, kPrompt.data(), kPrompt.size()));
        expect(token_trie_stream_import_prefix(stream, tiny_context().get(), 0, kPrompt.data(), kPrompt.size()));
        expect(token_trie_stream_set_grammar(stream, "root ::= \"a\"", nullptr));
        expect(token_trie_stream_set_grammar(stream, nullptr, nullptr));
        expect(token_trie_stream_set_token_trie(stream, set_of(kRead4).get(), &params));
        expect(set_sampling(stream, 1));
        AnswerHandle none;
        expect(answer(stream, query_of(set_of(kRead4), TOKEN_TRIE_QUERY_SCORES), none));
        expect(token_trie_stream_generate(stream, 1, nullptr, nullptr));
        expect(token_trie_stream_next(stream, &token, &stop));
        expect(token_trie_stream_get_state(stream, &state));
        expect(token_trie_stream_clear_token_trie(stream));
        token_trie_stream_cancel(stream);
        token_trie_stream_close(stream);
    }
};

}  // namespace token_trie::test
