#include "tiny_model.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>

#include <unistd.h>

namespace token_trie::test {
namespace {

static_assert(sizeof(token_trie_stream_params) == 56 && offsetof(token_trie_stream_params, size) == 0 &&
              offsetof(token_trie_stream_params, n_ctx) == 8 && offsetof(token_trie_stream_params, n_batch) == 12 &&
              offsetof(token_trie_stream_params, n_threads) == 16 &&
              offsetof(token_trie_stream_params, n_gpu_layers) == 20 &&
              offsetof(token_trie_stream_params, seed) == 24 && offsetof(token_trie_stream_params, top_k) == 28 &&
              offsetof(token_trie_stream_params, min_p) == 32 &&
              offsetof(token_trie_stream_params, penalty_last_n) == 36 &&
              offsetof(token_trie_stream_params, penalty_repeat) == 40 &&
              offsetof(token_trie_stream_params, penalty_freq) == 44 &&
              offsetof(token_trie_stream_params, penalty_present) == 48 &&
              offsetof(token_trie_stream_params, step_by_step) == 52);
static_assert(sizeof(token_trie_token) == 40 && offsetof(token_trie_token, size) == 0 &&
              offsetof(token_trie_token, id) == 8 && offsetof(token_trie_token, forced) == 12 &&
              offsetof(token_trie_token, logprob) == 16 && offsetof(token_trie_token, text_len) == 24 &&
              offsetof(token_trie_token, text) == 32);
static_assert(sizeof(token_trie_stream_state) == 112 && offsetof(token_trie_stream_state, size) == 0 &&
              offsetof(token_trie_stream_state, stop) == 8 && offsetof(token_trie_stream_state, span) == 12 &&
              offsetof(token_trie_stream_state, n_items) == 16 && offsetof(token_trie_stream_state, leaf) == 24 &&
              offsetof(token_trie_stream_state, leaf_name) == 32 && offsetof(token_trie_stream_state, logprob) == 40 &&
              offsetof(token_trie_stream_state, n_tokens) == 48 && offsetof(token_trie_stream_state, n_cached) == 56 &&
              offsetof(token_trie_stream_state, n_forced) == 64 &&
              offsetof(token_trie_stream_state, n_branches) == 72 && offsetof(token_trie_stream_state, n_free) == 80 &&
              offsetof(token_trie_stream_state, n_passes) == 88 && offsetof(token_trie_stream_state, decode_ns) == 96 &&
              offsetof(token_trie_stream_state, generate_ns) == 104);

const Tokens kPrompt = bytes("Do: ");
const std::string kReadOrSend = payload_of({{"READ", bytes("READ")}, {"SEND", bytes("SEND")}});
const std::string kRead4 = payload_of({{"READ", bytes("READ")}});

struct CloseStream {
    void operator()(token_trie_stream * stream) const { token_trie_stream_close(stream); }
};
using Handle = std::unique_ptr<token_trie_stream, CloseStream>;

token_trie_stream_params defaults() {
    token_trie_stream_params params{};
    params.size = sizeof params;
    return params;
}

token_trie_params end_params() {
    token_trie_params params{};
    params.size = sizeof params;
    params.on_complete = TOKEN_TRIE_END;
    return params;
}

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
    static Handle open(const Context & context, const token_trie_stream_params & params = defaults()) {
        Handle out(token_trie_stream_open(context.get(), &params));
        EXPECT_NE(out, nullptr) << token_trie_last_error();
        EXPECT_EQ(prefill(out, kPrompt), TOKEN_TRIE_OK) << token_trie_last_error();
        return out;
    }
    static Handle open_file(const token_trie_stream_params & params) {
        return Handle(token_trie_stream_open_file(tiny_model_path().c_str(), &params));
    }
    static token_trie_stream_params file_params() {
        token_trie_stream_params params = defaults();
        params.n_ctx = 256;
        params.n_batch = 64;
        params.n_threads = 1;
        return params;
    }

