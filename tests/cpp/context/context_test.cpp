#include "answer.h"

#include <array>
#include <climits>

// Streams on contexts and files that are not what a stream would make for itself.
namespace token_trie::test {
namespace {

const Tokens kPrompt = bytes("a prompt of more tokens than the smallest of the batches here");
const std::string kSet = payload_of({{"READ", bytes("READ")}, {"SEND", bytes("SEND")}, {"SEND_MAIL", {kSend, kMail}}});

Handle open(const Context & context, const token_trie_stream_params & params = sized<token_trie_stream_params>()) {
    Handle out(token_trie_stream_open(context.get(), &params));
    EXPECT_NE(out, nullptr) << token_trie_last_error();
    return out;
}

std::string refusal_of_open(const Context & context,
                            const token_trie_stream_params & params = sized<token_trie_stream_params>()) {
    const Handle out(token_trie_stream_open(context.get(), &params));
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(token_trie_last_status(), TOKEN_TRIE_ERROR_ARGUMENT);
    return token_trie_last_error();
}

std::string refusal_of_open_file(const token_trie_stream_params & params, TinyKind kind = TinyKind::attention) {
    const Handle out(token_trie_stream_open_file(tiny_model_path(kind).c_str(), &params));
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(token_trie_last_status(), TOKEN_TRIE_ERROR_ARGUMENT);
    return token_trie_last_error();
}

void prefill(const Handle & stream, const Tokens & tokens = kPrompt) {
    ASSERT_EQ(token_trie_stream_prefill(stream.get(), tokens.data(), tokens.size()), TOKEN_TRIE_OK)
        << token_trie_last_error();
}

Tokens generated(const Handle & stream, std::int32_t max_tokens) {
    Tokens out;
    const auto on_token = [](const token_trie_token * token, void * user) {
        static_cast<Tokens *>(user)->push_back(token->id);
        return true;
    };
    EXPECT_EQ(token_trie_stream_generate(stream.get(), max_tokens, on_token, &out), TOKEN_TRIE_OK)
        << token_trie_last_error();
    return out;
}

// A member, then free text.
Tokens answer(const Handle & stream) {
    EXPECT_EQ(set_trie(stream.get(), kSet), TOKEN_TRIE_OK);
    Tokens out = generated(stream, 16);
    token_trie_stream_clear_token_trie(stream.get());
    const Tokens free = generated(stream, 8);
    out.insert(out.end(), free.begin(), free.end());
    return out;
}

std::vector<double> scores(const Handle & stream) {
    std::vector<double> out = scores_of(stream.get(), query_of(set_of(kSet), TOKEN_TRIE_QUERY_SCORES));
    EXPECT_EQ(out.size(), 3U) << token_trie_last_error();
    return out;
}

void expect_same_as_on_a_plain_context(const Handle & stream, TinyKind kind = TinyKind::attention) {
    const Context plain = tiny_context(256, kind);
    const Handle expected = open(plain);
    prefill(expected);
    const std::vector<double> is = scores(stream);
    const std::vector<double> should_be = scores(expected);
    for (std::size_t i = 0; i < is.size(); ++i) {
        EXPECT_NEAR(is[i], should_be[i], 1e-3) << "member " << i;
    }
    EXPECT_EQ(answer(stream), answer(expected));
}

class ContextTest : public WithTinyModel {};

TEST_F(ContextTest, AFailedOpenLeavesItAsItWas) {
    const Context context = tiny_context();
    Tokens tokens = bytes("the caller's");
    ASSERT_EQ(llama_decode(context.get(), llama_batch_get_one(tokens.data(), static_cast<std::int32_t>(tokens.size()))),
              0);
    auto params = sized<token_trie_stream_params>();
    auto sampling = sized<token_trie_sampling>();
    params.sampling = &sampling;
    sampling.top_k = -1;
    EXPECT_EQ(refusal_of_open(context, params), "top_k: not in [0, 2147483647]");
    EXPECT_EQ(llama_memory_seq_pos_max(llama_get_memory(context.get()), 0), static_cast<llama_pos>(tokens.size()) - 1);
}

TEST_F(ContextTest, OneThatLooksAheadIsMadeCausal) {
    llama_context_params params = tiny_context_params();
    params.attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL;
    params.n_ubatch = 16;
    const Context context = tiny_context_of(params);
    const Handle stream = open(context);
    prefill(stream);
    expect_same_as_on_a_plain_context(stream);
}

TEST_F(ContextTest, OneForEmbeddingsOfWhateverPoolingGivesLogits) {
    for (const TinyKind kind : {TinyKind::attention, TinyKind::hybrid}) {
        for (const enum llama_pooling_type pooling :
             {LLAMA_POOLING_TYPE_NONE, LLAMA_POOLING_TYPE_MEAN, LLAMA_POOLING_TYPE_CLS, LLAMA_POOLING_TYPE_LAST}) {
            SCOPED_TRACE(static_cast<int>(pooling));
            llama_context_params params = tiny_context_params();
            params.embeddings = true;
            params.pooling_type = pooling;
            const Context context = tiny_context_of(params, kind);
            const Handle stream = open(context);
            prefill(stream);
            expect_same_as_on_a_plain_context(stream, kind);
        }
    }
}

TEST_F(ContextTest, OneForEmbeddingsOfFewerTokensThanABatchTakesABatch) {
    llama_context_params params = tiny_context_params();
    params.embeddings = true;
    params.n_outputs_max = 1;
    const Context context = tiny_context_of(params);
    const Handle stream = open(context);
    prefill(stream);
    expect_same_as_on_a_plain_context(stream);
}

TEST_F(ContextTest, MoreThreadsThanLlamaCppTakesAreRefused) {
    auto params = sized<token_trie_stream_params>();
    params.n_threads = 100000;
    EXPECT_EQ(refusal_of_open_file(params), "n_threads: 100000 is above 512");
    const Context context = tiny_context();
    llama_set_n_threads(context.get(), 1, 513);
    EXPECT_EQ(refusal_of_open(context), "context: n_threads_batch: 513 is above 512");
    llama_set_n_threads(context.get(), 513, 1);
    EXPECT_EQ(refusal_of_open(context), "context: n_threads: 513 is above 512");
}

TEST_F(ContextTest, ALengthFarBeyondWhatTheModelWasTrainedWithIsRefused) {
    auto params = sized<token_trie_stream_params>();
    params.n_threads = 1;
    params.n_ctx = INT_MAX;
    EXPECT_EQ(refusal_of_open_file(params),
              "n_ctx: 2147483647 is more than 16 times the 1024 tokens that the model was trained with");
    params.n_ctx = 16 * 1024 + 1;
    EXPECT_EQ(refusal_of_open_file(params),
              "n_ctx: 16385 is more than 16 times the 1024 tokens that the model was trained with");
    params.n_ctx = 16 * 1024;
    EXPECT_NE(Handle(token_trie_stream_open_file(tiny_model_path().c_str(), &params)), nullptr)
        << token_trie_last_error();
}

TEST_F(ContextTest, AModelWithoutAVocabularyIsRefusedBeforeThereIsAContext) {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    const Model model(llama_model_load_from_file(tiny_model_path(TinyKind::no_tokenizer).c_str(), params));
    ASSERT_NE(model, nullptr);
    llama_context_params context_params = tiny_context_params(77);
    for (const llama_model * of : {static_cast<const llama_model *>(model.get()),
                                   static_cast<const llama_model *>(tiny_model(TinyKind::no_tokenizer))}) {
        EXPECT_EQ(token_trie_stream_context_params(of, &context_params), TOKEN_TRIE_ERROR_ARGUMENT);
        EXPECT_STREQ(token_trie_last_error(), "model: it has no tokenizer");
    }
    EXPECT_EQ(context_params.n_seq_max, tiny_context_params().n_seq_max) << "left as they were";
    EXPECT_EQ(refusal_of_open_file(sized<token_trie_stream_params>(), TinyKind::no_tokenizer),
              "model: it has no tokenizer");
}

TEST_F(ContextTest, OneWhoseSequencesShareNoCacheHasRoomForWhatOneOfThemHolds) {
    llama_context_params params = tiny_context_params(512);
    params.n_seq_max = 2;
    params.kv_unified = false;
    const Context context = tiny_context_of(params);
    ASSERT_EQ(llama_n_ctx_seq(context.get()), 256U);
    ASSERT_EQ(llama_n_ctx(context.get()), 512U);
    const Handle stream = open(context);
    prefill(stream);
    const Tokens too_many(257, kRead);
    EXPECT_EQ(token_trie_stream_prefill(stream.get(), too_many.data(), too_many.size()), TOKEN_TRIE_ERROR_CONTEXT);
    EXPECT_STREQ(token_trie_last_error(), "257 tokens do not fit the context of 256");
    expect_same_as_on_a_plain_context(stream);
    prefill(stream, Tokens(256, kRead));
}

// On the backend, four logits remain of it.
Sampler chain_of_four() {
    Sampler chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(4));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(1));
    return chain;
}

