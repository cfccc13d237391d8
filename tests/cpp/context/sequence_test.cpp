#include "context/sequence.h"

#include "tiny_model.h"

#include <cmath>

namespace token_trie::test {
namespace {

const std::atomic<bool> kNotCancelled{false};
const std::atomic<bool> kCancelled{true};
const Tokens kPrompt = bytes("the answer is");
const AllowedSet kAll = {true, {}, {}};

std::vector<float> row(const float * logits) { return {logits, logits + kTinyVocab}; }

void expect_near(const std::vector<float> & a, const std::vector<float> & b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_NEAR(a[i], b[i], 0.02) << "token " << i;
    }
}

class SequenceTest : public WithTinyModel {};

TEST_F(SequenceTest, EvaluatesWhatIsNewAndNothingTwice) {
    Sequence sequence(maker_of());
    EXPECT_EQ(sequence.n_ctx_max(), 256U);
    sequence.replace(bytes("abcd"), kNotCancelled);
    EXPECT_EQ(sequence.n_cached(), 4U);
    EXPECT_EQ(sequence.n_passes(), 1U);
    sequence.append(bytes("e")[0]);
    sequence.append(bytes("f")[0]);
    EXPECT_EQ(sequence.tokens(), bytes("abcdef"));
    EXPECT_EQ(sequence.n_cached(), 4U) << "the cache lags behind";
    EXPECT_EQ(sequence.n_passes(), 1U);
    static_cast<void>(sequence.logits(kAll, false, kNotCancelled));
    EXPECT_EQ(sequence.n_cached(), 6U);
    EXPECT_EQ(sequence.n_passes(), 2U) << "both at once";
    static_cast<void>(sequence.logits(kAll, false, kNotCancelled));
    EXPECT_EQ(sequence.n_passes(), 2U) << "still there";
}

// Whatever a model can drop from its memory, the logits after a replacement are those of a new context.
class SequenceOf : public ::testing::TestWithParam<TinyKind> {
    CapturedLog quiet_;
};

TEST_P(SequenceOf, LogitsAfterAReplacementAreThoseOfANewContext) {
    Sequence sequence(maker_of(256, GetParam()));
    for (const char * text :
         {"abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrstuvwx", "abcdefghijklmnopqrstuvwxyz", "abcx", "x",
          "abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghijklmnopqrstuvwxyz0123456780"}) {
        SCOPED_TRACE(text);
        sequence.replace(bytes(text), kNotCancelled);
        EXPECT_EQ(sequence.tokens(), bytes(text));
        EXPECT_EQ(sequence.n_cached(), sequence.tokens().size());
        Sequence other(maker_of(256, GetParam()));
        other.replace(bytes(text), kNotCancelled);
        expect_near(row(sequence.logits(kAll, false, kNotCancelled)), row(other.logits(kAll, false, kNotCancelled)));
    }
}

std::string name_of(const ::testing::TestParamInfo<TinyKind> & info) {
    return info.param == TinyKind::attention   ? "Attention"
           : info.param == TinyKind::recurrent ? "Recurrence"
           : info.param == TinyKind::hybrid    ? "BothInTurn"
                                               : "ASlidingWindow";
}

INSTANTIATE_TEST_SUITE_P(
    AModelWith,
    SequenceOf,
    ::testing::Values(TinyKind::attention, TinyKind::sliding_window, TinyKind::recurrent, TinyKind::hybrid),
    name_of);

TEST_F(SequenceTest, WhatTwoSequencesBeginWithInCommonIsNotEvaluatedAgain) {
    Sequence sequence(maker_of());
    const Tokens first = bytes(std::string(150, 'a'));  // three batches of 64
    Tokens second = first;
    second.back() = kRead;
    sequence.replace(first, kNotCancelled);
    EXPECT_EQ(sequence.n_passes(), 3U);
    sequence.replace(second, kNotCancelled);
    EXPECT_EQ(sequence.n_passes(), 4U) << "one token";
    sequence.replace(second, kNotCancelled);
    EXPECT_EQ(sequence.n_passes(), 4U) << "none";
    second.resize(100);
    sequence.replace(second, kNotCancelled);
    EXPECT_EQ(sequence.n_passes(), 5U) << "only the last one, for its logits";
    EXPECT_EQ(sequence.n_cached(), 100U);
}

TEST_F(SequenceTest, AReplacementThatFailsLeavesTheTokens) {
    Sequence sequence(maker_of());
    sequence.replace(kPrompt, kNotCancelled);
    const std::vector<float> before = row(sequence.logits(kAll, false, kNotCancelled));
    const Tokens long_ones = bytes(std::string(sequence.n_ctx_max() + 1, 'x'));
    EXPECT_EQ(status_of([&] { sequence.replace(long_ones, kNotCancelled); }), Status::context);
    EXPECT_EQ(sequence.tokens(), kPrompt);
    EXPECT_EQ(status_of([&] { sequence.replace(bytes("the other"), kCancelled); }), Status::cancelled);
    EXPECT_EQ(sequence.tokens(), kPrompt);
    EXPECT_LE(sequence.n_cached(), kPrompt.size());
    expect_near(row(sequence.logits(kAll, false, kNotCancelled)), before);
}

// However large the batches that a context takes: llama.cpp evaluates n_ubatch tokens of one at a time.
TEST_F(SequenceTest, AReplacementIsCancelledWithinOnePass) {
    llama_context_params params = tiny_context_params();
    params.n_batch = 256;
    params.n_ubatch = 16;
    Sequence sequence(maker_of(params));
    sequence.replace(kPrompt, kNotCancelled);
    std::atomic<bool> cancelled{false};
    const auto cancel = [](void * flag) {
        *static_cast<std::atomic<bool> *>(flag) = true;
        return false;
    };
    llama_set_abort_callback(sequence.context(), cancel, &cancelled);
    EXPECT_EQ(status_of([&] { sequence.replace(Tokens(256, kRead), cancelled); }), Status::cancelled);
    EXPECT_EQ(sequence.n_passes(), 2U);
    EXPECT_EQ(sequence.tokens(), kPrompt);
}

TEST_F(SequenceTest, ALagEvaluatedInOneBatchGivesTheLogitsOfSteps) {
    for (const bool step_by_step : {false, true}) {
        Sequence sequence(maker_of());
        sequence.replace(kPrompt, kNotCancelled);
        const std::uint64_t before = sequence.n_passes();
        for (const Token token : bytes("READ")) {
            sequence.append(token);
        }
        const std::vector<float> logits = row(sequence.logits(kAll, step_by_step, kNotCancelled));
        EXPECT_EQ(sequence.n_passes() - before, step_by_step ? 4U : 1U);

        const Context other = tiny_context();
        for (Token token : bytes("the answer isREAD")) {
            ASSERT_EQ(llama_decode(other.get(), llama_batch_get_one(&token, 1)), 0);
        }
        expect_near(logits, row(llama_get_logits_ith(other.get(), -1)));
    }
}

TEST_F(SequenceTest, WhatIsEvaluatedBesideLeavesItsLogitsAlone) {
    Sequence sequence(maker_of());
    sequence.replace(kPrompt, kNotCancelled);
    const std::vector<float> before = row(sequence.logits(kAll, false, kNotCancelled));
    Tokens tokens = bytes("?");
    llama_pos pos = 0;
    llama_seq_id id = 1;
    llama_seq_id * ids = &id;
    std::int32_t n_ids = 1;
    std::int8_t wanted = 1;
    llama_batch batch{};
    batch.n_tokens = 1;
    batch.token = tokens.data();
    batch.pos = &pos;
    batch.n_seq_id = &n_ids;
    batch.seq_id = &ids;
    batch.logits = &wanted;
    for (const bool lags : {false, true}) {
        if (lags) {
            sequence.append(kRead);
        }
        sequence.evaluate_beside(batch);
        llama_memory_seq_rm(llama_get_memory(sequence.context()), id, -1, -1);
        sequence.replace(kPrompt, kNotCancelled);
        expect_near(row(sequence.logits(kAll, false, kNotCancelled)), before);
        sequence.replace(bytes("another"), kNotCancelled);
        sequence.replace(kPrompt, kNotCancelled);
    }
}

TEST_F(SequenceTest, AFullContextTakesNoTokenMore) {
    Sequence sequence(maker_of());
    sequence.replace(bytes(std::string(sequence.n_ctx_max() - 1, 'x')), kNotCancelled);
    sequence.append(kRead);
    static_cast<void>(sequence.logits(kAll, false, kNotCancelled));
    EXPECT_EQ(status_of([&] { sequence.append(kFile); }), Status::context);
    EXPECT_EQ(message_of([&] { sequence.append(kFile); }), "the context of 256 tokens is full");
    EXPECT_EQ(sequence.tokens().size(), sequence.n_ctx_max());
}

TEST_F(SequenceTest, LogitsOfNothingAreRefused) {
    Sequence sequence(maker_of());
    EXPECT_EQ(message_of([&] { static_cast<void>(sequence.logits(kAll, false, kNotCancelled)); }),
              "nothing to go on from: prefill first");
}

TEST_F(SequenceTest, ACancelThatComesInTheOnlyPassIsTold) {
    std::atomic<bool> cancelled{false};
    llama_context_params params = tiny_context_params();
    params.cb_eval_user_data = &cancelled;
    params.cb_eval = [](ggml_tensor * /*node*/, bool ask, void * flag) {
        *static_cast<std::atomic<bool> *>(flag) = true;
        return !ask;
    };
    Sequence sequence(maker_of(params));
    EXPECT_EQ(status_of([&] { sequence.replace(kPrompt, cancelled); }), Status::cancelled);
    EXPECT_EQ(sequence.n_passes(), 1U);
    EXPECT_TRUE(sequence.tokens().empty());
    sequence.replace(kPrompt, kNotCancelled);
    EXPECT_EQ(sequence.tokens(), kPrompt);
}

}  // namespace
}  // namespace token_trie::test