    static std::int32_t prefill(const Handle & stream, const Tokens & tokens) {
        return token_trie_stream_prefill(stream.get(), tokens.data(), tokens.size());
    }
    static std::int32_t set(const Handle & stream, const std::string & payload, int mode = TOKEN_TRIE_GREEDY) {
        return token_trie_stream_set_token_trie(stream.get(), payload.data(), payload.size(), mode);
    }
    static std::int32_t generate(const Handle & stream, Listener & listener, std::int32_t max_tokens = 32) {
        return token_trie_stream_generate(stream.get(), max_tokens, 0, 1, Listener::call, &listener);
    }
    static std::string text_of(const Handle & stream, std::int32_t max_tokens = 32) {
        Listener listener;
        EXPECT_EQ(generate(stream, listener, max_tokens), TOKEN_TRIE_OK) << token_trie_last_error();
        return listener.text;
    }
    static token_trie_stream_state state_of(const Handle & stream) {
        token_trie_stream_state state{};
        state.size = sizeof state;
        EXPECT_EQ(token_trie_stream_get_state(stream.get(), &state), TOKEN_TRIE_OK) << token_trie_last_error();
        return state;
    }
};

// What a call came to: its status, which last_status agrees with, and the message.
std::string refusal(std::int32_t expected, std::int32_t status) {
    EXPECT_EQ(status, expected) << token_trie_last_error();
    EXPECT_EQ(token_trie_last_status(), expected);
    return token_trie_last_error();
}
std::string refusal(std::int32_t expected, const void * pointer) {
    EXPECT_EQ(pointer, nullptr);
    EXPECT_EQ(token_trie_last_status(), expected) << token_trie_last_error();
    return token_trie_last_error();
}

TEST_F(AbiStream, ADecisionFromOpeningToClosing) {
    const Handle stream = open_file(file_params());
    ASSERT_NE(stream, nullptr) << token_trie_last_error();
    EXPECT_EQ(llama_vocab_n_tokens(token_trie_stream_get_vocab(stream.get())), kTinyVocab);
    ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
    ASSERT_EQ(set(stream, kRead4), TOKEN_TRIE_OK);
    Listener listener;
    int n = 0;
    listener.on_token = [&](const token_trie_token & token) {
        EXPECT_EQ(token.size, sizeof token);
        EXPECT_EQ(token.forced, 1);
        EXPECT_EQ(token.logprob, 0.0F);
        EXPECT_EQ(std::string(token.text), std::string("READ").substr(static_cast<std::size_t>(n), 1));
        EXPECT_EQ(token.text_len, 1U);
        return ++n < 10;
    };
    ASSERT_EQ(generate(stream, listener), TOKEN_TRIE_OK);
    EXPECT_EQ(listener.tokens, bytes("READ"));
    token_trie_stream_state state = state_of(stream);
    EXPECT_EQ(state.stop, TOKEN_TRIE_STOP_COMPLETE);
    EXPECT_EQ(state.span, TOKEN_TRIE_COMPLETE);
    EXPECT_EQ(state.n_items, 1);
    EXPECT_EQ(state.leaf, 0);
    EXPECT_STREQ(state.leaf_name, "READ");
    EXPECT_EQ(state.n_tokens, 8U);
    EXPECT_EQ(state.n_cached, 4U);
    EXPECT_EQ(state.n_forced, 4U);
    EXPECT_EQ(state.n_passes, 0U);
    token_trie_stream_clear_token_trie(stream.get());
    ASSERT_EQ(token_trie_stream_generate(stream.get(), 3, 0.7F, 0.95F, nullptr, nullptr), TOKEN_TRIE_OK);
    state = state_of(stream);
    EXPECT_EQ(state.span, -1);
    EXPECT_EQ(state.leaf, -1);
    EXPECT_EQ(state.leaf_name, nullptr);
    EXPECT_EQ(state.n_free, 3U);
    EXPECT_EQ(state.n_passes, 3U);
    EXPECT_GT(state.decode_ns, 0U);
    EXPECT_GE(state.generate_ns, state.decode_ns);
}

// Every function, on a handle that is none.
void expect_all_refused(token_trie_stream * stream, const std::string & message) {
    const token_trie_params params = end_params();
    token_trie_stream_state state{};
    state.size = sizeof state;
    token_trie_token token{};
    token.size = sizeof token;
    std::int32_t stop = 0;
    const auto expect = [&](std::int32_t status) { EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, status), message); };
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_get_vocab(stream)), message);
    expect(token_trie_stream_prefill(stream, kPrompt.data(), kPrompt.size()));
    expect(token_trie_stream_set_grammar(stream, "root ::= \"a\"", nullptr));
    expect(token_trie_stream_set_grammar(stream, nullptr, nullptr));
    expect(token_trie_stream_set_token_trie(stream, kRead4.data(), kRead4.size(), TOKEN_TRIE_GREEDY));
    expect(token_trie_stream_set_token_trie_ext(stream, kRead4.data(), kRead4.size(), &params));
    expect(token_trie_stream_set_seed(stream, 1));
    expect(token_trie_stream_generate(stream, 1, 0, 1, nullptr, nullptr));
    expect(token_trie_stream_next(stream, 0, 1, &token, &stop));
    expect(token_trie_stream_get_state(stream, &state));
    token_trie_stream_clear_token_trie(stream);
    expect(token_trie_last_status());
    token_trie_stream_cancel(stream);
    token_trie_stream_close(stream);
}

