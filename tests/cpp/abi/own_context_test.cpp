#include "abi_stream_fixture.h"

// Streams that make their contexts themselves, and what they take over from others.
namespace token_trie::test {
namespace {

const Tokens kLong = bytes(std::string(300, 'a'));

class AbiOwnContext : public AbiStream {
   protected:
    static Handle open_model(const token_trie_stream_params & params = sized<token_trie_stream_params>()) {
        const llama_context_params context_params = tiny_context_params(1024);
        return Handle(token_trie_stream_open_model(tiny_model(), &context_params, &params));
    }
    static Handle opened(const token_trie_stream_params & params = sized<token_trie_stream_params>()) {
        Handle out = open_model(params);
        EXPECT_NE(out, nullptr) << token_trie_last_error();
        return out;
    }
    static Context evaluated(Tokens tokens) {
        Context context = tiny_context(1024);
        for (std::size_t i = 0; i < tokens.size(); i += 64) {
            const std::size_t n = std::min<std::size_t>(64, tokens.size() - i);
            EXPECT_EQ(llama_decode(context.get(), llama_batch_get_one(&tokens[i], static_cast<std::int32_t>(n))), 0);
        }
        return context;
    }
    static std::int32_t import_prefix(const Handle & stream, const Context & from, const Tokens & tokens) {
        return token_trie_stream_import_prefix(stream.get(), from.get(), 0, tokens.data(), tokens.size());
    }
};

TEST_F(AbiOwnContext, GrowsAndTellsItsSize) {
    const Handle stream = opened();
    EXPECT_EQ(state_of(stream).n_context, 256U);
    EXPECT_EQ(state_of(stream).n_context_max, 1024U);
    EXPECT_EQ(state_of(stream).cache_bytes, 0U);
    ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
    const token_trie_stream_state small = state_of(stream);
    EXPECT_EQ(small.n_context, 256U);
    EXPECT_GT(small.cache_bytes, 0U);
    ASSERT_EQ(prefill(stream, kLong), TOKEN_TRIE_OK);
    EXPECT_EQ(state_of(stream).n_context, 512U);
    EXPECT_GT(state_of(stream).cache_bytes, small.cache_bytes);
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_CONTEXT, prefill(stream, Tokens(1025, kRead))),
              "1025 tokens do not fit the context of 1024");
}

TEST_F(AbiOwnContext, OnAFileGrowsToo) {
    auto params = sized<token_trie_stream_params>();
    params.n_threads = 1;
    const Handle stream(token_trie_stream_open_file(tiny_model_path().c_str(), &params));
    ASSERT_NE(stream, nullptr) << token_trie_last_error();
    EXPECT_EQ(state_of(stream).n_context, 256U);
    ASSERT_EQ(prefill(stream, kLong), TOKEN_TRIE_OK);
    EXPECT_EQ(state_of(stream).n_context, 512U);
}

TEST_F(AbiOwnContext, RefusesWhatItCannotOpen) {
    const llama_context_params context_params = tiny_context_params();
    const auto params = sized<token_trie_stream_params>();
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_model(nullptr, &context_params, &params)),
              "model: null");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_model(tiny_model(), nullptr, &params)),
              "context_params: null");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_model(tiny_model(), &context_params, nullptr)),
              "params: null");
    auto many = context_params;
    many.n_threads = 100000;
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_model(tiny_model(), &many, &params)),
              "n_threads: 100000 is above " + std::to_string(GGML_MAX_N_THREADS));
    auto impossible = context_params;
    impossible.type_v = GGML_TYPE_Q8_0;  // without flash attention
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_model(tiny_model(), &impossible, &params)),
              "no context could be made of the model and the params");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT,
                      token_trie_stream_open_model(tiny_model(TinyKind::no_tokenizer), &context_params, &params)),
              "model: it has no tokenizer");
    const auto batch_params = sized<token_trie_batch_params>();
    const std::string all_at_once =
        "model: dream, a diffusion model, which writes all tokens at once; take a model "
        "that writes one token after another";
    llama_model * diffusion = tiny_model(TinyKind::diffusion);
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_open_model(diffusion, &context_params, &params)),
              all_at_once);
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT,
                      token_trie_stream_open_file(tiny_model_path(TinyKind::diffusion).c_str(), &params)),
              all_at_once);
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_batch_open(diffusion, &context_params, &batch_params)),
              all_at_once);
}

TEST_F(AbiOwnContext, RefusesAdaptersThatAreNone) {
    auto params = sized<token_trie_stream_params>();
    params.n_adapters = 1;
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, open_model(params).get()), "params.adapters: null");
    llama_adapter_lora * none = nullptr;
    params.adapters = &none;
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, open_model(params).get()), "params.adapters[0]: null");
}

TEST_F(AbiOwnContext, TakesAdaptersByTheirScale) {
    const Adapter adapter = tiny_adapter(TinyKind::attention, "output.weight");
    llama_adapter_lora * adapters[] = {adapter.get()};
    const auto scores = [&](const float * scale) {
        auto params = sized<token_trie_stream_params>();
        params.adapters = adapters;
        params.adapter_scales = scale;
        params.n_adapters = 1;
        const Handle stream = opened(params);
        EXPECT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
        std::vector<double> out = scores_of(stream.get(), query_of(set_of(kReadOrSend), TOKEN_TRIE_QUERY_SCORES));
        EXPECT_EQ(out.size(), 2U);
        return out;
    };
    const float one = 1;
    const float half = 0.5;
    EXPECT_EQ(scores(nullptr), scores(&one));
    EXPECT_NE(scores(&half), scores(&one));
}

TEST_F(AbiOwnContext, TakesOverWhatAnotherHasEvaluated) {
    const Context from = evaluated(kLong);
    const Handle stream = opened();
    ASSERT_EQ(set(stream, kRead4), TOKEN_TRIE_OK);
    ASSERT_EQ(import_prefix(stream, from, kLong), TOKEN_TRIE_OK) << token_trie_last_error();
    const token_trie_stream_state state = state_of(stream);
    EXPECT_EQ(state.n_imported, kLong.size());
    EXPECT_EQ(state.n_tokens, 0U);
    EXPECT_EQ(state.span, TOKEN_TRIE_CONSTRAINED) << "nothing else has changed";
    ASSERT_EQ(prefill(stream, kLong), TOKEN_TRIE_OK);
    EXPECT_EQ(text_of(stream), "READ");
}

TEST_F(AbiOwnContext, RefusesToTakeOverWhatIsNotThere) {
    const Context from = evaluated(kPrompt);
    const Handle stream = opened();
    const auto status = [&](const Handle & handle, llama_context * context, const llama_token * tokens, std::size_t n) {
        return token_trie_stream_import_prefix(handle.get(), context, 0, tokens, n);
    };
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, status(stream, nullptr, kPrompt.data(), 1)), "from: null");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, status(stream, from.get(), nullptr, 1)), "tokens: null");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, status(nullptr, from.get(), kPrompt.data(), 1)), "stream: null");
    const Token outside = kTinyVocab;
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_VOCAB, status(stream, from.get(), &outside, 1)),
              "tokens[0]: 263 is outside the vocabulary (263 tokens)");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_CONTEXT, import_prefix(stream, from, kLong)),
              "from: its sequence holds 4 tokens, not 300");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_CONTEXT, import_prefix(stream, from, Tokens(1025, kRead))),
              "1025 tokens do not fit the context of 1024");
}

}  // namespace
}  // namespace token_trie::test
