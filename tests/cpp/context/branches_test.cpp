#include "context_kind.h"
#include "scorer_fixture.h"

#include <random>

// Branches of a sequence, each beside a sequence that has a context for itself.
namespace token_trie::test {
namespace {

const std::atomic<bool> kNotCancelled{false};
const AllowedSet kAll = {true, {}, {}};
const Tokens kPrompt = bytes("a prompt that all branches begin with: ");

std::vector<float> logits_of(Sequence & sequence) {
    const float * logits = sequence.logits(kAll, false, kNotCancelled);
    return {logits, logits + kTinyVocab};
}

void append(Sequence & sequence, const Tokens & tokens) {
    for (const Token token : tokens) {
        sequence.append(token);
    }
}

class Branches : public ::testing::TestWithParam<ContextKind> {
   protected:
    // The result of quantized matrices for a row depends on how many rows there are beside it; that of flash attention
    // does, too, and states carry it on.
    static void expect_near(const std::vector<float> & a, const std::vector<float> & b) {
        const bool is_quantized = GetParam().model == TinyKind::quantized || GetParam().cache == GGML_TYPE_Q8_0;
        const bool carries_on = GetParam().model == TinyKind::hybrid && GetParam().flash;
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
            ASSERT_NEAR(a[i], b[i], is_quantized ? 0.1 : carries_on ? 3e-2 : 5e-3) << i;
        }
    }
    static Sequence growing(std::uint32_t n_ctx = 2048) {
        return Sequence(ContextMaker(tiny_model(GetParam().model), GetParam().params(n_ctx), {}));
    }
    // The logits of a sequence that has no others.
    static std::vector<float> alone(const Tokens & tokens) {
        Sequence sequence = growing();
        sequence.replace(tokens, kNotCancelled);
        return logits_of(sequence);
    }