TEST_F(AbiStream, TextsAreSpelledInAnyWay) {
    const Context context = tiny_context();
    const Handle stream = open(context);
    const std::string texts = R"({"descriptors": [{"tokenization": "any", "leaves": [
        {"name": "read", "text": "READ_FILE"}, {"name": "send", "text": "SEND_MAIL"}]}]})";
    ASSERT_EQ(set(stream, texts), TOKEN_TRIE_OK) << token_trie_last_error();
    const std::string text = text_of(stream);
    const token_trie_stream_state state = state_of(stream);
    EXPECT_EQ(state.stop, TOKEN_TRIE_STOP_COMPLETE);
    ASSERT_GE(state.leaf, 0);
    EXPECT_EQ(text, state.leaf == 0 ? "READ_FILE" : "SEND_MAIL");
    EXPECT_STREQ(state.leaf_name, state.leaf == 0 ? "read" : "send");
    EXPECT_GT(state.n_branches, 1U) << "whole words and bytes";
}

TEST_F(AbiStream, ANullStreamIsRefusedByEveryFunction) { expect_all_refused(nullptr, "stream: null"); }

TEST_F(AbiStream, AClosedStreamIsRefusedByEveryFunction) {
    const Context context = tiny_context();
    token_trie_stream * closed = open(context).release();
    token_trie_stream_close(closed);
    token_trie_stream_close(closed);
    expect_all_refused(closed, "stream: closed, or never opened");
    // Not even when its place in memory has been taken by another.
    const Handle another = open(context);
    const Context more = tiny_context();
    const Handle one_more = open(more);
    expect_all_refused(closed, "stream: closed, or never opened");
    EXPECT_EQ(state_of(another).n_tokens, kPrompt.size());
}

