#include "context_kind.h"
#include "scorer_fixture.h"

// Tokens that another context has evaluated are not evaluated again.
namespace token_trie::test {
namespace {

const std::atomic<bool> kNotCancelled{false};
const std::atomic<bool> kCancelled{true};
const AllowedSet kAll = {true, {}, {}};
const Tokens kChat = bytes("a chat of more than one batch of sixty-four tokens, whose every token was evaluated: ");
const Tokens kMore = bytes("and this not");

Tokens operator+(Tokens a, const Tokens & b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

std::vector<float> logits_of(Sequence & sequence) {
    const float * logits = sequence.logits(kAll, false, kNotCancelled);
    return {logits, logits + kTinyVocab};
}

// A context as a program has it, which knows nothing of streams, with these tokens in its memory.
class Elsewhere {
   public:
    Elsewhere(const ContextKind & kind, const Tokens & tokens, bool swa_full = true, std::uint32_t n_ctx = 512)
        : context_([&] {
              llama_context_params params = kind.params(n_ctx);
              params.swa_full = swa_full;
              return tiny_context_of(params, kind.model);
          }()) {
        evaluate(tokens);
    }

    void evaluate(Tokens tokens) const {
        for (std::size_t i = 0; i < tokens.size(); i += llama_n_batch(get())) {
            const std::size_t n = std::min<std::size_t>(llama_n_batch(get()), tokens.size() - i);
            ASSERT_EQ(llama_decode(get(), llama_batch_get_one(&tokens[i], static_cast<std::int32_t>(n))), 0);
        }
    }
    std::vector<float> logits() const {
        const float * logits = llama_get_logits_ith(get(), -1);
        return {logits, logits + kTinyVocab};
    }
    llama_context * get() const { return context_.get(); }

   private:
    Context context_;
};

class TakeOver : public ::testing::TestWithParam<ContextKind> {
   protected:
    static Sequence empty(std::uint32_t n_ctx = 512) {
        return Sequence(ContextMaker(tiny_model(GetParam().model), GetParam().params(n_ctx), {}));
    }

   private:
    CapturedLog quiet_;
};

TEST_P(TakeOver, GivesTheLogitsOfEvaluatingItAll) {
    for (const bool swa_full : {true, false}) {
        const Elsewhere chat(GetParam(), kChat, swa_full);
        const std::vector<float> before = chat.logits();
        Sequence sequence = empty();
        sequence.import_prefix(chat.get(), 0, kChat);
        EXPECT_TRUE(sequence.tokens().empty()) << "the sequence is what it was";
        Sequence other = empty();
        other.replace(kChat, kNotCancelled);
        for (Sequence * each : {&sequence, &other}) {
            each->replace(kChat + kMore, kNotCancelled);
        }
        EXPECT_EQ(sequence.n_passes(), 1U) << "what was new";
        EXPECT_EQ(sequence.n_imported(), kChat.size());
        expect_same(GetParam(), logits_of(sequence), logits_of(other));

        EXPECT_EQ(chat.logits(), before);
        const Elsewhere untouched(GetParam(), kChat, swa_full);
        chat.evaluate(kMore);
        untouched.evaluate(kMore);
        EXPECT_EQ(chat.logits(), untouched.logits()) << "it goes on as if nobody had looked";
    }
}

TEST_P(TakeOver, OfAllThatThePromptIsEvaluatesItsLastTokenWhereTheStateCanBeCut) {
    const Elsewhere chat(GetParam(), kChat);
    Sequence sequence = empty();
    sequence.import_prefix(chat.get(), 0, kChat);
    sequence.replace(kChat, kNotCancelled);
    EXPECT_EQ(sequence.n_passes(), GetParam().is_attention_alone() ? 1U : 2U);
    Sequence other = empty();
    other.replace(kChat + kMore, kNotCancelled);
    other.replace(kChat, kNotCancelled);
    expect_same(GetParam(), logits_of(sequence), logits_of(other));
}

TEST_P(TakeOver, OfABeginningIsCutOrRefused) {
    const Elsewhere chat(GetParam(), kChat + kMore);
    Sequence sequence = empty();
    sequence.replace(kMore, kNotCancelled);
    const std::vector<float> before = logits_of(sequence);
    const bool can_be_cut = GetParam().is_attention_alone() && !GetParam().has_window();
    EXPECT_EQ(status_of([&] { sequence.import_prefix(chat.get(), 0, kChat); }),
              can_be_cut ? Status::ok : Status::context);
    EXPECT_EQ(sequence.tokens(), kMore);
    const std::uint64_t n_passes = sequence.n_passes();
    if (!can_be_cut) {
        EXPECT_EQ(logits_of(sequence), before);
        EXPECT_EQ(sequence.n_passes(), n_passes) << "nothing is lost";
    }
    Sequence other = empty();
    other.replace(kChat, kNotCancelled);
    for (Sequence * each : {&sequence, &other}) {
        each->replace(kChat + kMore, kNotCancelled);
    }
    EXPECT_EQ(sequence.n_passes(), n_passes + (can_be_cut ? 1 : 2));
    if (can_be_cut) {
        expect_same(GetParam(), logits_of(sequence), logits_of(other));
    }
}

TEST_P(TakeOver, FromAnotherKindOfMemoryIsRefusedAndNothingIsLost) {
    std::vector<ContextKind> others;
    for (const ContextKind & other : context_kinds()) {
        if (other.model == GetParam().model && (other.cache != GetParam().cache || other.flash != GetParam().flash)) {
            others.push_back(other);
        }
    }
    Sequence sequence = empty();
    sequence.replace(kMore, kNotCancelled);
    const std::vector<float> before = logits_of(sequence);
    for (const ContextKind & kind : others) {
        SCOPED_TRACE(name_of(kind));
        const Elsewhere chat(kind, kChat);
        // A recurrent state has one type.
        EXPECT_EQ(status_of([&] { sequence.import_prefix(chat.get(), 0, kChat); }),
                  GetParam().model == TinyKind::recurrent ? Status::ok : Status::context);
        EXPECT_EQ(logits_of(sequence), before);
    }
    Sequence other = empty();
    other.replace(kMore, kNotCancelled);
    for (Sequence * each : {&sequence, &other}) {
        each->replace(kMore + kChat, kNotCancelled);
    }
    if (GetParam().model != TinyKind::recurrent) {
        EXPECT_EQ(sequence.n_passes(), other.n_passes());
    }
    expect_same(GetParam(), logits_of(sequence), logits_of(other));
}

TEST_P(TakeOver, OfWhatBeginsWithTheSequenceLeavesItsScores) {
    std::mt19937 rng(3);
    const Cursor cursor = cursor_of(unnamed_trie_of(random_members(rng, 20, 4, kTinyVocab)));
    const Elsewhere chat(GetParam(), kMore + kChat);
    Sequence sequence = empty();
    Sequence other = empty();
    for (Sequence * each : {&sequence, &other}) {
        each->replace(kMore, kNotCancelled);
        static_cast<void>(logits_of(*each));
    }
    sequence.import_prefix(chat.get(), 0, kMore + kChat);
    const std::vector<double> scores = score_all(sequence, cursor, {}, kNotCancelled).logprobs;
    const std::vector<double> wanted = score_all(other, cursor, {}, kNotCancelled).logprobs;
    for (std::size_t leaf = 0; leaf < wanted.size(); ++leaf) {
        ASSERT_NEAR(scores[leaf], wanted[leaf], 0.05);  // the chat was evaluated in other batches
    }
}

TEST_P(TakeOver, BeforeAPrefillThatIsCancelledLeavesTheSequence) {
    const Elsewhere chat(GetParam(), kChat);
    Sequence sequence = empty();
    sequence.replace(kMore, kNotCancelled);
    const std::vector<float> before = logits_of(sequence);
    sequence.import_prefix(chat.get(), 0, kChat);
    EXPECT_EQ(sequence.tokens(), kMore);
    EXPECT_EQ(status_of([&] { sequence.replace(kChat + kMore, kCancelled); }), Status::cancelled);
    EXPECT_EQ(sequence.tokens(), kMore);
    EXPECT_EQ(logits_of(sequence), before);
}

INSTANTIATE_TEST_SUITE_P(On, TakeOver, ::testing::ValuesIn(context_kinds()), [](const auto & info) {
    return name_of(info.param);
});

const ContextKind kPlain = {TinyKind::attention, GGML_TYPE_F32, false};

class TakeOverTest : public WithTinyModel {
   protected:
    static Sequence empty(std::uint32_t n_ctx = 512) {
        return Sequence(ContextMaker(tiny_model(TinyKind::attention), kPlain.params(n_ctx), {}));
    }
};

TEST_F(TakeOverTest, OfNoMoreThanItHoldsDoesNothing) {
    const Elsewhere chat(kPlain, kChat);
    Sequence sequence = empty();
    sequence.replace(kChat + kMore, kNotCancelled);
    sequence.import_prefix(chat.get(), 0, kChat);
    EXPECT_EQ(sequence.n_imported(), 0U);
    sequence.import_prefix(chat.get(), 0, {});
    EXPECT_EQ(sequence.n_cached(), (kChat + kMore).size());
}

TEST_F(TakeOverTest, KeepsTheLogitsOfASequenceThatItHolds) {
    const Elsewhere chat(kPlain, kChat + kMore);
    Sequence sequence = empty();
    sequence.replace(kChat, kNotCancelled);
    const std::vector<float> before = logits_of(sequence);
    const std::uint64_t n_passes = sequence.n_passes();
    sequence.import_prefix(chat.get(), 0, kChat + kMore);
    EXPECT_EQ(sequence.n_cached(), kChat.size());
    EXPECT_EQ(logits_of(sequence), before);
    EXPECT_EQ(sequence.n_passes(), n_passes);
    sequence.replace(kChat + kMore, kNotCancelled);
    EXPECT_EQ(sequence.n_passes(), n_passes + 1) << "its last token";
}

TEST_F(TakeOverTest, GrowsTheContextToWhatIsTakenOver) {
    const Tokens longer = bytes(std::string(400, 'x'));
    const Elsewhere chat(kPlain, longer);
    Sequence sequence = empty();
    EXPECT_EQ(sequence.n_ctx(), 256U);
    sequence.import_prefix(chat.get(), 0, longer);
    EXPECT_EQ(sequence.n_ctx(), 512U);
    Sequence small = empty(256);
    EXPECT_EQ(message_of([&] { small.import_prefix(chat.get(), 0, longer); }),
              "from: its sequence's 400 tokens do not fit the context of 256");
}

TEST_F(TakeOverTest, SaysWhatDoesNotFit) {
    const Elsewhere chat(kPlain, kChat);
    Sequence sequence = empty();
    const auto refusal = [&](llama_context * from, std::int32_t id, const Tokens & tokens) {
        return message_of([&] { sequence.import_prefix(from, id, tokens); });
    };
    EXPECT_EQ(refusal(chat.get(), 0, kChat + kMore), "from: its sequence holds 85 tokens, not 97");
    EXPECT_EQ(refusal(chat.get(), 1, kChat), "sequence: 1 is none of from's");
    EXPECT_EQ(refusal(chat.get(), -1, kChat), "sequence: -1 is none of from's");
    EXPECT_EQ(refusal(sequence.context(), 0, kChat), "from: not another context on the stream's model, with a memory");
    const Elsewhere other({TinyKind::quantized, GGML_TYPE_F32, false}, kChat);
    EXPECT_EQ(refusal(other.get(), 0, kChat), "from: not another context on the stream's model, with a memory");
    llama_memory_seq_rm(llama_get_memory(chat.get()), 0, 0, 8);
    EXPECT_EQ(refusal(chat.get(), 0, kChat), "from: its sequence does not hold what comes before 85 tokens");
    const Elsewhere nothing(kPlain, {});
    EXPECT_EQ(refusal(nothing.get(), 0, kChat), "from: its sequence holds 0 tokens, not 85");
}

TEST_F(TakeOverTest, ScoresAreThoseOfEvaluating) {
    const Elsewhere chat(kPlain, kChat);
    std::mt19937 rng(3);
    const Cursor cursor = cursor_of(unnamed_trie_of(random_members(rng, 60, 5, kTinyVocab)));
    Sequence sequence = empty(2048);
    sequence.import_prefix(chat.get(), 0, kChat);
    Sequence other = empty(2048);
    other.replace(kChat, kNotCancelled);
    std::vector<std::vector<double>> scores;
    for (Sequence * each : {&sequence, &other}) {
        each->replace(kChat + kMore, kNotCancelled);
        scores.push_back(score_all(*each, cursor, {}, kNotCancelled).logprobs);
    }
    EXPECT_EQ(scores[0], scores[1]);
}

}  // namespace
}  // namespace token_trie::test
