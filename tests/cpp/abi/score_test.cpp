#include "answer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

namespace token_trie::test {
namespace {

static_assert(sizeof(token_trie_sampling) == 48 && offsetof(token_trie_sampling, size) == 0 &&
              offsetof(token_trie_sampling, seed) == 8 && offsetof(token_trie_sampling, temperature) == 16 &&
              offsetof(token_trie_sampling, top_p) == 20 && offsetof(token_trie_sampling, top_k) == 24 &&
              offsetof(token_trie_sampling, min_p) == 28 && offsetof(token_trie_sampling, penalty_last_n) == 32 &&
              offsetof(token_trie_sampling, penalty_repeat) == 36 &&
              offsetof(token_trie_sampling, penalty_freq) == 40 &&
              offsetof(token_trie_sampling, penalty_present) == 44);
static_assert(sizeof(token_trie_query) == 152 && offsetof(token_trie_query, size) == 0 &&
              offsetof(token_trie_query, mode) == 8 && offsetof(token_trie_query, with_hidden_state) == 12 &&
              offsetof(token_trie_query, set) == 16 && offsetof(token_trie_query, set_params) == 24 &&
              offsetof(token_trie_query, sampling) == 32 && offsetof(token_trie_query, leaf_end) == 40 &&
              offsetof(token_trie_query, branches) == 44 && offsetof(token_trie_query, beam_width) == 48 &&
              offsetof(token_trie_query, n_best) == 56 && offsetof(token_trie_query, max_nodes) == 64 &&
              offsetof(token_trie_query, timeout_ms) == 72 && offsetof(token_trie_query, max_tokens) == 76 &&
              offsetof(token_trie_query, leaf_weights) == 80 && offsetof(token_trie_query, n_leaf_weights) == 88 &&
              offsetof(token_trie_query, stop_strings) == 96 && offsetof(token_trie_query, n_stop_strings) == 104 &&
              offsetof(token_trie_query, gbnf) == 112 && offsetof(token_trie_query, root) == 120 &&
              offsetof(token_trie_query, on_token) == 128 && offsetof(token_trie_query, user) == 136 &&
              offsetof(token_trie_query, goes_on) == 144);
static_assert(sizeof(token_trie_answer_info) == 240 && offsetof(token_trie_answer_info, ticket) == 8 &&
              offsetof(token_trie_answer_info, status) == 16 && offsetof(token_trie_answer_info, stop) == 20 &&
              offsetof(token_trie_answer_info, stop_string) == 24 && offsetof(token_trie_answer_info, ending) == 28 &&
              offsetof(token_trie_answer_info, leaf) == 32 && offsetof(token_trie_answer_info, logprob) == 40 &&
              offsetof(token_trie_answer_info, gap) == 48 && offsetof(token_trie_answer_info, rival_min) == 56 &&
              offsetof(token_trie_answer_info, rival_max) == 64 && offsetof(token_trie_answer_info, mass_max) == 72 &&
              offsetof(token_trie_answer_info, n_shared) == 80 &&
              offsetof(token_trie_answer_info, n_evaluated) == 112 &&
              offsetof(token_trie_answer_info, decode_ns) == 144 && offsetof(token_trie_answer_info, message) == 152 &&
              offsetof(token_trie_answer_info, leaves) == 160 && offsetof(token_trie_answer_info, logprobs) == 176 &&
              offsetof(token_trie_answer_info, tokens) == 192 && offsetof(token_trie_answer_info, ranges) == 208 &&
              offsetof(token_trie_answer_info, hidden_state) == 224);

const Tokens kPrompt = bytes("Do: ");
const std::string kSet = payload_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}, {"SEND", bytes("SEND")}});
constexpr std::size_t kLeaves = 3;

class AbiScore : public WithTinyModel {
   protected:
    void SetUp() override { open(); }
    void open() {
        stream_.reset();
        stream_ = open_tiny();
        ASSERT_EQ(token_trie_stream_prefill(stream_.get(), kPrompt.data(), kPrompt.size()), TOKEN_TRIE_OK);
    }