TEST_F(AbiStream, BadArgumentsAreRefusedNamingThemAndChangeNothing) {
    const Context context = tiny_context();
    const Handle stream = open(context);
    ASSERT_EQ(set(stream, kReadOrSend), TOKEN_TRIE_OK);
    const std::string whole = text_of(stream);
    ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
    ASSERT_EQ(text_of(stream, 2), whole.substr(0, 2));
    token_trie_stream * s = stream.get();
    const std::string other = "sha256:" + std::string(64, '0');
    const auto argument = [](std::int32_t status) { return refusal(TOKEN_TRIE_ERROR_ARGUMENT, status); };

    EXPECT_EQ(argument(token_trie_stream_prefill(s, nullptr, 3)), "tokens: null");
    EXPECT_EQ(argument(token_trie_stream_prefill(s, nullptr, 0)), "tokens: null");
    EXPECT_EQ(argument(token_trie_stream_prefill(s, kPrompt.data(), 0)), "tokens: none; a prompt needs at least one");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_CONTEXT, token_trie_stream_prefill(s, kPrompt.data(), SIZE_MAX)),
              "18446744073709551615 tokens do not fit the context of 256");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_VOCAB, prefill(stream, {1, 2, kTinyVocab})),
              "tokens[2]: 263 is outside the vocabulary (263 tokens)");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_VOCAB, prefill(stream, {INT32_MIN})),
              "tokens[0]: -2147483648 is outside the vocabulary (263 tokens)");

    EXPECT_EQ(argument(token_trie_stream_set_token_trie(s, nullptr, 1, 0)), "payload_json: null");
    EXPECT_EQ(argument(set(stream, kRead4, 2)), "mode: 2 is neither TOKEN_TRIE_GREEDY (0) nor TOKEN_TRIE_SAMPLED (1)");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_PAYLOAD, token_trie_stream_set_token_trie(s, kRead4.data(), 0, 0))
                  .rfind("payload: ", 0),
              0U);
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_PAYLOAD, set(stream, "{")).rfind("payload: broken JSON", 0), 0U)
        << token_trie_last_error();
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_VOCAB, set(stream, payload_of({{"a", {kTinyVocab}}}))),
              "descriptors[0].leaves[0].tokens[0]: 263 is outside the vocabulary (263 tokens)");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_VOCAB,
                      set(stream, R"({"vocab": ")" + other +
                                      R"(", "descriptors": [{"leaves": [{"name": "a", "tokens": [9]}]}]})"))
                  .rfind("vocab: the set was made for another vocabulary (" + other + ")", 0),
              0U);
    const auto ext = [&](const std::function<void(token_trie_params &)> & change) {
        token_trie_params params = end_params();
        change(params);
        return argument(token_trie_stream_set_token_trie_ext(s, kRead4.data(), kRead4.size(), &params));
    };
    EXPECT_EQ(argument(token_trie_stream_set_token_trie_ext(s, kRead4.data(), 1, nullptr)), "params: null");
    EXPECT_EQ(ext([](auto & p) { p.size = 0; }), "params.size: 0 is not sizeof(*params)");
    EXPECT_EQ(ext([](auto & p) { p.size = SIZE_MAX; }), "params.size: 18446744073709551615 is not sizeof(*params)");
    EXPECT_EQ(ext([](auto & p) { p.on_complete = 9; }).rfind("on_complete: 9 is none of", 0), 0U);
    EXPECT_EQ(ext([](auto & p) { p.max_items = 1; }), "separator and max_items go with on_complete restart alone");

    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_GRAMMAR, token_trie_stream_set_grammar(s, "root ::= (", nullptr)),
              "gbnf: the grammar does not parse, or has no rule \"root\"");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_GRAMMAR, token_trie_stream_set_grammar(s, "root ::= \"a\"", "answer")),
              "gbnf: the grammar does not parse, or has no rule \"answer\"");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_GRAMMAR, token_trie_stream_set_grammar(s, "answer ::= \"a\"", nullptr)),
              "gbnf: the grammar does not parse, or has no rule \"root\"");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_GRAMMAR, token_trie_stream_set_grammar(s, "", nullptr)),
              "gbnf: the grammar does not parse, or has no rule \"root\"");

    const auto generate_with = [&](std::int32_t max_tokens, float temperature, float top_p) {
        return argument(token_trie_stream_generate(s, max_tokens, temperature, top_p, nullptr, nullptr));
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(generate_with(-1, 0, 1), "max_tokens: -1 is negative");
    EXPECT_EQ(generate_with(1, nan, 1), "temperature: not in [0, inf)");
    EXPECT_EQ(generate_with(1, -0.5F, 1), "temperature: not in [0, inf)");
    EXPECT_EQ(generate_with(1, 0, 0), "top_p: not in (0, 1]");
    EXPECT_EQ(generate_with(1, 0, 1.01F), "top_p: not in (0, 1]");
    EXPECT_EQ(generate_with(1, 0, nan), "top_p: not in (0, 1]");

    token_trie_token token{};
    std::int32_t stop = 77;
    EXPECT_EQ(argument(token_trie_stream_next(s, 0, 1, &token, &stop)), "token.size: 0 is not sizeof(*token)");
    token.size = sizeof token;
    EXPECT_EQ(argument(token_trie_stream_next(s, 0, 1, nullptr, &stop)), "token: null");
    EXPECT_EQ(argument(token_trie_stream_next(s, 0, 1, &token, nullptr)), "stop: null");
    EXPECT_EQ(argument(token_trie_stream_next(s, nan, 1, &token, &stop)), "temperature: not in [0, inf)");
    EXPECT_EQ(argument(token_trie_stream_next(s, 0, 0, &token, &stop)), "top_p: not in (0, 1]");
    EXPECT_EQ(token.text, nullptr) << "nothing written";
    EXPECT_EQ(stop, 77);

    token_trie_stream_state state{};
    EXPECT_EQ(argument(token_trie_stream_get_state(s, nullptr)), "state: null");
    EXPECT_EQ(argument(token_trie_stream_get_state(s, &state)), "state.size: 0 is not sizeof(*state)");

    EXPECT_EQ(state_of(stream).n_tokens, kPrompt.size() + 2);
    EXPECT_EQ(text_of(stream), whole.substr(2)) << "the trie before is where it was";
}