   private:
    CapturedLog quiet_;
};

TEST_P(Branches, BeginWithWhatIsEvaluatedAlready) {
    Sequence sequence = growing();
    sequence.replace(kPrompt, kNotCancelled);
    const std::vector<float> before = logits_of(sequence);
    const std::uint64_t n_passes = sequence.n_passes();
    const Sequence::Branch first = sequence.branch();
    const Sequence::Branch second = sequence.fork();
    EXPECT_EQ(sequence.tokens(second), kPrompt);
    EXPECT_EQ(sequence.n_cached(second), kPrompt.size());
    for (const Sequence::Branch branch : {second, first, second}) {
        sequence.switch_to(branch);
        EXPECT_EQ(sequence.branch(), branch);
        EXPECT_EQ(logits_of(sequence), before);
    }
    EXPECT_EQ(sequence.n_passes(), n_passes);
    if (GetParam().is_attention_alone()) {
        EXPECT_EQ(sequence.n_ctx_max(), 2048U) << "shared cells count once";
    }
}

TEST_P(Branches, GoOnAsSequencesOfTheirOwnWould) {
    std::mt19937 rng(11);
    Sequence sequence = growing();
    sequence.replace(kPrompt, kNotCancelled);
    std::vector<Sequence::Branch> branches = {sequence.branch()};
    std::vector<Tokens> texts = {kPrompt};
    for (int step = 0; step < 60; ++step) {
        SCOPED_TRACE(step);
        const std::size_t i = rng() % branches.size();
        sequence.switch_to(branches[i]);
        ASSERT_EQ(sequence.tokens(), texts[i]);
        switch (rng() % 5) {
            case 0:
                if (branches.size() < 6) {
                    branches.push_back(sequence.fork());
                    texts.push_back(texts[i]);
                }
                break;
            case 1: {
                const std::size_t n = 1 + rng() % texts[i].size();
                sequence.cut(n);
                texts[i].resize(n);
                break;
            }
            case 2:
                if (branches.size() > 1) {
                    sequence.drop(branches[i]);
                    branches.erase(branches.begin() + static_cast<std::ptrdiff_t>(i));
                    texts.erase(texts.begin() + static_cast<std::ptrdiff_t>(i));
                }
                break;
            default: {
                const auto letter = static_cast<char>('a' + rng() % 26);
                const Tokens more = bytes(std::string(1 + rng() % 40, letter));
                append(sequence, more);
                texts[i].insert(texts[i].end(), more.begin(), more.end());
                expect_near(logits_of(sequence), alone(texts[i]));
            }
        }
    }
    for (std::size_t i = 0; i < branches.size(); ++i) {
        sequence.switch_to(branches[i]);
        expect_near(logits_of(sequence), alone(texts[i]));
    }
}

TEST_P(Branches, AreKeptWhereTheContextGrows) {
    Sequence sequence = growing();
    sequence.replace(kPrompt, kNotCancelled);
    const Sequence::Branch first = sequence.branch();
    const Sequence::Branch second = sequence.fork();
    append(sequence, bytes(std::string(500, 'x')));
    const std::vector<float> of_first = logits_of(sequence);
    EXPECT_GE(sequence.n_ctx(), 500U);
    sequence.switch_to(second);
    EXPECT_EQ(sequence.n_cached(), kPrompt.size());
    append(sequence, bytes("other"));
    Tokens other = kPrompt;
    for (const Token token : bytes("other")) {
        other.push_back(token);
    }
    expect_near(logits_of(sequence), alone(other));
    sequence.switch_to(first);
    expect_near(logits_of(sequence), of_first);
}

TEST_P(Branches, AreScoredBehindLikeSequencesOfTheirOwn) {
    std::mt19937 rng(7);
    const Cursor cursor = cursor_of(unnamed_trie_of(random_members(rng, 60, 5, kTinyVocab)));
    Sequence sequence = growing();
    sequence.replace(kPrompt, kNotCancelled);
    std::vector<Sequence::Branch> branches = {sequence.branch(), sequence.fork(), sequence.fork()};
    for (int round = 0; round < 2; ++round) {
        for (std::size_t i = 0; i < branches.size(); ++i) {
            SCOPED_TRACE(i);
            sequence.switch_to(branches[i]);
            append(sequence, bytes(std::string(i + 1, 'a')));
            for (const bool with_prefix : {false, true}) {
                ScoreOptions options;
                options.prefix = with_prefix ? bytes("a prefix") : Tokens();
                Sequence other = growing();
                other.replace(sequence.tokens(), kNotCancelled);
                const std::vector<double> seen = score_all(sequence, cursor, options, kNotCancelled).logprobs;
                const std::vector<double> wanted = score_all(other, cursor, options, kNotCancelled).logprobs;
                for (std::size_t leaf = 0; leaf < seen.size(); ++leaf) {
                    ASSERT_NEAR(seen[leaf], wanted[leaf], 0.05);
                }
            }
        }
    }
}

TEST_P(Branches, HoldTogetherWhatTheContextHolds) {
    Sequence sequence = growing(512);
    sequence.replace(kPrompt, kNotCancelled);
    const Sequence::Branch first = sequence.branch();
    const Sequence::Branch second = sequence.fork();
    append(sequence, bytes(std::string(300, 'x')));
    static_cast<void>(logits_of(sequence));
    sequence.switch_to(second);
    if (GetParam().is_attention_alone()) {
        EXPECT_EQ(sequence.n_ctx_max(), 212U);
        EXPECT_EQ(status_of([&] { append(sequence, bytes(std::string(300, 'y'))); }), Status::context);
    }
    sequence.drop(first);
    EXPECT_EQ(sequence.n_ctx_max(), 512U);
    sequence.cut(kPrompt.size());
    append(sequence, bytes(std::string(400, 'y')));
    static_cast<void>(logits_of(sequence));
}

INSTANTIATE_TEST_SUITE_P(On, Branches, ::testing::ValuesIn(context_kinds()), [](const auto & info) {
    return name_of(info.param);
});

class BranchesOfAFewIds : public WithTinyModel {};

TEST_F(BranchesOfAFewIds, AreCopiesWhereThereIsNoIdLeft) {
    for (const std::uint32_t n_ids : {1U, 2U, 4U}) {
        Sequence sequence(maker_of(256, TinyKind::attention, n_ids));
        sequence.replace(kPrompt, kNotCancelled);
        std::vector<Sequence::Branch> branches = {sequence.branch()};
        for (int i = 0; i < 4; ++i) {
            branches.push_back(sequence.fork());
        }
        const std::uint64_t n_passes = sequence.n_passes();
        for (std::size_t i = 0; i < branches.size(); ++i) {
            sequence.switch_to(branches[i]);
            append(sequence, bytes(std::string(1, static_cast<char>('a' + i))));
            static_cast<void>(logits_of(sequence));
        }
        EXPECT_EQ(sequence.n_passes(), n_passes + branches.size());
    }
}

}  // namespace
}  // namespace token_trie::test
