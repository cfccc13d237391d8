#include "tiny_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

namespace token_trie::test {
namespace {

static_assert(sizeof(token_trie_score_params) == 88 && offsetof(token_trie_score_params, size) == 0 &&
              offsetof(token_trie_score_params, leaf_end) == 8 && offsetof(token_trie_score_params, branches) == 12 &&
              offsetof(token_trie_score_params, prefix) == 16 && offsetof(token_trie_score_params, n_prefix) == 24 &&
              offsetof(token_trie_score_params, set) == 32 && offsetof(token_trie_score_params, set_params) == 40 &&
              offsetof(token_trie_score_params, beam_width) == 48 &&
              offsetof(token_trie_score_params, max_nodes) == 56 &&
              offsetof(token_trie_score_params, timeout_ms) == 64 &&
              offsetof(token_trie_score_params, leaf_weights) == 72 &&
              offsetof(token_trie_score_params, n_leaf_weights) == 80);
static_assert(sizeof(token_trie_score_stats) == 72 && offsetof(token_trie_score_stats, size) == 0 &&
              offsetof(token_trie_score_stats, n_found) == 8 && offsetof(token_trie_score_stats, n_evaluated) == 16 &&
              offsetof(token_trie_score_stats, n_passes) == 24 && offsetof(token_trie_score_stats, gap) == 32 &&
              offsetof(token_trie_score_stats, decode_ns) == 40 && offsetof(token_trie_score_stats, rival_min) == 48 &&
              offsetof(token_trie_score_stats, rival_max) == 56 && offsetof(token_trie_score_stats, mass_max) == 64);

const Tokens kPrompt = bytes("Do: ");
const std::string kSet = payload_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}, {"SEND", bytes("SEND")}});
constexpr std::size_t kLeaves = 3;
constexpr std::size_t kNodes = 7;

class AbiScore : public WithTinyModel {
   protected:
    void SetUp() override {
        const auto params = sized<token_trie_stream_params>();
        stream_.reset(token_trie_stream_open(context_.get(), &params));
        ASSERT_NE(stream_, nullptr) << token_trie_last_error();
        ASSERT_EQ(token_trie_stream_prefill(stream_.get(), kPrompt.data(), kPrompt.size()), TOKEN_TRIE_OK);
        params_.size = sizeof params_;
        params_.set = set_.get();
        stats_.size = sizeof stats_;
    }

    std::int32_t score() {
        return token_trie_stream_score(stream_.get(), &params_, leaves_.data(), leaves_.size(), nodes_.data(),
                                       nodes_.size(), &stats_);
    }
    std::int32_t search(std::size_t n_best) {
        return token_trie_stream_search(stream_.get(), &params_, found_.data(), logprobs_.data(), n_best, &stats_);
    }
    std::string refusal(const std::function<std::int32_t()> & call) {
        const std::array<double, kLeaves> before = leaves_;
        const std::int32_t status = call();
        EXPECT_LT(status, 0);
        EXPECT_EQ(leaves_, before);
        return token_trie_last_error();
    }
    token_trie_stream_state state() {
        auto out = sized<token_trie_stream_state>();
        EXPECT_EQ(token_trie_stream_get_state(stream_.get(), &out), TOKEN_TRIE_OK);
        return out;
    }

    Context context_ = tiny_stream_context();
    Handle stream_;
    const SetHandle set_ = set_of(kSet);
    token_trie_score_params params_{};
    token_trie_score_stats stats_{};
    std::array<double, kLeaves> leaves_{};
    std::array<double, kNodes> nodes_{};
    std::array<std::int64_t, 8> found_{};
    std::array<double, 8> logprobs_{};
};