TEST_F(AbiStream, OpeningIsRefusedNamingWhatIsWrong) {
    const Context context = tiny_context();
    const token_trie_stream_params good = defaults();
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open(nullptr, &good)), "ctx: null");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open(context.get(), nullptr)), "params: null");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_file(nullptr, &good)), "gguf_path: null");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_file("x.gguf", nullptr)), "params: null");
    const auto with = [&](const std::function<void(token_trie_stream_params &)> & change) {
        token_trie_stream_params params = file_params();
        change(params);
        std::string message =
            refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_file(tiny_model_path().c_str(), &params));
        return message;
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(with([](auto & p) { p.size = 0; }), "params.size: 0 is not sizeof(*params)");
    EXPECT_EQ(with([](auto & p) { p.size = 5000; }), "params.size: 5000 is not sizeof(*params)");
    EXPECT_EQ(with([](auto & p) { p.n_ctx = -1; }), "n_ctx: -1 is negative");
    EXPECT_EQ(with([](auto & p) { p.n_batch = -1; }), "n_batch: -1 is negative");
    EXPECT_EQ(with([](auto & p) { p.n_threads = -1; }), "n_threads: -1 is negative");
    EXPECT_EQ(with([](auto & p) { p.top_k = -1; }), "top_k: -1 is negative");
    EXPECT_EQ(with([&](auto & p) { p.min_p = nan; }), "min_p: not in [0, 1]");
    EXPECT_EQ(with([](auto & p) { p.min_p = 1.5F; }), "min_p: not in [0, 1]");
    EXPECT_EQ(with([](auto & p) { p.penalty_last_n = -1; }), "penalty_last_n: not in [0, 1048576]");
    EXPECT_EQ(with([](auto & p) { p.penalty_repeat = -1; }), "penalty_repeat: not above 0");
    EXPECT_EQ(with([&](auto & p) { p.penalty_freq = nan; }), "penalty_freq: not finite");
    EXPECT_EQ(with([&](auto & p) { p.penalty_present = nan; }), "penalty_present: not finite");

    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_file("/no/such.gguf", &good)),
              "gguf_path: \"/no/such.gguf\" could not be loaded as a model");
    const std::string not_gguf = ::testing::TempDir() + "token_trie_not_a_model_" + std::to_string(::getpid());
    for (const char * content : {"", "GGUF", "text, not a model"}) {
        std::ofstream(not_gguf) << content;
        EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_file(not_gguf.c_str(), &good))
                      .rfind("gguf_path: ", 0),
                  0U);
    }
    EXPECT_EQ(std::remove(not_gguf.c_str()), 0);
}

TEST_F(AbiStream, OneStreamAContext) {
    const Context context = tiny_context();
    Handle first = open(context);
    const token_trie_stream_params params = defaults();
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_BUSY, token_trie_stream_open(context.get(), &params)),
              "ctx: another stream is open on it");
    EXPECT_EQ(state_of(first).n_cached, kPrompt.size());
    ASSERT_EQ(token_trie_stream_generate(first.get(), 2, 0, 1, nullptr, nullptr), TOKEN_TRIE_OK);
    first.reset();
    const Handle second = open(context);
    EXPECT_EQ(state_of(second).n_tokens, kPrompt.size());
}

// A caller compiled with a shorter or longer struct than ours.
TEST_F(AbiStream, StructsMayBeOfAnotherSize) {
    struct Longer {
        token_trie_stream_params params;
        std::uint64_t later[4];
    } longer{defaults(), {}};
    longer.params.size = sizeof longer;
    const Context context = tiny_context();
    Handle stream = open(context, longer.params);
    stream.reset();
    token_trie_stream_params shorter = defaults();
    shorter.size = offsetof(token_trie_stream_params, top_k);
    shorter.top_k = -77;  // beyond its size, so not ours to read
    stream = open(context, shorter);
    ASSERT_NE(stream, nullptr);

    struct LongerState {
        token_trie_stream_state state;
        std::uint64_t later;
    } filled{};
    std::memset(&filled, 0xff, sizeof filled);
    filled.state.size = sizeof filled;
    ASSERT_EQ(token_trie_stream_get_state(stream.get(), &filled.state), TOKEN_TRIE_OK);
    EXPECT_EQ(filled.state.size, sizeof filled);
    EXPECT_EQ(filled.state.n_tokens, kPrompt.size());
    EXPECT_EQ(filled.later, 0U);
    std::memset(&filled, 0xff, sizeof filled);
    filled.state.size = offsetof(token_trie_stream_state, n_cached);
    ASSERT_EQ(token_trie_stream_get_state(stream.get(), &filled.state), TOKEN_TRIE_OK);
    EXPECT_EQ(filled.state.n_tokens, kPrompt.size());
    EXPECT_EQ(filled.state.n_cached, UINT64_MAX) << "beyond the size given, untouched";
}

