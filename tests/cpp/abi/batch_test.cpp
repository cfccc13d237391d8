#include "tiny_model.h"

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

struct FreeAnswer {
    void operator()(token_trie_batch_answer * answer) const { token_trie_batch_answer_free(answer); }
};
using OpenAnswer = std::unique_ptr<token_trie_batch_answer, FreeAnswer>;

template <typename T>
std::vector<T> array_of(const T * (*get)(const token_trie_batch_answer *, std::size_t *), const OpenAnswer & answer) {
    std::size_t n = 7;
    const T * values = get(answer.get(), &n);
    EXPECT_EQ(values == nullptr, n == 0);
    return {values, values + n};
}

class AbiBatchTest : public WithTinyModel {
   protected:
    static OpenBatch open(std::uint32_t n_ctx = 256) {
        const llama_context_params like = tiny_context_params(n_ctx);
        const auto params = sized<token_trie_batch_params>();
        return OpenBatch(token_trie_batch_open(tiny_model(), &like, &params));
    }

    token_trie_batch_prompt prompt(int mode = TOKEN_TRIE_BATCH_GREEDY) const {
        auto out = sized<token_trie_batch_prompt>();
        out.tokens = tokens_.data();
        out.n_tokens = tokens_.size();
        out.set = actions_.get();
        out.mode = mode;
        return out;
    }

    // The next answer, if there is one.
    OpenAnswer next(std::int64_t ticket = 0, std::int32_t timeout_ms = -1, bool * is_out = nullptr) const {
        token_trie_batch_answer * out = nullptr;
        EXPECT_EQ(token_trie_batch_next(batch_.get(), ticket, timeout_ms, &out, is_out), TOKEN_TRIE_OK)
            << token_trie_last_error();
        return OpenAnswer(out);
    }

    static token_trie_batch_figures figures(const OpenAnswer & answer) {
        auto out = sized<token_trie_batch_figures>();
        EXPECT_EQ(token_trie_batch_answer_get_figures(answer.get(), &out), TOKEN_TRIE_OK);
        return out;
    }

    // Submits a grammar that is recursive to its left, of which llama.cpp logs in the middle of the submit.
    void submit_logging(ggml_log_callback on_log, void * user) {
        llama_log_set(on_log, user);
        token_trie_batch_prompt asked = prompt(TOKEN_TRIE_BATCH_TEXT);
        asked.set = nullptr;
        asked.max_tokens = 3;
        asked.gbnf = "root ::= root \"a\"";
        EXPECT_LT(token_trie_batch_submit(batch_.get(), &asked, &ticket_), 0);
        llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    }

    const Tokens tokens_ = bytes("Do: ");
    const SetHandle actions_ = set_of(kActions);
    const OpenBatch batch_ = open();
    std::int64_t ticket_ = 0;
    token_trie_batch_answer * answer_ = nullptr;
};

TEST_F(AbiBatchTest, NothingOfAnEarlierAnswerStaysInTheNext) {
    const token_trie_batch_prompt asked = prompt();
    ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK);
    const OpenAnswer answer = next();
    answer_ = answer.get();
    ASSERT_EQ(token_trie_batch_next(batch_.get(), 0, 0, &answer_, nullptr), TOKEN_TRIE_OK);
    EXPECT_EQ(answer_, nullptr);
    answer_ = answer.get();
    ASSERT_EQ(token_trie_batch_next(nullptr, 0, 0, &answer_, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(answer_, nullptr);
}

TEST_F(AbiBatchTest, EveryModeAnswersWithAMember) {
    for (const int mode :
         {TOKEN_TRIE_BATCH_GREEDY, TOKEN_TRIE_BATCH_SAMPLED, TOKEN_TRIE_BATCH_BEST, TOKEN_TRIE_BATCH_SCORES}) {
        const token_trie_batch_prompt asked = prompt(mode);
        ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK) << token_trie_last_error();
        const OpenAnswer answer = next();
        ASSERT_NE(answer, nullptr);
        const token_trie_batch_figures told = figures(answer);
        EXPECT_EQ(told.ticket, ticket_);
        EXPECT_EQ(told.status, TOKEN_TRIE_OK);
        EXPECT_STREQ(token_trie_batch_answer_get_message(answer.get()), "");
        EXPECT_GE(told.leaf, 0);
        const bool is_all = mode == TOKEN_TRIE_BATCH_SCORES;
        const std::vector<double> logprobs = array_of(token_trie_batch_answer_get_logprobs, answer);
        ASSERT_EQ(logprobs.size(), is_all ? 3U : 1U);
        EXPECT_EQ(told.logprob, logprobs[is_all ? static_cast<std::size_t>(told.leaf) : 0]);
        EXPECT_EQ(array_of(token_trie_batch_answer_get_leaves, answer),
                  is_all ? std::vector<std::int64_t>() : std::vector<std::int64_t>{told.leaf});
        EXPECT_EQ(!array_of(token_trie_batch_answer_get_tokens, answer).empty(), mode <= TOKEN_TRIE_BATCH_SAMPLED);
    }
    bool is_out = true;
    EXPECT_EQ(next(0, -1, &is_out), nullptr);
    EXPECT_FALSE(is_out);
}