TEST_F(AbiScore, ALeafIsTheSumOfItsNodes) {
    ASSERT_EQ(score(), TOKEN_TRIE_OK) << token_trie_last_error();
    // Level by level: READ and S, then _FILE and E, N, D.
    EXPECT_EQ(nodes_[0], 0);
    EXPECT_NEAR(leaves_[0], nodes_[2], 1e-9);
    EXPECT_NEAR(leaves_[1], nodes_[2] + nodes_[4], 1e-9);
    EXPECT_NEAR(leaves_[2], nodes_[1] + nodes_[3] + nodes_[5] + nodes_[6], 1e-9);
    EXPECT_EQ(stats_.n_found, kLeaves);
    EXPECT_EQ(stats_.n_evaluated, 4U) << "READ, S, E and N";
    EXPECT_EQ(stats_.n_passes, 1U);
}

TEST_F(AbiScore, SearchRanksAsScoresDo) {
    ASSERT_EQ(score(), TOKEN_TRIE_OK);
    ASSERT_EQ(search(8), TOKEN_TRIE_OK) << token_trie_last_error();
    ASSERT_EQ(stats_.n_found, kLeaves);
    EXPECT_EQ(stats_.gap, 0);
    for (std::size_t i = 0; i < kLeaves; ++i) {
        EXPECT_NEAR(logprobs_[i], leaves_[static_cast<std::size_t>(found_[i])], 1e-4);
        EXPECT_TRUE(i == 0 || logprobs_[i] <= logprobs_[i - 1]);
    }
}

TEST_F(AbiScore, WeightsRankButLogprobsStayTheModelsOwn) {
    ASSERT_EQ(score(), TOKEN_TRIE_OK);
    std::array<double, kLeaves> weights{};
    weights[0] = 30 - leaves_[0];
    weights[1] = 10 - leaves_[1];
    weights[2] = 20 - leaves_[2];
    params_.leaf_weights = weights.data();
    params_.n_leaf_weights = weights.size();
    ASSERT_EQ(search(2), TOKEN_TRIE_OK) << token_trie_last_error();
    EXPECT_EQ(stats_.n_found, 2U);
    EXPECT_EQ(found_[0], 0);
    EXPECT_EQ(found_[1], 2);
    EXPECT_NEAR(logprobs_[0], leaves_[0], 1e-4);
    EXPECT_NEAR(logprobs_[1], leaves_[2], 1e-4);
    EXPECT_GE(stats_.rival_max, 10 - 1e-4);
    EXPECT_LT(stats_.rival_max, 20);
    EXPECT_EQ(stats_.gap, 0);
}

TEST_F(AbiScore, TheHiddenStateIsTheSameHoweverItComesToBeThere) {
    const auto state_of = [&] {
        std::size_t n = 0;
        EXPECT_EQ(token_trie_stream_get_hidden_state(stream_.get(), nullptr, &n), TOKEN_TRIE_OK);
        EXPECT_EQ(n, static_cast<std::size_t>(llama_model_n_embd(tiny_model())));
        std::vector<float> state(n);
        EXPECT_EQ(token_trie_stream_get_hidden_state(stream_.get(), state.data(), &n), TOKEN_TRIE_OK);
        return state;
    };
    const std::vector<float> state = state_of();
    ASSERT_EQ(score(), TOKEN_TRIE_OK);  // whose rows are evaluated beside it
    const std::vector<float> again = state_of();
    ASSERT_EQ(token_trie_stream_prefill(stream_.get(), kPrompt.data(), 1), TOKEN_TRIE_OK);
    const std::vector<float> other = state_of();
    ASSERT_EQ(token_trie_stream_prefill(stream_.get(), kPrompt.data(), kPrompt.size()), TOKEN_TRIE_OK);
    const std::vector<float> anew = state_of();
    float difference = 0;
    for (std::size_t i = 0; i < state.size(); ++i) {
        EXPECT_NEAR(again[i], state[i], 1e-3);
        EXPECT_NEAR(anew[i], state[i], 1e-3);
        difference = std::max(difference, std::abs(other[i] - state[i]));
    }
    EXPECT_GT(difference, 0.1);
}