TEST_F(AbiStream, OptionsReachTheStream) {
    const Context context = tiny_context();
    token_trie_stream_params params = defaults();
    params.step_by_step = 1;
    params.seed = 3;
    params.top_k = 1;
    const Handle stream = open(context, params);
    token_trie_params restart = end_params();
    const llama_token separator = bytes(",")[0];
    restart.on_complete = TOKEN_TRIE_RESTART;
    restart.mode = TOKEN_TRIE_SAMPLED;
    restart.separator = &separator;
    restart.n_separator = 1;
    restart.max_items = 2;
    // With end tokens named and none, the list ends when it is full.
    restart.end_tokens = &separator;
    restart.n_end_tokens = 0;
    ASSERT_EQ(token_trie_stream_set_token_trie_ext(stream.get(), kRead4.data(), kRead4.size(), &restart), TOKEN_TRIE_OK)
        << token_trie_last_error();
    EXPECT_EQ(text_of(stream), "READ,READ");
    EXPECT_EQ(state_of(stream).n_items, 2);
    EXPECT_EQ(state_of(stream).n_passes, 8U) << "step by step: one a token, the first excepted";
}

TEST_F(AbiStream, ACallFromTheCallbackIsBusyExceptCancel) {
    const Context context = tiny_context();
    const Handle stream = open(context);
    ASSERT_EQ(set(stream, kRead4), TOKEN_TRIE_OK);
    Listener listener;
    listener.on_token = [&](const token_trie_token & /*token*/) {
        token_trie_stream * s = stream.get();
        token_trie_stream_state state{};
        state.size = sizeof state;
        token_trie_token next{};
        next.size = sizeof next;
        for (const std::int32_t status :
             {prefill(stream, kPrompt), set(stream, kReadOrSend), token_trie_stream_set_grammar(s, nullptr, nullptr),
              token_trie_stream_set_seed(s, 1), token_trie_stream_generate(s, 1, 0, 1, nullptr, nullptr),
              token_trie_stream_next(s, 0, 1, &next, &state.stop), token_trie_stream_get_state(s, &state)}) {
            EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_BUSY, status),
                      "the stream is in a call already, of another thread or of its own callback");
        }
        token_trie_stream_clear_token_trie(s);
        EXPECT_EQ(token_trie_last_status(), TOKEN_TRIE_ERROR_BUSY);
        EXPECT_NE(token_trie_stream_get_vocab(s), nullptr);
        return true;
    };
    EXPECT_EQ(generate(stream, listener), TOKEN_TRIE_OK);
    EXPECT_EQ(listener.text, "READ");
    listener.on_token = [&](const token_trie_token & /*token*/) {
        token_trie_stream_cancel(stream.get());
        return true;
    };
    EXPECT_EQ(generate(stream, listener), TOKEN_TRIE_OK);
    EXPECT_EQ(listener.text, "READR");
    EXPECT_EQ(state_of(stream).stop, TOKEN_TRIE_STOP_CANCELLED);
}

TEST_F(AbiStream, ACallbackMayCloseItsStream) {
    for (const bool owned : {false, true}) {
        const Context context = tiny_context();
        Handle stream = owned ? open_file(file_params()) : open(context);
        ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
        ASSERT_EQ(set(stream, kRead4), TOKEN_TRIE_OK);
        token_trie_stream * handle = stream.release();
        Listener listener;
        listener.on_token = [&](const token_trie_token & token) {
            token_trie_stream_close(handle);
            EXPECT_EQ(token.text[0], 'R') << "still valid";
            return true;
        };
        EXPECT_EQ(token_trie_stream_generate(handle, 32, 0, 1, Listener::call, &listener), TOKEN_TRIE_OK);
        EXPECT_EQ(listener.text, "R") << "cancelled";
        expect_all_refused(handle, "stream: closed, or never opened");
    }
}