TEST_F(AbiBatchTest, AStateComesAloneOrBesideAnAnswerInAnyMode) {
    token_trie_batch_prompt asked = prompt(TOKEN_TRIE_BATCH_STATE);
    asked.set = nullptr;
    ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK) << token_trie_last_error();
    const OpenAnswer alone = next();
    const std::vector<float> state = array_of(token_trie_batch_answer_get_state, alone);
    ASSERT_EQ(state.size(), static_cast<std::size_t>(llama_model_n_embd(tiny_model())));
    EXPECT_EQ(figures(alone).leaf, -1);
    for (const int mode :
         {TOKEN_TRIE_BATCH_GREEDY, TOKEN_TRIE_BATCH_SAMPLED, TOKEN_TRIE_BATCH_BEST, TOKEN_TRIE_BATCH_SCORES}) {
        asked = prompt(mode);
        ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK);
        EXPECT_TRUE(array_of(token_trie_batch_answer_get_state, next()).empty());
        asked.with_state = 1;
        ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK);
        const OpenAnswer both = next();
        EXPECT_GE(figures(both).leaf, 0);
        const std::vector<float> own = array_of(token_trie_batch_answer_get_state, both);
        ASSERT_EQ(own.size(), state.size());
        for (std::size_t i = 0; i < own.size(); ++i) {
            EXPECT_NEAR(own[i], state[i], 1e-3);
        }
    }
}

TEST_F(AbiBatchTest, WeightsRankAndAreCopied) {
    token_trie_batch_prompt asked = prompt(TOKEN_TRIE_BATCH_SCORES);
    ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK);
    const std::vector<double> scores = array_of(token_trie_batch_answer_get_logprobs, next());
    for (std::size_t wanted = 0; wanted < scores.size(); ++wanted) {
        std::vector<double> weights(scores.size(), -1e6);
        weights[wanted] = 1e6;
        asked = prompt(TOKEN_TRIE_BATCH_BEST);
        asked.leaf_weights = weights.data();
        asked.n_leaf_weights = weights.size();
        ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK) << token_trie_last_error();
        std::fill(weights.begin(), weights.end(), 0);
        const token_trie_batch_figures told = figures(next());
        EXPECT_EQ(told.leaf, static_cast<std::int64_t>(wanted));
        EXPECT_NEAR(told.logprob, scores[wanted], 1e-4);
        EXPECT_EQ(told.gap, 0);
        EXPECT_LE(told.rival_max, 0);
    }
}