    std::int32_t score() {
        query_.mode = TOKEN_TRIE_QUERY_SCORES;
        const std::int32_t status = answer(stream_.get(), query_, answer_);
        if (status == TOKEN_TRIE_OK) {
            leaves_ = logprobs_of(answer_);
        }
        return status;
    }
    std::int32_t search(std::size_t n_best) {
        query_.mode = TOKEN_TRIE_QUERY_BEST;
        query_.n_best = n_best;
        const std::int32_t status = answer(stream_.get(), query_, answer_);
        if (status == TOKEN_TRIE_OK) {
            found_ = leaves_of(answer_);
            logprobs_ = logprobs_of(answer_);
        }
        return status;
    }
    std::vector<float> hidden_state() {
        auto query = sized<token_trie_query>();
        query.mode = TOKEN_TRIE_QUERY_TEXT;
        query.with_hidden_state = 1;
        EXPECT_EQ(answer(stream_.get(), query, answer_), TOKEN_TRIE_OK) << token_trie_last_error();
        return hidden_state_of(answer_);
    }
    std::string refusal(const Tokens & tokens = {}) {
        const std::int32_t status = answer(stream_.get(), query_, answer_, tokens);
        EXPECT_LT(status, 0);
        EXPECT_EQ(answer_, nullptr);
        return token_trie_last_error();
    }
    token_trie_stream_state state() {
        auto out = sized<token_trie_stream_state>();
        EXPECT_EQ(token_trie_stream_get_state(stream_.get(), &out), TOKEN_TRIE_OK);
        return out;
    }

    Handle stream_;
    const SetHandle set_ = set_of(kSet);
    token_trie_query query_ = query_of(set_, TOKEN_TRIE_QUERY_SCORES);
    AnswerHandle answer_;
    std::vector<double> leaves_;
    std::vector<std::int64_t> found_;
    std::vector<double> logprobs_;
};

TEST_F(AbiScore, AllLeavesAreScoredInOnePass) {
    ASSERT_EQ(score(), TOKEN_TRIE_OK) << token_trie_last_error();
    ASSERT_EQ(leaves_.size(), kLeaves);
    EXPECT_EQ(info_of(answer_).n_evaluated, 4U) << "READ, S, E and N";
    EXPECT_EQ(info_of(answer_).n_passes, 1U);
}

TEST_F(AbiScore, SearchRanksAsScoresDo) {
    ASSERT_EQ(score(), TOKEN_TRIE_OK);
    ASSERT_EQ(search(8), TOKEN_TRIE_OK) << token_trie_last_error();
    ASSERT_EQ(found_.size(), kLeaves);
    EXPECT_EQ(info_of(answer_).leaf, found_[0]);
    EXPECT_EQ(info_of(answer_).logprob, logprobs_[0]);
    for (std::size_t i = 0; i < kLeaves; ++i) {
        EXPECT_NEAR(logprobs_[i], leaves_[static_cast<std::size_t>(found_[i])], 1e-4);
        EXPECT_TRUE(i == 0 || logprobs_[i] <= logprobs_[i - 1]);
    }
}

TEST_F(AbiScore, WeightsRankButLogprobsStayTheModelsOwn) {
    ASSERT_EQ(score(), TOKEN_TRIE_OK);
    const std::array<double, kLeaves> weights = {30 - leaves_[0], 10 - leaves_[1], 20 - leaves_[2]};
    query_.leaf_weights = weights.data();
    query_.n_leaf_weights = weights.size();
    ASSERT_EQ(search(2), TOKEN_TRIE_OK) << token_trie_last_error();
    ASSERT_EQ(found_, std::vector<std::int64_t>({0, 2}));
    EXPECT_NEAR(logprobs_[0], leaves_[0], 1e-4);
    EXPECT_NEAR(logprobs_[1], leaves_[2], 1e-4);
    EXPECT_GE(info_of(answer_).rival_max, 10 - 1e-4);
    EXPECT_LT(info_of(answer_).rival_max, 20);
    EXPECT_EQ(info_of(answer_).gap, 0);
}