TEST_F(AbiStream, TokensMayBePulledOneByOne) {
    const Handle stream = open_file(file_params());
    ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
    const std::string text = "READ\u00e9";
    ASSERT_EQ(set(stream, payload_of({{"A", bytes(text)}, {"READ", bytes("READ")}})), TOKEN_TRIE_OK);
    const std::string expected = text_of(stream);
    ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
    token_trie_token token{};
    token.size = sizeof token;
    std::int32_t stop = TOKEN_TRIE_STOP_MAX_TOKENS;
    std::string pulled;
    while (stop == TOKEN_TRIE_STOP_MAX_TOKENS) {
        ASSERT_EQ(token_trie_stream_next(stream.get(), 0, 1, &token, &stop), TOKEN_TRIE_OK) << token_trie_last_error();
        EXPECT_EQ(token.size, sizeof token);
        EXPECT_EQ(token.text[token.text_len], '\0');
        EXPECT_EQ(token.forced, token.id >= 0 && pulled.size() != 4 ? 1 : 0);
        pulled.append(token.text, token.text_len);
    }
    EXPECT_EQ(stop, TOKEN_TRIE_STOP_COMPLETE);
    EXPECT_EQ(pulled, expected);
    // An end is no token.
    ASSERT_EQ(token_trie_stream_set_grammar(stream.get(), "root ::= \"yes\"", nullptr), TOKEN_TRIE_OK);
    token_trie_stream_clear_token_trie(stream.get());
    for (stop = TOKEN_TRIE_STOP_MAX_TOKENS; stop == TOKEN_TRIE_STOP_MAX_TOKENS;) {
        ASSERT_EQ(token_trie_stream_next(stream.get(), 0, 1, &token, &stop), TOKEN_TRIE_OK) << token_trie_last_error();
    }
    EXPECT_EQ(stop, TOKEN_TRIE_STOP_END);
    EXPECT_EQ(token.id, -1);
    EXPECT_STREQ(token.text, "");
}

// A list that nothing ends, so that only the other thread can.
token_trie_params endless(const llama_token & newline) {
    token_trie_params params = end_params();
    params.on_complete = TOKEN_TRIE_RESTART;
    params.end_tokens = &newline;
    params.n_end_tokens = 1;
    return params;
}

TEST_F(AbiStream, CloseFromAnotherThreadWaitsForTheCallItCancels) {
    for (int round = 0; round < 50; ++round) {
        Context context = tiny_context();
        token_trie_stream * handle = open(context).release();
        std::atomic<bool> begun{false};
        std::thread worker([&] {
            Listener listener;
            listener.on_token = [&](const token_trie_token & /*token*/) {
                begun = true;
                return true;
            };
            // Until it is refused; whatever the moment, the context is not touched after the close.
            std::int32_t status = TOKEN_TRIE_OK;
            while (status == TOKEN_TRIE_OK) {
                status = token_trie_stream_prefill(handle, kPrompt.data(), kPrompt.size());
                if (status == TOKEN_TRIE_OK) {
                    status = token_trie_stream_generate(handle, 100, 1, 1, Listener::call, &listener);
                }
            }
            EXPECT_TRUE(status == TOKEN_TRIE_ERROR_ARGUMENT || status == TOKEN_TRIE_ERROR_CANCELLED)
                << token_trie_last_error();
        });
        while (!begun) {
            std::this_thread::yield();
        }
        token_trie_stream_close(handle);
        context.reset();
        worker.join();
    }
}

TEST_F(AbiStream, CancelFromAnotherThreadEndsGenerate) {
    const Context context = tiny_context();
    const Handle stream = open(context);
    const llama_token newline = bytes("\n")[0];
    const token_trie_params params = endless(newline);
    ASSERT_EQ(token_trie_stream_set_token_trie_ext(stream.get(), kReadOrSend.data(), kReadOrSend.size(), &params),
              TOKEN_TRIE_OK);
    std::atomic<bool> begun{false};
    std::atomic<bool> cancelled{false};
    Listener listener;
    listener.on_token = [&](const token_trie_token & /*token*/) {
        begun = true;
        while (!cancelled) {
            std::this_thread::yield();
        }
        return true;
    };
    std::thread other([&] {
        while (!begun) {
            std::this_thread::yield();
        }
        token_trie_stream_cancel(stream.get());
        cancelled = true;
    });
    EXPECT_EQ(generate(stream, listener, 200), TOKEN_TRIE_OK);
    other.join();
    EXPECT_EQ(listener.tokens.size(), 1U);
    EXPECT_EQ(state_of(stream).stop, TOKEN_TRIE_STOP_CANCELLED);
}

