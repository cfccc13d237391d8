#include "abi_stream_fixture.h"

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

#include <unistd.h>

namespace token_trie::test {
namespace {

static_assert(
    sizeof(token_trie_stream_params) == 80 && offsetof(token_trie_stream_params, size) == 0 &&
    offsetof(token_trie_stream_params, n_ctx) == 8 && offsetof(token_trie_stream_params, n_batch) == 12 &&
    offsetof(token_trie_stream_params, n_threads) == 16 && offsetof(token_trie_stream_params, n_gpu_layers) == 20 &&
    offsetof(token_trie_stream_params, sampling) == 24 && offsetof(token_trie_stream_params, step_by_step) == 32 &&
    offsetof(token_trie_stream_params, adapters) == 40 && offsetof(token_trie_stream_params, adapter_scales) == 48 &&
    offsetof(token_trie_stream_params, n_adapters) == 56 && offsetof(token_trie_stream_params, device_sampling) == 64 &&
    offsetof(token_trie_stream_params, max_state_bytes) == 72);
static_assert(sizeof(token_trie_token) == 40 && offsetof(token_trie_token, size) == 0 &&
              offsetof(token_trie_token, id) == 8 && offsetof(token_trie_token, forced) == 12 &&
              offsetof(token_trie_token, logprob) == 16 && offsetof(token_trie_token, text_len) == 24 &&
              offsetof(token_trie_token, text) == 32);
static_assert(
    sizeof(token_trie_stream_state) == 184 && offsetof(token_trie_stream_state, size) == 0 &&
    offsetof(token_trie_stream_state, stop) == 8 && offsetof(token_trie_stream_state, span) == 12 &&
    offsetof(token_trie_stream_state, n_items) == 16 && offsetof(token_trie_stream_state, leaf) == 24 &&
    offsetof(token_trie_stream_state, leaf_name) == 32 && offsetof(token_trie_stream_state, logprob) == 40 &&
    offsetof(token_trie_stream_state, n_tokens) == 48 && offsetof(token_trie_stream_state, n_cached) == 56 &&
    offsetof(token_trie_stream_state, n_forced) == 64 && offsetof(token_trie_stream_state, n_branches) == 72 &&
    offsetof(token_trie_stream_state, n_free) == 80 && offsetof(token_trie_stream_state, n_passes) == 88 &&
    offsetof(token_trie_stream_state, decode_ns) == 96 && offsetof(token_trie_stream_state, generate_ns) == 104 &&
    offsetof(token_trie_stream_state, n_context) == 112 && offsetof(token_trie_stream_state, n_context_max) == 120 &&
    offsetof(token_trie_stream_state, cache_bytes) == 128 && offsetof(token_trie_stream_state, n_imported) == 136 &&
    offsetof(token_trie_stream_state, n_closed) == 144 && offsetof(token_trie_stream_state, ending) == 152 &&
    offsetof(token_trie_stream_state, n_on_device) == 160 && offsetof(token_trie_stream_state, n_states_max) == 168 &&
    offsetof(token_trie_stream_state, state_bytes) == 176);

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
    ASSERT_EQ(set_sampling(stream.get(), 0.7F, 0.95F), TOKEN_TRIE_OK);
    ASSERT_EQ(token_trie_stream_generate(stream.get(), 3, nullptr, nullptr), TOKEN_TRIE_OK);
    state = state_of(stream);
    EXPECT_EQ(state.span, -1);
    EXPECT_EQ(state.leaf, -1);
    EXPECT_EQ(state.leaf_name, nullptr);
    EXPECT_EQ(state.n_free, 3U);
    EXPECT_EQ(state.n_passes, 3U);
    EXPECT_GT(state.decode_ns, 0U);
    EXPECT_GE(state.generate_ns, state.decode_ns);
}

TEST_F(AbiStream, ANullStreamIsRefusedByEveryFunction) { expect_all_refused(nullptr, "stream: null"); }

TEST_F(AbiStream, AClosedStreamIsRefusedByEveryFunction) {
    token_trie_stream * closed = open().release();
    token_trie_stream_close(closed);
    token_trie_stream_close(closed);
    expect_all_refused(closed, "stream: closed, or never opened");
    // Not even when its place in memory has been taken by another.
    const Handle another = open();
    const Handle one_more = open();
    expect_all_refused(closed, "stream: closed, or never opened");
    EXPECT_EQ(state_of(another).n_tokens, kPrompt.size());
}

TEST_F(AbiStream, BadArgumentsAreRefusedNamingThemAndChangeNothing) {
    const Handle stream = open();
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

    EXPECT_EQ(argument(set(stream, kRead4, 2)), "mode: 2 is not in [0, 1]");
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
        return argument(token_trie_stream_set_token_trie(s, set_of(kRead4).get(), &params));
    };
    const token_trie_params given = end_params();
    EXPECT_EQ(argument(token_trie_stream_set_token_trie(s, nullptr, &given)), "set: null");
    EXPECT_EQ(ext([](auto & p) { p.size = 0; }), "params.size: 0 is not sizeof(*params)");
    EXPECT_EQ(ext([](auto & p) { p.size = SIZE_MAX; }), "params.size: 18446744073709551615 is not sizeof(*params)");
    EXPECT_EQ(ext([](auto & p) { p.on_complete = 9; }), "on_complete: 9 is not in [0, 2]");
    EXPECT_EQ(ext([](auto & p) { p.max_items = 1; }), "separator and max_items go with on_complete restart alone");

    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_GRAMMAR, token_trie_stream_set_grammar(s, "root ::= (", nullptr)),
              "gbnf: the grammar does not parse; llama.cpp has printed why to stderr");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_GRAMMAR, token_trie_stream_set_grammar(s, "root ::= \"a\"", "answer")),
              "gbnf: the grammar has no rule \"answer\"");
    for (const char * rootless : {"", "answer ::= \"a\"", "my-root ::= \"root ::\"", "a ::= ( root", "root"}) {
        EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_GRAMMAR, token_trie_stream_set_grammar(s, rootless, nullptr)),
                  "gbnf: the grammar has no rule \"root\"");
    }

    EXPECT_EQ(argument(token_trie_stream_generate(s, -1, nullptr, nullptr)), "max_tokens: -1 is negative");
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(argument(set_sampling(s, nan)), "temperature: not in [0, inf)");
    EXPECT_EQ(argument(set_sampling(s, -0.5F)), "temperature: not in [0, inf)");
    EXPECT_EQ(argument(set_sampling(s, 0, -1)), "top_p: not in (0, 1]");
    EXPECT_EQ(argument(set_sampling(s, 0, 1.01F)), "top_p: not in (0, 1]");
    EXPECT_EQ(argument(set_sampling(s, 0, nan)), "top_p: not in (0, 1]");
    EXPECT_EQ(argument(set_sampling(s, 0, 1, -3)), "sampling.seed: -3 is none here");

    token_trie_token token{};
    std::int32_t stop = 77;
    EXPECT_EQ(argument(token_trie_stream_next(s, &token, &stop)), "token.size: 0 is not sizeof(*token)");
    token.size = sizeof token;
    EXPECT_EQ(argument(token_trie_stream_next(s, nullptr, &stop)), "token: null");
    EXPECT_EQ(argument(token_trie_stream_next(s, &token, nullptr)), "stop: null");
    EXPECT_EQ(token.text, nullptr) << "nothing written";
    EXPECT_EQ(stop, 77);

    token_trie_stream_state state{};
    EXPECT_EQ(argument(token_trie_stream_get_state(s, nullptr)), "state: null");
    EXPECT_EQ(argument(token_trie_stream_get_state(s, &state)), "state.size: 0 is not sizeof(*state)");

    EXPECT_EQ(state_of(stream).n_tokens, kPrompt.size() + 2);
    EXPECT_EQ(text_of(stream), whole.substr(2)) << "the trie before is where it was";
}