TEST_F(AbiBatchTest, AnAnswerIsTakenOnceAndOutlivesItsBatch) {
    OpenAnswer answer;
    {
        const OpenBatch batch = open();
        const token_trie_batch_prompt asked = prompt(TOKEN_TRIE_BATCH_SCORES);
        ASSERT_EQ(token_trie_batch_submit(batch.get(), &asked, &ticket_), TOKEN_TRIE_OK);
        ASSERT_EQ(token_trie_batch_next(batch.get(), ticket_, -1, &answer_, nullptr), TOKEN_TRIE_OK);
        answer.reset(answer_);
        EXPECT_EQ(token_trie_batch_next(batch.get(), ticket_, -1, &answer_, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    }
    const std::vector<double> logprobs = array_of(token_trie_batch_answer_get_logprobs, answer);
    ASSERT_EQ(logprobs.size(), 3U);
    EXPECT_LT(logprobs[2], 0);
}

TEST_F(AbiBatchTest, AnAnswerThatIsNullIsRefused) {
    std::size_t n = 0;
    auto told = sized<token_trie_batch_figures>();
    EXPECT_EQ(token_trie_batch_answer_get_figures(nullptr, &told), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_batch_answer_get_message(nullptr), nullptr);
    EXPECT_EQ(token_trie_batch_answer_get_leaves(nullptr, &n), nullptr);
    EXPECT_EQ(token_trie_batch_answer_get_logprobs(nullptr, &n), nullptr);
    EXPECT_EQ(token_trie_batch_answer_get_tokens(nullptr, &n), nullptr);
    EXPECT_STREQ(token_trie_last_error(), "answer: null");
    token_trie_batch_answer_free(nullptr);
    const token_trie_batch_prompt asked = prompt();
    ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK);
    const OpenAnswer answer = next();
    EXPECT_EQ(token_trie_batch_answer_get_figures(answer.get(), nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_batch_answer_get_tokens(answer.get(), nullptr), nullptr);
    EXPECT_STREQ(token_trie_last_error(), "n: null");
}

TEST_F(AbiBatchTest, WhoLooksIsToldThatAnAnswerIsOut) {
    const token_trie_batch_prompt asked = prompt();
    ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK);
    bool is_out = false;
    EXPECT_EQ(next(ticket_, 0, &is_out), nullptr);
    EXPECT_TRUE(is_out);
    token_trie_batch_cancel(batch_.get(), ticket_);
    const OpenAnswer answer = next(ticket_, -1, &is_out);
    EXPECT_FALSE(is_out);
    const token_trie_batch_figures told = figures(answer);
    EXPECT_EQ(told.status, TOKEN_TRIE_ERROR_CANCELLED);
    EXPECT_EQ(told.leaf, -1);
    EXPECT_EQ(told.logprob, 0);
    EXPECT_STREQ(token_trie_batch_answer_get_message(answer.get()), "cancelled");
}

TEST_F(AbiBatchTest, WhatIsWrongIsRefusedWithItsPlace) {
    const auto refusal = [&](const std::function<void(token_trie_batch_prompt &)> & spoil) {
        token_trie_batch_prompt asked = prompt();
        spoil(asked);
        EXPECT_LT(token_trie_batch_submit(batch_.get(), &asked, &ticket_), 0);
        return std::string(token_trie_last_error());
    };
    EXPECT_EQ(refusal([](auto & asked) { asked.size = 3; }), "prompt.size: 3 is not sizeof(*prompt)");
    EXPECT_EQ(refusal([](auto & asked) { asked.tokens = nullptr; }), "prompt.tokens: null");
    EXPECT_EQ(refusal([](auto & asked) { asked.n_tokens = 0; }), "tokens: none; a prompt needs at least one");
    EXPECT_EQ(refusal([](auto & asked) { asked.n_tokens = 1000; }), "1000 tokens do not fit the context of 256");
    EXPECT_EQ(refusal([](auto & asked) { asked.set = nullptr; }), "prompt.set: null");
    EXPECT_EQ(refusal([](auto & asked) { asked.mode = 6; }), "prompt.mode: 6 is none");
    EXPECT_EQ(refusal([](auto & asked) {
                  asked.mode = TOKEN_TRIE_BATCH_TEXT;
                  asked.max_tokens = -1;
              }),
              "prompt.max_tokens: -1 is negative");
    EXPECT_EQ(refusal([](auto & asked) {
                  asked.mode = TOKEN_TRIE_BATCH_TEXT;
                  asked.n_stop_strings = 1;
              }),
              "stop_strings: null, with n_stop_strings = 1");
    EXPECT_EQ(refusal([](auto & asked) { asked.leaf_end = 3; }), "prompt.leaf_end: 3 is none");
    EXPECT_EQ(refusal([](auto & asked) { asked.beam_width = -1; }), "prompt.beam_width: -1 is negative");
    EXPECT_EQ(refusal([](auto & asked) { asked.top_p = 2; }), "top_p: not in (0, 1]");
    const std::array<double, 3> weights = {0, std::numeric_limits<double>::infinity(), 0};
    const auto weigh = [&](std::size_t n) {
        return refusal([&](auto & asked) {
            asked.mode = TOKEN_TRIE_BATCH_BEST;
            asked.leaf_weights = weights.data();
            asked.n_leaf_weights = n;
        });
    };
    EXPECT_EQ(weigh(2), "prompt.n_leaf_weights: 2 where the trie has 3");
    EXPECT_EQ(weigh(3), "prompt.leaf_weights[1]: inf is not finite");
    auto how = sized<token_trie_params>();
    how.on_complete = TOKEN_TRIE_RELEASE;
    EXPECT_EQ(refusal([&](auto & asked) { asked.set_params = &how; }),
              "a request has one answer: no other on_complete than end");
    EXPECT_EQ(token_trie_batch_submit(batch_.get(), nullptr, &ticket_), TOKEN_TRIE_ERROR_ARGUMENT);
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
    const token_trie_batch_prompt asked = prompt();
    EXPECT_EQ(token_trie_batch_submit(closed, &asked, &ticket_), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "batch: closed, or never opened");
    EXPECT_EQ(token_trie_batch_submit(nullptr, &asked, &ticket_), TOKEN_TRIE_ERROR_ARGUMENT);
    token_trie_batch_cancel(closed, 1);
    token_trie_batch_close(closed);
    token_trie_batch_close(nullptr);
    EXPECT_EQ(token_trie_batch_submit(other.get(), &asked, &ticket_), TOKEN_TRIE_OK);
}

}  // namespace
}  // namespace token_trie::test
