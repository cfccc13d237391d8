#include "answer.h"

#include <algorithm>
#include <climits>

// Streams on params and files that are not what a stream wants.
namespace token_trie::test {
namespace {

const Tokens kPrompt = bytes("a prompt of more tokens than the smallest of the batches here");
const std::string kSet = payload_of({{"READ", bytes("READ")}, {"SEND", bytes("SEND")}, {"SEND_MAIL", {kSend, kMail}}});

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

void expect_same_as_with_plain_params(const llama_context_params & params, TinyKind kind = TinyKind::attention) {
    const Handle stream = open_tiny(params, kind);
    const Handle expected = open_tiny(tiny_context_params(), kind);
    prefill(stream);
    prefill(expected);
    const std::vector<double> is = scores(stream);
    const std::vector<double> should_be = scores(expected);
    for (std::size_t i = 0; i < is.size(); ++i) {
        EXPECT_NEAR(is[i], should_be[i], 1e-3) << "member " << i;
    }
    EXPECT_EQ(answer(stream), answer(expected));
}

class ContextTest : public WithTinyModel {};

TEST_F(ContextTest, OneThatLooksAheadIsMadeCausal) {
    llama_context_params params = tiny_context_params();
    params.attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL;
    params.n_ubatch = 16;
    expect_same_as_with_plain_params(params);
}

TEST_F(ContextTest, OneForEmbeddingsOfWhateverPoolingGivesLogits) {
    for (const TinyKind kind : {TinyKind::attention, TinyKind::hybrid}) {
        for (const enum llama_pooling_type pooling :
             {LLAMA_POOLING_TYPE_NONE, LLAMA_POOLING_TYPE_MEAN, LLAMA_POOLING_TYPE_CLS, LLAMA_POOLING_TYPE_LAST}) {
            SCOPED_TRACE(static_cast<int>(pooling));
            llama_context_params params = tiny_context_params();
            params.embeddings = true;
            params.pooling_type = pooling;
            expect_same_as_with_plain_params(params, kind);
        }
    }
}

TEST_F(ContextTest, OneForFewSequencesApartIsOneForManyThatShareTheirCells) {
    llama_context_params params = tiny_context_params();
    params.n_outputs_max = 1;
    params.n_seq_max = 2;
    params.kv_unified = false;
    params.swa_full = false;
    expect_same_as_with_plain_params(params);
    expect_same_as_with_plain_params(params, TinyKind::sliding_window);
}

TEST_F(ContextTest, OneThatDrawsOnTheBackendGivesItsLogitsToTheStream) {
    const Sampler chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(4));  // leaves four logits
    llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(1));
    llama_sampler_seq_config of_sequence_0{0, chain.get()};
    llama_context_params params = tiny_context_params();
    params.samplers = &of_sequence_0;
    params.n_samplers = 1;
    expect_same_as_with_plain_params(params);
}

TEST_F(ContextTest, MoreThreadsThanLlamaCppTakesAreRefused) {
    auto params = sized<token_trie_stream_params>();
    params.n_threads = 100000;
    EXPECT_EQ(refusal_of_open_file(params), "n_threads: 100000 is above 512");
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
    const llama_context_params context_params = tiny_context_params();
    const auto stream_params = sized<token_trie_stream_params>();
    EXPECT_EQ(token_trie_stream_open_model(model.get(), &context_params, &stream_params), nullptr);
    EXPECT_STREQ(token_trie_last_error(), "model: it has no tokenizer");
    EXPECT_EQ(refusal_of_open_file(sized<token_trie_stream_params>(), TinyKind::no_tokenizer),
              "model: it has no tokenizer");
}

// llama.cpp ends the process on more sequences than a batch has tokens.
TEST_F(ContextTest, HasNoMoreSequencesThanABatchHasTokens) {
    llama_context_params params = tiny_context_params(0);
    for (const std::uint32_t n_batch : {1U, 7U, 64U, 2048U}) {
        params.n_batch = n_batch;
        const ContextMaker maker = maker_of(params);
        EXPECT_EQ(maker.max_ids(), std::min(n_batch, 64U));
        EXPECT_NE(maker.make(256, 64), nullptr);
    }
}

}  // namespace
}  // namespace token_trie::test
