#include "tiny_model.h"

#include <cstring>
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

    token_trie_batch_prompt prompt(int mode = TOKEN_TRIE_BATCH_GREEDY) const {
        auto out = sized<token_trie_batch_prompt>();
        out.tokens = tokens_.data();
        out.n_tokens = tokens_.size();
        out.set = actions_.get();
        out.mode = mode;
        return out;
    }

    const Tokens tokens_ = bytes("Do: ");
    const SetHandle actions_ = set_of(kActions);
    const OpenBatch batch_ = open();
    std::int64_t ticket_ = 0;
    token_trie_batch_answer answer_ = sized<token_trie_batch_answer>();
};

TEST_F(AbiBatchTest, NothingOfAnEarlierAnswerStaysInTheNext) {
    std::memset(answer_.message, 'x', sizeof answer_.message);
    answer_.logprob = 7;
    answer_.n_found = 7;
    ASSERT_EQ(token_trie_batch_next(batch_.get(), 0, 0, &answer_), TOKEN_TRIE_OK);
    EXPECT_EQ(answer_.ticket, 0);
    EXPECT_EQ(answer_.leaf, -1);
    EXPECT_EQ(answer_.logprob, 0);
    EXPECT_EQ(answer_.n_found, 0U);
    EXPECT_STREQ(answer_.message, "");
    std::memset(answer_.message, 'x', sizeof answer_.message);
    const token_trie_batch_prompt asked = prompt();
    ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK);
    token_trie_batch_cancel(batch_.get(), ticket_);
    ASSERT_EQ(token_trie_batch_next(batch_.get(), 0, -1, &answer_), TOKEN_TRIE_OK);
    EXPECT_STREQ(answer_.message, "cancelled");
}

TEST_F(AbiBatchTest, EveryModeAnswersWithAMember) {
    for (const int mode :
         {TOKEN_TRIE_BATCH_GREEDY, TOKEN_TRIE_BATCH_SAMPLED, TOKEN_TRIE_BATCH_BEST, TOKEN_TRIE_BATCH_SCORES}) {
        const token_trie_batch_prompt asked = prompt(mode);
        ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK) << token_trie_last_error();
        std::array<std::int64_t, 3> leaves{};
        std::array<double, 3> logprobs{};
        Tokens taken(3);
        answer_.leaves = leaves.data();
        answer_.logprobs = logprobs.data();
        answer_.capacity = 3;
        answer_.tokens = taken.data();
        answer_.tokens_capacity = 3;
        ASSERT_EQ(token_trie_batch_next(batch_.get(), 0, -1, &answer_), TOKEN_TRIE_OK) << token_trie_last_error();
        EXPECT_EQ(answer_.ticket, ticket_);
        EXPECT_EQ(answer_.status, TOKEN_TRIE_OK);
        EXPECT_GE(answer_.leaf, 0);
        EXPECT_EQ(answer_.n_found, mode == TOKEN_TRIE_BATCH_SCORES ? 3U : 1U);
        EXPECT_EQ(answer_.logprob,
                  logprobs[mode == TOKEN_TRIE_BATCH_SCORES ? static_cast<std::size_t>(answer_.leaf) : 0]);
        EXPECT_EQ(answer_.n_tokens > 0, mode <= TOKEN_TRIE_BATCH_SAMPLED);
    }
    ASSERT_EQ(token_trie_batch_next(batch_.get(), 0, -1, &answer_), TOKEN_TRIE_OK);
    EXPECT_EQ(answer_.ticket, 0);
    EXPECT_EQ(answer_.is_out, 0);
}

TEST_F(AbiBatchTest, AnAnswerStaysWhereThereIsNoMemoryForIt) {
    const token_trie_batch_prompt asked = prompt(TOKEN_TRIE_BATCH_SCORES);
    ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK);
    std::array<double, 3> logprobs{};
    answer_.logprobs = logprobs.data();
    answer_.capacity = 2;
    EXPECT_EQ(token_trie_batch_next(batch_.get(), ticket_, -1, &answer_), TOKEN_TRIE_ERROR_LIMIT);
    EXPECT_EQ(answer_.n_found, 3U);
    answer_.capacity = 3;
    EXPECT_EQ(token_trie_batch_next(batch_.get(), ticket_, -1, &answer_), TOKEN_TRIE_OK);
    EXPECT_LT(logprobs[2], 0);
    EXPECT_EQ(token_trie_batch_next(batch_.get(), ticket_, -1, &answer_), TOKEN_TRIE_ERROR_ARGUMENT);
}

TEST_F(AbiBatchTest, WhoLooksIsToldThatAnAnswerIsOut) {
    const token_trie_batch_prompt asked = prompt();
    ASSERT_EQ(token_trie_batch_submit(batch_.get(), &asked, &ticket_), TOKEN_TRIE_OK);
    ASSERT_EQ(token_trie_batch_next(batch_.get(), ticket_, 0, &answer_), TOKEN_TRIE_OK);
    EXPECT_EQ(answer_.ticket, 0);
    EXPECT_EQ(answer_.is_out, 1);
    token_trie_batch_cancel(batch_.get(), ticket_);
    ASSERT_EQ(token_trie_batch_next(batch_.get(), ticket_, -1, &answer_), TOKEN_TRIE_OK);
    EXPECT_EQ(answer_.status, TOKEN_TRIE_ERROR_CANCELLED);
    EXPECT_STREQ(answer_.message, "cancelled");
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
    EXPECT_EQ(refusal([](auto & asked) { asked.mode = 5; }), "prompt.mode: 5 is none");
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
    auto how = sized<token_trie_params>();
    how.on_complete = TOKEN_TRIE_RELEASE;
    EXPECT_EQ(refusal([&](auto & asked) { asked.set_params = &how; }),
              "a request has one answer: no other on_complete than end");
    EXPECT_EQ(token_trie_batch_submit(batch_.get(), nullptr, &ticket_), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_batch_next(batch_.get(), 0, -1, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_batch_next(batch_.get(), 77, -1, &answer_), TOKEN_TRIE_ERROR_ARGUMENT);
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

// What llama.cpp logs of a grammar comes to who listens in the middle of the submit that reads it.
TEST_F(AbiBatchTest, ASubmitMayCloseItsBatchFromTheLogCallback) {
    struct Listener {
        token_trie_batch * batch = nullptr;
        bool was_called = false;
    } listener;
    listener.batch = batch_.get();
    llama_log_set(
        [](ggml_log_level, const char *, void * user) {
            auto & self = *static_cast<Listener *>(user);
            self.was_called = true;
            token_trie_batch_close(self.batch);
        },
        &listener);
    token_trie_batch_prompt asked = prompt(TOKEN_TRIE_BATCH_TEXT);
    asked.set = nullptr;
    asked.max_tokens = 3;
    asked.gbnf = "root ::= root \"a\"";  // recursive to its left
    EXPECT_LT(token_trie_batch_submit(batch_.get(), &asked, &ticket_), 0);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    EXPECT_TRUE(listener.was_called);
    EXPECT_EQ(token_trie_batch_next(batch_.get(), 0, -1, &answer_), TOKEN_TRIE_ERROR_ARGUMENT);
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