TEST_F(AbiScore, TheHiddenStateIsTheSameHoweverItComesToBeThere) {
    const std::vector<float> state = hidden_state();
    ASSERT_EQ(state.size(), static_cast<std::size_t>(llama_model_n_embd(tiny_model())));
    ASSERT_EQ(score(), TOKEN_TRIE_OK);  // whose rows are evaluated beside it
    const std::vector<float> again = hidden_state();
    query_.with_hidden_state = 1;
    ASSERT_EQ(score(), TOKEN_TRIE_OK);
    const std::vector<float> beside = hidden_state_of(answer_);
    ASSERT_EQ(token_trie_stream_prefill(stream_.get(), kPrompt.data(), 1), TOKEN_TRIE_OK);
    const std::vector<float> other = hidden_state();
    ASSERT_EQ(token_trie_stream_prefill(stream_.get(), kPrompt.data(), kPrompt.size()), TOKEN_TRIE_OK);
    const std::vector<float> anew = hidden_state();
    float difference = 0;
    for (std::size_t i = 0; i < state.size(); ++i) {
        EXPECT_NEAR(again[i], state[i], 1e-3);
        EXPECT_NEAR(beside[i], state[i], 1e-3);
        EXPECT_NEAR(anew[i], state[i], 1e-3);
        difference = std::max(difference, std::abs(other[i] - state[i]));
    }
    EXPECT_GT(difference, 0.1);
}

TEST_F(AbiScore, AnAnswerAfterOtherTokensIsThatOfAStreamWithThese) {
    const Tokens other = bytes("Say: ");
    ASSERT_EQ(score(), TOKEN_TRIE_OK);
    ASSERT_EQ(answer(stream_.get(), query_, answer_, other), TOKEN_TRIE_OK) << token_trie_last_error();
    const std::vector<double> beside = logprobs_of(answer_);
    EXPECT_EQ(state().n_tokens, kPrompt.size());
    ASSERT_EQ(token_trie_stream_prefill(stream_.get(), other.data(), other.size()), TOKEN_TRIE_OK);
    const std::vector<double> before = leaves_;
    ASSERT_EQ(score(), TOKEN_TRIE_OK);
    for (std::size_t i = 0; i < kLeaves; ++i) {
        EXPECT_NEAR(leaves_[i], beside[i], 1e-4);
    }
    EXPECT_NE(leaves_, before);
}

TEST_F(AbiScore, ASpanUnderWayStays) {
    ASSERT_EQ(set_trie(stream_.get(), kSet), TOKEN_TRIE_OK);
    ASSERT_EQ(score(), TOKEN_TRIE_OK) << token_trie_last_error();
    ASSERT_EQ(search(1), TOKEN_TRIE_OK);
    EXPECT_EQ(state().span, TOKEN_TRIE_CONSTRAINED);
    EXPECT_EQ(state().n_tokens, kPrompt.size());
}

// The same tokens and figures as by a span that is generated, which the stream's own set survives.
TEST_F(AbiScore, ADecodingAppendsWhatASpanWouldGenerate) {
    for (const bool drawn : {false, true}) {
        open();
        ASSERT_EQ(set_sampling(stream_.get(), 1, 1, 7), TOKEN_TRIE_OK);
        const int mode = drawn ? TOKEN_TRIE_SAMPLED : TOKEN_TRIE_GREEDY;
        ASSERT_EQ(set_trie(stream_.get(), kSet, mode), TOKEN_TRIE_OK);
        ASSERT_EQ(token_trie_stream_generate(stream_.get(), 32, nullptr, nullptr), TOKEN_TRIE_OK);
        const token_trie_stream_state generated = state();
        ASSERT_EQ(token_trie_stream_prefill(stream_.get(), kPrompt.data(), kPrompt.size()), TOKEN_TRIE_OK);
        auto sampling = sized<token_trie_sampling>();
        sampling.temperature = 1;
        sampling.seed = 7;
        token_trie_query query = query_of(set_, drawn ? TOKEN_TRIE_QUERY_SAMPLED : TOKEN_TRIE_QUERY_GREEDY);
        query.sampling = &sampling;
        ASSERT_EQ(answer(stream_.get(), query, answer_), TOKEN_TRIE_OK) << token_trie_last_error();
        const token_trie_answer_info its = info_of(answer_);
        EXPECT_EQ(its.leaf, generated.leaf);
        EXPECT_NEAR(its.logprob, generated.logprob, 1e-6);
        EXPECT_EQ(its.stop, TOKEN_TRIE_STOP_COMPLETE);
        EXPECT_EQ(its.n_branches, generated.n_branches);
        EXPECT_EQ(its.n_forced, generated.n_forced);
        EXPECT_EQ(state().n_tokens, generated.n_tokens);
        EXPECT_EQ(state().span, TOKEN_TRIE_CONSTRAINED) << "the stream's own set starts again";
    }
}

