#include "answer.h"

#include <array>
#include <atomic>
#include <limits>
#include <thread>

namespace token_trie::test {
namespace {

const std::string kActions = payload_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}, {"SEND", {kSend, kMail}}});

struct CloseBatch {
    void operator()(token_trie_batch * batch) const { token_trie_batch_close(batch); }
};
using OpenBatch = std::unique_ptr<token_trie_batch, CloseBatch>;

class AbiBatchTest : public WithTinyModel {
   protected:
    static OpenBatch open(std::uint32_t n_ctx = 256) {
        const llama_context_params like = tiny_context_params(n_ctx);
        const auto params = sized<token_trie_batch_params>();
        return OpenBatch(token_trie_batch_open(tiny_model(), &like, &params));
    }

    token_trie_query prompt(int mode = TOKEN_TRIE_QUERY_GREEDY) const { return query_of(actions_, mode); }

    // The next answer, if there is one.
    AnswerHandle next(std::int64_t ticket = 0, std::int32_t timeout_ms = -1, bool * is_out = nullptr) const {
        token_trie_answer * out = nullptr;
        EXPECT_EQ(token_trie_batch_next(batch_.get(), ticket, timeout_ms, &out, is_out), TOKEN_TRIE_OK)
            << token_trie_last_error();
        return AnswerHandle(out);
    }

    std::int32_t submit(const token_trie_query & query) { return submit(batch_.get(), query); }
    std::int32_t submit(token_trie_batch * batch, const token_trie_query & query) {
        return token_trie_batch_submit(batch, tokens_.data(), tokens_.size(), &query, &ticket_);
    }

    // Submits a grammar that is recursive to its left, of which llama.cpp logs in the middle of the submit.
    void submit_logging(ggml_log_callback on_log, void * user) {
        llama_log_set(on_log, user);
        token_trie_query asked = prompt(TOKEN_TRIE_QUERY_TEXT);
        asked.set = nullptr;
        asked.max_tokens = 3;
        asked.gbnf = "root ::= root \"a\"";
        EXPECT_LT(submit(asked), 0);
        llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    }

    const Tokens tokens_ = bytes("Do: ");
    const SetHandle actions_ = set_of(kActions);
    const OpenBatch batch_ = open();
    std::int64_t ticket_ = 0;
    token_trie_answer * answer_ = nullptr;
};