TEST_F(AbiStream, OpeningIsRefusedNamingWhatIsWrong) {
    const auto good = sized<token_trie_stream_params>();
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
    const auto sampled = [&](const std::function<void(token_trie_sampling &)> & change) {
        auto sampling = sized<token_trie_sampling>();
        change(sampling);
        return with([&](auto & p) { p.sampling = &sampling; });
    };
    EXPECT_EQ(sampled([](auto & s) { s.size = 0; }), "params.sampling.size: 0 is not sizeof(*params.sampling)");
    EXPECT_EQ(sampled([](auto & s) { s.seed = TOKEN_TRIE_SEED_KEEP; }), "params.sampling.seed: -2 is none here");
    EXPECT_EQ(sampled([](auto & s) { s.top_k = -1; }), "top_k: not in [0, 2147483647]");
    EXPECT_EQ(sampled([&](auto & s) { s.min_p = nan; }), "min_p: not in [0, 1]");
    EXPECT_EQ(sampled([](auto & s) { s.min_p = 1.5F; }), "min_p: not in [0, 1]");
    EXPECT_EQ(sampled([](auto & s) { s.penalty_last_n = -1; }), "penalty_last_n: not in [0, 1048576]");
    EXPECT_EQ(sampled([](auto & s) { s.penalty_repeat = -1; }), "penalty_repeat: not above 0");
    EXPECT_EQ(sampled([&](auto & s) { s.penalty_freq = nan; }), "penalty_freq: not finite");
    EXPECT_EQ(sampled([&](auto & s) { s.penalty_present = nan; }), "penalty_present: not finite");

    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_file("/no/such.gguf", &good)),
              "gguf_path: \"/no/such.gguf\" cannot be opened");
    const std::string not_gguf = ::testing::TempDir() + "token_trie_not_a_model_" + std::to_string(::getpid());
    for (const char * content : {"", "GGUF", "text, not a model"}) {
        std::ofstream(not_gguf) << content;
        EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_file(not_gguf.c_str(), &good))
                      .rfind("gguf_path: ", 0),
                  0U);
    }
    EXPECT_EQ(std::remove(not_gguf.c_str()), 0);
}