TEST_F(AbiScore, DrawsOfAStreamGoOnThroughItsAnswers) {
    const auto drawn = [&](bool by_answer) {
        open();
        EXPECT_EQ(set_sampling(stream_.get(), 2, 1, 3), TOKEN_TRIE_OK);
        Tokens out(64);
        for (int i = 0; i < 3; ++i) {
            if (by_answer) {
                auto sampling = sized<token_trie_sampling>();
                sampling.temperature = 2;
                sampling.seed = TOKEN_TRIE_SEED_KEEP;
                auto query = sized<token_trie_query>();
                query.mode = TOKEN_TRIE_QUERY_TEXT;
                query.sampling = &sampling;
                query.max_tokens = 4;
                EXPECT_EQ(answer(stream_.get(), query, answer_), TOKEN_TRIE_OK) << token_trie_last_error();
            } else {
                EXPECT_EQ(token_trie_stream_generate(stream_.get(), 4, nullptr, nullptr), TOKEN_TRIE_OK);
            }
        }
        std::size_t n = 0;
        EXPECT_EQ(token_trie_stream_get_tokens(stream_.get(), out.data(), out.size(), &n), TOKEN_TRIE_OK);
        out.resize(n);
        return out;
    };
    EXPECT_EQ(drawn(true), drawn(false));
}