TEST_F(AbiScore, AHiddenStateWithoutRoomOrTokensIsRefused) {
    std::size_t n = 1;
    float one = 7;
    EXPECT_EQ(token_trie_stream_get_hidden_state(stream_.get(), &one, &n), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(one, 7);
    EXPECT_EQ(std::string(token_trie_last_error()).substr(0, 21), "n: 1 where the state ");
    EXPECT_EQ(token_trie_stream_get_hidden_state(stream_.get(), &one, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_stream_get_hidden_state(nullptr, &one, &n), TOKEN_TRIE_ERROR_ARGUMENT);
    stream_.reset();
    const auto params = sized<token_trie_stream_params>();
    stream_.reset(token_trie_stream_open(context_.get(), &params));
    ASSERT_NE(stream_, nullptr) << token_trie_last_error();
    EXPECT_EQ(token_trie_stream_get_hidden_state(stream_.get(), nullptr, &n), TOKEN_TRIE_ERROR_ARGUMENT);
}

TEST_F(AbiScore, WithoutASetItIsTheTrieThatIsSetAndTheSpanStays) {
    ASSERT_EQ(score(), TOKEN_TRIE_OK);
    const std::array<double, kLeaves> of_set = leaves_;
    ASSERT_EQ(token_trie_stream_set_token_trie(stream_.get(), kSet.data(), kSet.size(), TOKEN_TRIE_GREEDY),
              TOKEN_TRIE_OK);
    params_.set = nullptr;
    ASSERT_EQ(score(), TOKEN_TRIE_OK) << token_trie_last_error();
    EXPECT_EQ(leaves_, of_set);
    EXPECT_EQ(state().span, TOKEN_TRIE_WALKING);
    EXPECT_EQ(state().n_tokens, kPrompt.size());
}

TEST_F(AbiScore, BuffersThatNobodyWantsMayBeNull) {
    EXPECT_EQ(token_trie_stream_score(stream_.get(), &params_, leaves_.data(), kLeaves, nullptr, 0, nullptr),
              TOKEN_TRIE_OK);
    EXPECT_EQ(token_trie_stream_search(stream_.get(), &params_, found_.data(), logprobs_.data(), 1, nullptr),
              TOKEN_TRIE_OK);
}

TEST_F(AbiScore, BadArgumentsAreRefusedByName) {
    token_trie_stream * stream = stream_.get();
    double * leaves = leaves_.data();
    const auto score_of = [&](token_trie_stream * s, const token_trie_score_params * params, double * out,
                              std::size_t n, double * nodes, std::size_t n_nodes) {
        return refusal([&] { return token_trie_stream_score(s, params, out, n, nodes, n_nodes, &stats_); });
    };
    EXPECT_EQ(score_of(nullptr, &params_, leaves, kLeaves, nullptr, 0), "stream: null");
    EXPECT_EQ(score_of(stream, nullptr, leaves, kLeaves, nullptr, 0), "params: null");
    EXPECT_EQ(score_of(stream, &params_, nullptr, kLeaves, nullptr, 0), "leaves: null");
    EXPECT_EQ(score_of(stream, &params_, leaves, 2, nullptr, 0), "n_leaves: 2 where the trie has 3");
    EXPECT_EQ(score_of(stream, &params_, leaves, kLeaves, nodes_.data(), 8), "n_nodes: 8 where the trie has 7");
    EXPECT_EQ(
        refusal([&] { return token_trie_stream_search(stream, &params_, nullptr, logprobs_.data(), 1, &stats_); }),
        "leaves: null");
    EXPECT_EQ(refusal([&] { return token_trie_stream_search(stream, &params_, found_.data(), nullptr, 1, &stats_); }),
              "logprobs: null");
    EXPECT_EQ(refusal([&] { return search(0); }), "n_best: 0");
}

TEST_F(AbiScore, BadParamsAreRefusedByName) {
    const auto refused = [&](const std::function<void(token_trie_score_params &)> & change) {
        const token_trie_score_params before = params_;
        change(params_);
        std::string message = refusal([&] { return score(); });
        params_ = before;
        return message;
    };
    EXPECT_EQ(refused([](auto & p) { p.size = 3; }), "params.size: 3 is not sizeof(*params)");
    EXPECT_EQ(refused([](auto & p) { p.leaf_end = 3; }), "params.leaf_end: 3 is none");
    EXPECT_EQ(refused([](auto & p) { p.leaf_end = -1; }), "params.leaf_end: -1 is none");
    const Token outside = kTinyVocab;
    EXPECT_EQ(refused([&](auto & p) {
                  p.prefix = &outside;
                  p.n_prefix = 1;
              }),
              "prefix[0]: 263 is outside the vocabulary (263 tokens)");
    EXPECT_EQ(refused([&](auto & p) {
                  p.prefix = &outside;
                  p.n_prefix = 0;
              }),
              "params.prefix: no tokens; NULL is for the stream's sequence");
    EXPECT_EQ(refused([&](auto & p) {
                  p.prefix = &outside;
                  p.n_prefix = SIZE_MAX;
              }),
              "18446744073709551615 tokens do not fit the context of 256");
    EXPECT_EQ(refused([](auto & p) { p.set = nullptr; }), "no trie to score: give a set, or set one first");
    const char * const name = "READ";
    auto list = sized<token_trie_params>();
    list.on_complete = TOKEN_TRIE_RESTART;
    params_.set_params = &list;
    const std::string refusal_of_lists = "a list with unique, exclude or min_items cannot be scored member by member";
    list.unique = 1;
    EXPECT_EQ(refused([](auto & /*p*/) {}), refusal_of_lists);
    list.unique = 0;
    list.min_items = 2;
    EXPECT_EQ(refused([](auto & /*p*/) {}), refusal_of_lists);
    list = sized<token_trie_params>();
    list.exclude = &name;
    list.n_exclude = 1;
    EXPECT_EQ(refused([](auto & /*p*/) {}), refusal_of_lists);
    params_.set_params = nullptr;
    params_.beam_width = -1;
    EXPECT_EQ(refusal([&] { return search(1); }), "params.beam_width: -1 is negative");
    params_.beam_width = 0;
    std::array<double, kLeaves> weights{};
    params_.leaf_weights = weights.data();
    params_.n_leaf_weights = 2;
    EXPECT_EQ(refusal([&] { return search(1); }), "params.n_leaf_weights: 2 where the trie has 3");
    params_.n_leaf_weights = 3;
    weights[1] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(refusal([&] { return search(1); }), "params.leaf_weights[1]: nan is not finite");
    weights[1] = 0;
    weights[2] = -std::numeric_limits<double>::infinity();
    EXPECT_EQ(refusal([&] { return search(1); }), "params.leaf_weights[2]: -inf is not finite");
    params_.leaf_weights = nullptr;
    stats_.size = 2;
    EXPECT_EQ(refused([](auto & /*p*/) {}), "stats.size: 2 is not sizeof(*stats)");
}

TEST_F(AbiScore, NothingToScoreBehindIsRefused) {
    const Context other = tiny_stream_context();
    const auto params = sized<token_trie_stream_params>();
    const Handle empty(token_trie_stream_open(other.get(), &params));
    EXPECT_EQ(refusal([&] {
                  return token_trie_stream_score(empty.get(), &params_, leaves_.data(), kLeaves, nullptr, 0, nullptr);
              }),
              "nothing to score behind: prefill first");
    const Tokens prefix = bytes("x");
    params_.prefix = prefix.data();
    params_.n_prefix = prefix.size();
    EXPECT_EQ(token_trie_stream_score(empty.get(), &params_, leaves_.data(), kLeaves, nullptr, 0, nullptr),
              TOKEN_TRIE_OK);
}

TEST_F(AbiScore, AClosedStreamIsRefused) {
    token_trie_stream * closed = stream_.release();
    token_trie_stream_close(closed);
    EXPECT_EQ(refusal([&] {
                  return token_trie_stream_score(closed, &params_, leaves_.data(), kLeaves, nullptr, 0, nullptr);
              }),
              "stream: closed, or never opened");
}

}  // namespace
}  // namespace token_trie::test