TEST_F(AbiBatchTest, NothingOfAnEarlierAnswerStaysInTheNext) {
    const token_trie_query asked = prompt();
    ASSERT_EQ(submit(asked), TOKEN_TRIE_OK);
    const AnswerHandle answer = next();
    answer_ = answer.get();
    ASSERT_EQ(token_trie_batch_next(batch_.get(), 0, 0, &answer_, nullptr), TOKEN_TRIE_OK);
    EXPECT_EQ(answer_, nullptr);
    answer_ = answer.get();
    ASSERT_EQ(token_trie_batch_next(nullptr, 0, 0, &answer_, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(answer_, nullptr);
}

TEST_F(AbiBatchTest, EveryModeAnswersWithAMember) {
    for (const int mode :
         {TOKEN_TRIE_QUERY_GREEDY, TOKEN_TRIE_QUERY_SAMPLED, TOKEN_TRIE_QUERY_BEST, TOKEN_TRIE_QUERY_SCORES}) {
        const token_trie_query asked = prompt(mode);
        ASSERT_EQ(submit(asked), TOKEN_TRIE_OK) << token_trie_last_error();
        const AnswerHandle answer = next();
        ASSERT_NE(answer, nullptr);
        const token_trie_answer_info told = info_of(answer);
        EXPECT_EQ(told.ticket, ticket_);
        EXPECT_EQ(told.status, TOKEN_TRIE_OK);
        EXPECT_STREQ(info_of(answer).message, "");
        EXPECT_GE(told.leaf, 0);
        const bool is_all = mode == TOKEN_TRIE_QUERY_SCORES;
        const std::vector<double> logprobs = logprobs_of(answer);
        ASSERT_EQ(logprobs.size(), is_all ? 3U : 1U);
        EXPECT_EQ(told.logprob, logprobs[is_all ? static_cast<std::size_t>(told.leaf) : 0]);
        EXPECT_EQ(leaves_of(answer), is_all ? std::vector<std::int64_t>() : std::vector<std::int64_t>{told.leaf});
        EXPECT_EQ(!tokens_of(answer).empty(), mode <= TOKEN_TRIE_QUERY_SAMPLED);
    }
    bool is_out = true;
    EXPECT_EQ(next(0, -1, &is_out), nullptr);
    EXPECT_FALSE(is_out);
}

TEST_F(AbiBatchTest, AStateComesAloneOrBesideAnAnswerInAnyMode) {
    token_trie_query asked = prompt(TOKEN_TRIE_QUERY_TEXT);
    asked.set = nullptr;
    asked.with_hidden_state = 1;
    ASSERT_EQ(submit(asked), TOKEN_TRIE_OK) << token_trie_last_error();
    const AnswerHandle alone = next();
    const std::vector<float> state = hidden_state_of(alone);
    ASSERT_EQ(state.size(), static_cast<std::size_t>(llama_model_n_embd(tiny_model())));
    EXPECT_EQ(info_of(alone).leaf, -1);
    for (const int mode :
         {TOKEN_TRIE_QUERY_GREEDY, TOKEN_TRIE_QUERY_SAMPLED, TOKEN_TRIE_QUERY_BEST, TOKEN_TRIE_QUERY_SCORES}) {
        asked = prompt(mode);
        ASSERT_EQ(submit(asked), TOKEN_TRIE_OK);
        EXPECT_TRUE(hidden_state_of(next()).empty());
        asked.with_hidden_state = 1;
        ASSERT_EQ(submit(asked), TOKEN_TRIE_OK);
        const AnswerHandle both = next();
        EXPECT_GE(info_of(both).leaf, 0);
        const std::vector<float> own = hidden_state_of(both);
        ASSERT_EQ(own.size(), state.size());
        for (std::size_t i = 0; i < own.size(); ++i) {
            EXPECT_NEAR(own[i], state[i], 1e-3);
        }
    }
}

TEST_F(AbiBatchTest, WeightsRankAndAreCopied) {
    token_trie_query asked = prompt(TOKEN_TRIE_QUERY_SCORES);
    ASSERT_EQ(submit(asked), TOKEN_TRIE_OK);
    const std::vector<double> scores = logprobs_of(next());
    for (std::size_t wanted = 0; wanted < scores.size(); ++wanted) {
        std::vector<double> weights(scores.size(), -1e6);
        weights[wanted] = 1e6;
        asked = prompt(TOKEN_TRIE_QUERY_BEST);
        asked.leaf_weights = weights.data();
        asked.n_leaf_weights = weights.size();
        ASSERT_EQ(submit(asked), TOKEN_TRIE_OK) << token_trie_last_error();
        std::fill(weights.begin(), weights.end(), 0);
        const token_trie_answer_info told = info_of(next());
        EXPECT_EQ(told.leaf, static_cast<std::int64_t>(wanted));
        EXPECT_NEAR(told.logprob, scores[wanted], 1e-4);
        EXPECT_EQ(told.gap, 0);
        EXPECT_LE(told.rival_max, 0);
    }
}

TEST_F(AbiBatchTest, AnAnswerIsTakenOnceAndOutlivesItsBatch) {
    AnswerHandle answer;
    {
        const OpenBatch batch = open();
        const token_trie_query asked = prompt(TOKEN_TRIE_QUERY_SCORES);
        ASSERT_EQ(submit(batch.get(), asked), TOKEN_TRIE_OK);
        ASSERT_EQ(token_trie_batch_next(batch.get(), ticket_, -1, &answer_, nullptr), TOKEN_TRIE_OK);
        answer.reset(answer_);
        EXPECT_EQ(token_trie_batch_next(batch.get(), ticket_, -1, &answer_, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    }
    const std::vector<double> logprobs = logprobs_of(answer);
    ASSERT_EQ(logprobs.size(), 3U);
    EXPECT_LT(logprobs[2], 0);
}

TEST_F(AbiBatchTest, AnAnswerThatIsNullIsRefused) {
    auto told = sized<token_trie_answer_info>();
    EXPECT_EQ(token_trie_answer_get_info(nullptr, &told), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "answer: null");
    token_trie_answer_free(nullptr);
    const token_trie_query asked = prompt();
    ASSERT_EQ(submit(asked), TOKEN_TRIE_OK);
    const AnswerHandle answer = next();
    EXPECT_EQ(token_trie_answer_get_info(answer.get(), nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "info: null");
}

TEST_F(AbiBatchTest, WhoLooksIsToldThatAnAnswerIsOut) {
    const token_trie_query asked = prompt();
    ASSERT_EQ(submit(asked), TOKEN_TRIE_OK);
    bool is_out = false;
    EXPECT_EQ(next(ticket_, 0, &is_out), nullptr);
    EXPECT_TRUE(is_out);
    token_trie_batch_cancel(batch_.get(), ticket_);
    const AnswerHandle answer = next(ticket_, -1, &is_out);
    EXPECT_FALSE(is_out);
    const token_trie_answer_info told = info_of(answer);
    EXPECT_EQ(told.status, TOKEN_TRIE_ERROR_CANCELLED);
    EXPECT_EQ(told.leaf, -1);
    EXPECT_EQ(told.logprob, 0);
    EXPECT_STREQ(info_of(answer).message, "cancelled");
}

TEST_F(AbiBatchTest, ATextIsReadWhileItIsWritten) {
    token_trie_query asked = prompt(TOKEN_TRIE_QUERY_TEXT);
    asked.set = nullptr;
    asked.max_tokens = 40;
    ASSERT_EQ(submit(asked), TOKEN_TRIE_OK) << token_trie_last_error();
    Tokens read;
    AnswerHandle answer;
    std::array<Token, 3> buffer{};
    std::size_t n = 0;
    while (answer == nullptr) {
        ASSERT_EQ(token_trie_batch_get_tokens(batch_.get(), ticket_, read.size(), buffer.data(), buffer.size(), &n),
                  TOKEN_TRIE_OK);
        ASSERT_LE(n, buffer.size());
        read.insert(read.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(n));
        answer = next(ticket_, 1);
    }
    const Tokens text = tokens_of(answer);
    ASSERT_LE(read.size(), text.size());
    EXPECT_TRUE(std::equal(read.begin(), read.end(), text.begin()));
    EXPECT_EQ(token_trie_batch_get_tokens(batch_.get(), ticket_, 0, buffer.data(), 3, &n), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_batch_get_tokens(batch_.get(), ticket_, 0, nullptr, 3, &n), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_batch_get_tokens(batch_.get(), ticket_, 0, buffer.data(), 3, nullptr),
              TOKEN_TRIE_ERROR_ARGUMENT);
}

TEST_F(AbiBatchTest, WhatIsWrongIsRefusedWithItsPlace) {
    const auto refusal = [&](const std::function<void(token_trie_query &)> & spoil) {
        token_trie_query asked = prompt();
        spoil(asked);
        EXPECT_LT(submit(asked), 0);
        return std::string(token_trie_last_error());
    };
    EXPECT_EQ(refusal([](auto & asked) { asked.size = 3; }), "query.size: 3 is not sizeof(*query)");
    const token_trie_query right = prompt();
    const auto refusal_of = [&](const llama_token * tokens, std::size_t n) {
        EXPECT_LT(token_trie_batch_submit(batch_.get(), tokens, n, &right, &ticket_), 0);
        return std::string(token_trie_last_error());
    };
    EXPECT_EQ(refusal_of(nullptr, 4), "tokens: null");
    EXPECT_EQ(refusal_of(tokens_.data(), 0), "tokens: none; a prompt needs at least one");
    EXPECT_EQ(refusal_of(tokens_.data(), 1000), "1000 tokens do not fit the context of 256");
    EXPECT_EQ(refusal([](auto & asked) { asked.set = nullptr; }), "query.set: null");
    EXPECT_EQ(refusal([](auto & asked) { asked.mode = 6; }), "query.mode: 6 is not in [0, 4]");
    EXPECT_EQ(refusal([](auto & asked) {
                  asked.mode = TOKEN_TRIE_QUERY_TEXT;
                  asked.max_tokens = -1;
              }),
              "query.max_tokens: -1 is negative");
    EXPECT_EQ(refusal([](auto & asked) {
                  asked.mode = TOKEN_TRIE_QUERY_TEXT;
                  asked.n_stop_strings = 1;
              }),
              "stop_strings: null, with n_stop_strings = 1");
    EXPECT_EQ(refusal([](auto & asked) { asked.leaf_end = 3; }), "query.leaf_end: 3 is not in [0, 2]");
    EXPECT_EQ(refusal([](auto & asked) { asked.beam_width = -1; }), "query.beam_width: -1 is negative");
    auto sampling = sized<token_trie_sampling>();
    sampling.top_p = 2;
    EXPECT_EQ(refusal([&](auto & asked) { asked.sampling = &sampling; }), "top_p: not in (0, 1]");
    sampling.top_p = 1;
    sampling.seed = TOKEN_TRIE_SEED_KEEP;
    EXPECT_EQ(refusal([&](auto & asked) { asked.sampling = &sampling; }),
              "query.sampling.seed: a batch has no draws to go on with");
    const std::array<double, 3> weights = {0, std::numeric_limits<double>::infinity(), 0};
    const auto weigh = [&](std::size_t n) {
        return refusal([&](auto & asked) {
            asked.mode = TOKEN_TRIE_QUERY_BEST;
            asked.leaf_weights = weights.data();
            asked.n_leaf_weights = n;
        });
    };
    EXPECT_EQ(weigh(2), "query.n_leaf_weights: 2 where the trie has 3");
    EXPECT_EQ(weigh(3), "query.leaf_weights[1]: inf is not finite");
    auto how = sized<token_trie_params>();
    how.on_complete = TOKEN_TRIE_RELEASE;
    EXPECT_EQ(refusal([&](auto & asked) { asked.set_params = &how; }),
              "query.set_params.on_complete: an answer ends: end, or a list, restart, within max_tokens");
    EXPECT_EQ(token_trie_batch_submit(batch_.get(), tokens_.data(), tokens_.size(), nullptr, &ticket_),
              TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_batch_next(batch_.get(), 0, -1, nullptr, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_batch_next(batch_.get(), 77, -1, &answer_, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    token_trie_batch_cancel(batch_.get(), 77);
    EXPECT_EQ(ticket_, 0);
}

TEST_F(AbiBatchTest, OpeningIsRefusedWithoutAModelOrByOptionsOutOfBounds) {
    const llama_context_params like = tiny_context_params(256);
    auto params = sized<token_trie_batch_params>();
    EXPECT_EQ(token_trie_batch_open(nullptr, &like, &params), nullptr);
    EXPECT_EQ(token_trie_batch_open(tiny_model(), nullptr, &params), nullptr);
    EXPECT_EQ(token_trie_batch_open(tiny_model(), &like, nullptr), nullptr);
    params.n_parallel = 1;
    EXPECT_EQ(token_trie_batch_open(tiny_model(), &like, &params), nullptr);
    params.n_parallel = -1;
    EXPECT_EQ(token_trie_batch_open(tiny_model(), &like, &params), nullptr);
    EXPECT_STREQ(token_trie_last_error(), "params.n_parallel: -1 is negative");
}

TEST_F(AbiBatchTest, ASubmitMayCloseItsBatchFromTheLogCallback) {
    struct Listener {
        token_trie_batch * batch = nullptr;
        bool was_called = false;
    } listener;
    listener.batch = batch_.get();
    submit_logging(
        [](ggml_log_level, const char *, void * user) {
            auto & self = *static_cast<Listener *>(user);
            self.was_called = true;
            token_trie_batch_close(self.batch);
        },
        &listener);
    EXPECT_TRUE(listener.was_called);
    EXPECT_EQ(token_trie_batch_next(batch_.get(), 0, -1, &answer_, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
}

TEST_F(AbiBatchTest, ACloseBesideOneFromWithinASubmitWaitsForTheSubmit) {
    struct Listener {
        token_trie_batch * batch = nullptr;
        std::atomic<bool> is_closed{false};
        std::thread other;
    } listener;
    listener.batch = batch_.get();
    submit_logging(
        [](ggml_log_level, const char *, void * user) {
            auto & self = *static_cast<Listener *>(user);
            token_trie_batch_close(self.batch);
            if (!self.other.joinable()) {
                self.other = std::thread([&self] {
                    token_trie_batch_close(self.batch);
                    self.is_closed = true;
                });
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
            }
            EXPECT_FALSE(self.is_closed);
        },
        &listener);
    ASSERT_TRUE(listener.other.joinable());
    listener.other.join();
    EXPECT_TRUE(listener.is_closed);
}

TEST_F(AbiBatchTest, AClosedBatchIsRefusedAlsoWhenAnotherIsOpen) {
    token_trie_batch * closed = nullptr;
    {
        const OpenBatch batch = open();
        closed = batch.get();
    }
    const OpenBatch other = open();
    const token_trie_query asked = prompt();
    EXPECT_EQ(submit(closed, asked), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "batch: closed, or never opened");
    EXPECT_EQ(submit(nullptr, asked), TOKEN_TRIE_ERROR_ARGUMENT);
    token_trie_batch_cancel(closed, 1);
    token_trie_batch_close(closed);
    token_trie_batch_close(nullptr);
    EXPECT_EQ(submit(other.get(), asked), TOKEN_TRIE_OK);
}

}  // namespace
}  // namespace token_trie::test
