#include "context/sequence.h"

#include "tiny_model.h"

namespace token_trie::test {
namespace {

const std::atomic<bool> kNotCancelled{false};
const AllowedSet kAll = {true, {}, {}};

// Beside sequences that read each text from its first token on.
class Snapshots : public ::testing::TestWithParam<TinyKind> {
   protected:
    static Sequence fresh(std::uint32_t n_ctx = 1024) { return Sequence(maker_of(n_ctx, GetParam())); }
    static std::vector<float> logits_of(Sequence & sequence) {
        const float * logits = sequence.logits(kAll, false, kNotCancelled);
        return {logits, logits + kTinyVocab};
    }
    static void expect_as_fresh(Sequence & sequence) {
        Sequence other = fresh();
        other.replace(sequence.tokens(), kNotCancelled);
        const std::vector<float> expected = logits_of(other);
        const std::vector<float> found = logits_of(sequence);
        for (std::size_t i = 0; i < expected.size(); ++i) {
            ASSERT_NEAR(found[i], expected[i], 2e-3) << i;
        }
    }
    // Passes that it takes to make the sequence a text.
    static std::uint64_t n_passes(Sequence & sequence, const Tokens & text) {
        const std::uint64_t before = sequence.n_passes();
        sequence.replace(text, kNotCancelled);
        expect_as_fresh(sequence);
        return sequence.n_passes() - before;
    }
    // Six batches of 64.
    static Tokens text_of(std::size_t n_shared, char end) {
        return bytes(std::string(n_shared, 'a') + std::string(384 - n_shared, end));
    }

   private:
    CapturedLog quiet_;
};

INSTANTIATE_TEST_SUITE_P(Of,
                         Snapshots,
                         ::testing::Values(TinyKind::recurrent, TinyKind::hybrid),
                         [](const auto & info) { return info.param == TinyKind::hybrid ? "Hybrid" : "Recurrent"; });

TEST_P(Snapshots, APromptIsNotReadAgainAfterWhatFollowedIt) {
    Sequence sequence = fresh();
    const Tokens prompt = text_of(384, 'a');
    sequence.replace(prompt, kNotCancelled);
    for (const Token token : {kRead, kFile, kSend}) {
        sequence.append(token);
        expect_as_fresh(sequence);
    }
    EXPECT_EQ(n_passes(sequence, prompt), 0U);
    sequence.append(kMail);
    expect_as_fresh(sequence);
    sequence.cut(prompt.size());
    expect_as_fresh(sequence);
}

TEST_P(Snapshots, ATextThatPartsShortlyBeforeTheEndOfTheFirstIsReadFromThere) {
    Sequence sequence = fresh();
    EXPECT_GE(n_passes(sequence, text_of(372, 'b')), 6U);
    EXPECT_EQ(n_passes(sequence, text_of(372, 'c')), 1U);
}

TEST_P(Snapshots, WhereTwoTextsHavePartedAThirdGoesOn) {
    Sequence sequence = fresh();
    EXPECT_GE(n_passes(sequence, text_of(330, 'b')), 6U);
    EXPECT_GE(n_passes(sequence, text_of(330, 'c')), 1U);
    EXPECT_EQ(n_passes(sequence, text_of(330, 'd')), 1U);
    EXPECT_EQ(n_passes(sequence, text_of(330, 'b')), 0U) << "its end is still there";
}

TEST_P(Snapshots, TheEndsOfManyShortTextsDoNotTakeThePlaceOfALongBeginning) {
    llama_model * const model = tiny_model(GetParam());
    const ContextMaker most(model, tiny_context_params(), {});
    Sequence sequence(ContextMaker(model, tiny_context_params(1024), {}, 16 * most.state_bytes()));
    for (const char question : {'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i'}) {
        sequence.replace(bytes(std::string(330, 'a') + std::string(30, question)), kNotCancelled);
    }
    EXPECT_EQ(n_passes(sequence, bytes(std::string(300, 'a') + std::string(60, 'z'))), 1U);
}

TEST_P(Snapshots, RandomTextsInAContextThatIsFullOfThemHaveTheirOwnLogits) {
    std::mt19937 rng(7);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(rng() % n); };
    Sequence sequence = fresh(256);
    sequence.replace(bytes("a"), kNotCancelled);
    for (int i = 0; i < 150; ++i) {
        SCOPED_TRACE(i);
        const std::size_t n_shared = 1 + 30 * below(7);
        switch (below(4)) {
            case 0: sequence.cut(1 + below(sequence.tokens().size())); break;
            case 1:
                for (std::size_t n = below(12); n > 0 && sequence.tokens().size() < sequence.n_ctx_max(); --n) {
                    sequence.append(static_cast<Token>(3 + below(200)));
                }
                break;
            default:
                sequence.replace(bytes(std::string(n_shared, static_cast<char>('a' + below(2))) +
                                       std::string(below(60), static_cast<char>('c' + below(3)))),
                                 kNotCancelled);
        }
        expect_as_fresh(sequence);
    }
    EXPECT_EQ(sequence.n_ctx_max(), 256U) << "snapshots take no room from texts";
}

TEST_P(Snapshots, StatesTakeTheMemoryThatTheyMay) {
    llama_model * const model = tiny_model(GetParam());
    const ContextMaker most(model, tiny_context_params(), {});
    EXPECT_GT(most.state_bytes(), 0U);
    for (const std::size_t n : {10U, 20U, 30U}) {
        EXPECT_EQ(ContextMaker(model, tiny_context_params(), {}, n * most.state_bytes()).max_ids(), n);
    }
    Sequence sequence(ContextMaker(model, tiny_context_params(1024), {}, 1));
    EXPECT_EQ(sequence.n_states_max(), ContextMaker::kMinIds);
    for (const char end : {'b', 'c', 'd', 'e', 'f', 'g', 'b', 'c'}) {
        sequence.replace(text_of(330, end), kNotCancelled);
        expect_as_fresh(sequence);
    }
}

TEST_P(Snapshots, AContextThatGrowsKeepsTheEndOfItsText) {
    Sequence sequence = fresh();
    sequence.replace(bytes(std::string(200, 'a')), kNotCancelled);
    sequence.grow(800);
    expect_as_fresh(sequence);
    for (int i = 0; i < 3; ++i) {
        sequence.append(kRead);
        expect_as_fresh(sequence);
    }
    EXPECT_EQ(n_passes(sequence, bytes(std::string(200, 'a'))), 0U);
}

}  // namespace
}  // namespace token_trie::test