// A caller compiled with a shorter or longer struct than ours.
TEST_F(AbiStream, StructsMayBeOfAnotherSize) {
    struct Longer {
        token_trie_stream_params params;
        std::uint64_t later[4];
    } longer{sized<token_trie_stream_params>(), {}};
    longer.params.size = sizeof longer;
    Handle stream = open(longer.params);
    stream.reset();
    auto shorter = sized<token_trie_stream_params>();
    shorter.size = offsetof(token_trie_stream_params, device_sampling);
    shorter.device_sampling = -77;  // beyond its size, so not ours to read
    stream = open(shorter);
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
    auto params = sized<token_trie_stream_params>();
    params.step_by_step = 1;
    auto sampling = sized<token_trie_sampling>();
    params.sampling = &sampling;
    sampling.seed = 3;
    sampling.top_k = 1;
    const Handle stream = open(params);
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
    ASSERT_EQ(token_trie_stream_set_token_trie(stream.get(), set_of(kRead4).get(), &restart), TOKEN_TRIE_OK)
        << token_trie_last_error();
    EXPECT_EQ(text_of(stream), "READ,READ");
    EXPECT_EQ(state_of(stream).n_items, 2);
    EXPECT_EQ(state_of(stream).n_passes, 8U) << "step by step: one a token, the first excepted";
}

TEST_F(AbiStream, TokensMayBePulledOneByOne) {
    const Handle stream = open_file(file_params());
    ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
    const std::string text = "READ\u00e9";
    ASSERT_EQ(set(stream, payload_of({{"A", bytes(text)}, {"READ", bytes("READ")}})), TOKEN_TRIE_OK);
    const std::string expected = text_of(stream);
    ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
    auto token = sized<token_trie_token>();
    std::int32_t stop = TOKEN_TRIE_STOP_MAX_TOKENS;
    std::string pulled;
    while (stop == TOKEN_TRIE_STOP_MAX_TOKENS) {
        ASSERT_EQ(token_trie_stream_next(stream.get(), &token, &stop), TOKEN_TRIE_OK) << token_trie_last_error();
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
        ASSERT_EQ(token_trie_stream_next(stream.get(), &token, &stop), TOKEN_TRIE_OK) << token_trie_last_error();
    }
    EXPECT_EQ(stop, TOKEN_TRIE_STOP_END);
    EXPECT_EQ(token.id, -1);
    EXPECT_STREQ(token.text, "");
}

}  // namespace
}  // namespace token_trie::test