TEST_F(ContextTest, OneThatDrawsOnTheBackendGivesItsLogitsToTheStream) {
    const Sampler chain = chain_of_four();
    llama_sampler_seq_config of_sequence_0{0, chain.get()};
    llama_context_params params = tiny_context_params();
    params.samplers = &of_sequence_0;
    params.n_samplers = 1;
    const Context context = tiny_context_of(params);
    const Handle stream = open(context);
    prefill(stream);
    expect_same_as_on_a_plain_context(stream);
}

TEST_F(ContextTest, ASamplerSetOnTheBackendLaterIsTakenOff) {
    const Context context = tiny_stream_context();
    const Handle stream = open(context);
    const std::array<Sampler, 3> chains = {chain_of_four(), chain_of_four(), chain_of_four()};
    for (const Sampler & chain : chains) {
        prefill(stream);
        ASSERT_TRUE(llama_set_sampler(context.get(), 0, chain.get()));
        expect_same_as_on_a_plain_context(stream);
        llama_set_sampler(context.get(), 0, nullptr);
    }
}

TEST_F(ContextTest, ParamsOfAStreamHaveNoSamplersAndDoNotLookAhead) {
    llama_context_params params = tiny_context_params();
    params.attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL;
    params.n_samplers = 1;
    ASSERT_EQ(token_trie_stream_context_params(tiny_model(), &params), TOKEN_TRIE_OK);
    EXPECT_EQ(params.attention_type, LLAMA_ATTENTION_TYPE_CAUSAL);
    EXPECT_EQ(params.n_samplers, 0U);
}

// llama.cpp ends the process on more sequences than a batch has tokens.
TEST_F(ContextTest, ParamsOfAStreamHaveNoMoreSequencesThanABatchHasTokens) {
    llama_context_params params = tiny_context_params(0);
    for (const std::uint32_t n_batch : {1U, 7U, 64U, 2048U}) {
        params.n_batch = n_batch;
        ASSERT_EQ(token_trie_stream_context_params(tiny_model(), &params), TOKEN_TRIE_OK);
        EXPECT_EQ(params.n_seq_max, std::min(n_batch, 64U));
        EXPECT_NE(tiny_context_of(params), nullptr);
    }
}

}  // namespace
}  // namespace token_trie::test