TEST_F(AbiScore, BadQueriesAreRefusedByName) {
    token_trie_answer * out = nullptr;
    EXPECT_EQ(token_trie_stream_answer(nullptr, nullptr, 0, &query_, &out), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "stream: null");
    EXPECT_EQ(token_trie_stream_answer(stream_.get(), nullptr, 0, nullptr, &out), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "query: null");
    EXPECT_EQ(token_trie_stream_answer(stream_.get(), nullptr, 0, &query_, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "answer: null");
    const Token outside = kTinyVocab;
    EXPECT_EQ(token_trie_stream_answer(stream_.get(), &outside, 0, &query_, &out), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "n_tokens: 0; tokens is null for the stream's sequence");
    EXPECT_EQ(token_trie_stream_answer(stream_.get(), &outside, SIZE_MAX, &query_, &out), TOKEN_TRIE_ERROR_CONTEXT);
    EXPECT_STREQ(token_trie_last_error(), "18446744073709551615 tokens do not fit the context of 256");
    EXPECT_EQ(refusal({outside}), "prefix[0]: 263 is outside the vocabulary (263 tokens)");

    const auto refused = [&](const std::function<void(token_trie_query &)> & change) {
        const token_trie_query before = query_;
        change(query_);
        std::string message = refusal();
        query_ = before;
        return message;
    };
    EXPECT_EQ(refused([](auto & q) { q.size = 3; }), "query.size: 3 is not sizeof(*query)");
    EXPECT_EQ(refused([](auto & q) { q.mode = 6; }), "query.mode: 6 is not in [0, 4]");
    EXPECT_EQ(refused([](auto & q) { q.mode = -1; }), "query.mode: -1 is not in [0, 4]");
    EXPECT_EQ(refused([](auto & q) { q.leaf_end = 3; }), "query.leaf_end: 3 is not in [0, 2]");
    EXPECT_EQ(refused([](auto & q) { q.leaf_end = -1; }), "query.leaf_end: -1 is not in [0, 2]");
    EXPECT_EQ(refused([](auto & q) { q.set = nullptr; }), "query.set: null");
    EXPECT_EQ(refused([](auto & q) { q.beam_width = -1; }), "query.beam_width: -1 is negative");
    EXPECT_EQ(refused([](auto & q) { q.timeout_ms = -1; }), "query.timeout_ms: -1 is negative");
    EXPECT_EQ(refused([](auto & q) {
                  q.mode = TOKEN_TRIE_QUERY_TEXT;
                  q.set = nullptr;
                  q.max_tokens = -1;
              }),
              "query.max_tokens: -1 is negative");

    auto sampling = sized<token_trie_sampling>();
    query_.sampling = &sampling;
    sampling.top_p = 2;
    EXPECT_EQ(refusal(), "top_p: not in (0, 1]");
    sampling.top_p = 0;
    sampling.seed = -3;
    EXPECT_EQ(refusal(), "query.sampling.seed: -3 is none here");
    sampling.seed = std::int64_t{1} << 32;
    EXPECT_EQ(refusal(), "query.sampling.seed: 4294967296 is none here");
    query_.sampling = nullptr;

    const char * const name = "READ";
    auto list = sized<token_trie_params>();
    list.on_complete = TOKEN_TRIE_RESTART;
    query_.set_params = &list;
    const std::string refusal_of_lists = "a list with unique, exclude or min_items cannot be scored member by member";
    list.unique = 1;
    EXPECT_EQ(refusal(), refusal_of_lists);
    list.unique = 0;
    list.min_items = 2;
    EXPECT_EQ(refusal(), refusal_of_lists);
    list = sized<token_trie_params>();
    list.exclude = &name;
    list.n_exclude = 1;
    EXPECT_EQ(refusal(), refusal_of_lists);
    query_.set_params = nullptr;

    query_.mode = TOKEN_TRIE_QUERY_BEST;
    std::array<double, kLeaves> weights{};
    query_.leaf_weights = weights.data();
    query_.n_leaf_weights = 2;
    EXPECT_EQ(refusal(), "query.n_leaf_weights: 2 where the trie has 3");
    query_.n_leaf_weights = 3;
    weights[1] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(refusal(), "query.leaf_weights[1]: nan is not finite");
    weights[1] = 0;
    weights[2] = -std::numeric_limits<double>::infinity();
    EXPECT_EQ(refusal(), "query.leaf_weights[2]: -inf is not finite");
    EXPECT_EQ(state().n_tokens, kPrompt.size());
}

TEST_F(AbiScore, ADecodingGoesOnFromTheSequenceAlone) {
    query_.mode = TOKEN_TRIE_QUERY_GREEDY;
    EXPECT_EQ(refusal(kPrompt), "tokens: only whole answers are found after other tokens than the sequence");
}

TEST_F(AbiScore, AnswersWithoutASequenceAreRefused) {
    const Handle empty = open_tiny();
    EXPECT_EQ(answer(empty.get(), query_, answer_), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "nothing to go on from: prefill first");
    EXPECT_EQ(answer(empty.get(), query_, answer_, bytes("x")), TOKEN_TRIE_OK);
    query_.mode = TOKEN_TRIE_QUERY_GREEDY;
    EXPECT_EQ(answer(empty.get(), query_, answer_), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "nothing to go on from: prefill first");
    auto state_alone = sized<token_trie_query>();
    state_alone.mode = TOKEN_TRIE_QUERY_TEXT;
    state_alone.with_hidden_state = 1;
    EXPECT_EQ(answer(empty.get(), state_alone, answer_), TOKEN_TRIE_ERROR_ARGUMENT);
}

TEST_F(AbiScore, AClosedStreamIsRefused) {
    token_trie_stream * closed = stream_.release();
    token_trie_stream_close(closed);
    EXPECT_EQ(answer(closed, query_, answer_), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "stream: closed, or never opened");
}

}  // namespace
}  // namespace token_trie::test