TEST_F(AbiStream, TwoHandlesOnOneModelInTwoThreads) {
    const Context contexts[] = {tiny_context(), tiny_context()};
    const Handle handles[] = {open(contexts[0]), open(contexts[1])};
    std::string expected;
    {
        const Context context = tiny_context();
        const Handle stream = open(context);
        ASSERT_EQ(set(stream, kReadOrSend), TOKEN_TRIE_OK);
        expected = text_of(stream);
        expected += text_of(stream);
    }
    std::atomic<int> n_wrong{0};
    const auto work = [&](const Handle & stream) {
        for (int round = 0; round < 50; ++round) {
            Listener listener;
            n_wrong += prefill(stream, kPrompt) == TOKEN_TRIE_OK ? 0 : 1;
            n_wrong += set(stream, kReadOrSend) == TOKEN_TRIE_OK ? 0 : 1;
            n_wrong += generate(stream, listener) == TOKEN_TRIE_OK ? 0 : 1;
            n_wrong += generate(stream, listener) == TOKEN_TRIE_OK ? 0 : 1;
            n_wrong += listener.text == expected ? 0 : 1;
        }
    };
    std::thread one([&] { work(handles[0]); });
    std::thread two([&] { work(handles[1]); });
    one.join();
    two.join();
    EXPECT_EQ(n_wrong, 0);
}

TEST_F(AbiStream, OneHandleInManyThreadsIsBusyOrServes) {
    const Context context = tiny_context();
    const Handle stream = open(context);
    std::vector<std::thread> threads;
    threads.reserve(4);
    std::atomic<int> n_wrong{0};
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            const auto check = [&](std::int32_t status) {
                n_wrong += status == TOKEN_TRIE_OK || status == TOKEN_TRIE_ERROR_BUSY ? 0 : 1;
            };
            for (int round = 0; round < 100; ++round) {
                token_trie_stream_state state{};
                state.size = sizeof state;
                check(set(stream, kReadOrSend));
                check(token_trie_stream_generate(stream.get(), 1, 0, 1, nullptr, nullptr));
                check(token_trie_stream_get_state(stream.get(), &state));
                token_trie_stream_clear_token_trie(stream.get());
                token_trie_stream_cancel(stream.get());
                const std::int32_t status = prefill(stream, kPrompt);
                check(status == TOKEN_TRIE_ERROR_CANCELLED ? TOKEN_TRIE_OK : status);
            }
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    EXPECT_EQ(n_wrong, 0);
    EXPECT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
    EXPECT_EQ(set(stream, kRead4), TOKEN_TRIE_OK);
    EXPECT_EQ(text_of(stream), "READ");
}

TEST_F(AbiStream, AProcessMayEndWithStreamsOpen) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            token_trie_stream_close(nullptr);  // before llama.cpp has begun
            const token_trie_stream_params params = file_params();
            token_trie_stream * stream = token_trie_stream_open_file(tiny_model_path().c_str(), &params);
            std::exit(stream != nullptr ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "");
}

// Pages that this process holds in memory; 0 where they tell nothing, as sanitizers keep what was freed.
std::size_t resident_pages() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0;
#else
    std::size_t size = 0;
    std::size_t resident = 0;
    std::ifstream("/proc/self/statm") >> size >> resident;
    return resident;
#endif
}

TEST_F(AbiStream, TenThousandRoundsTakeNoMoreMemory) {
    const Context context = tiny_context();
    const Handle stream = open(context);
    std::vector<std::string> payloads(200);  // more than the cache holds
    for (std::size_t i = 0; i < payloads.size(); ++i) {
        const auto token = static_cast<Token>(3 + i);
        payloads[i] = payload_of({{"A", {kRead, token}}, {"B", {kSend, token}}});
    }
    const auto rounds = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            ASSERT_EQ(set(stream, payloads[i % payloads.size()], static_cast<int>(i % 2)), TOKEN_TRIE_OK);
            const auto max_tokens = static_cast<std::int32_t>(i % 3);
            ASSERT_EQ(token_trie_stream_generate(stream.get(), max_tokens, 1, 1, nullptr, nullptr), TOKEN_TRIE_OK);
            token_trie_stream_clear_token_trie(stream.get());
            if (i % 100 == 0) {
                ASSERT_EQ(token_trie_stream_set_grammar(stream.get(), "root ::= [a-z]+", nullptr), TOKEN_TRIE_OK);
                ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
            }
        }
    };
    rounds(1000);
    const std::size_t before = resident_pages();
    rounds(10000);
    EXPECT_LE(resident_pages(), before + 256);
}

}  // namespace
}  // namespace token_trie::test
