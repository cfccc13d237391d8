#include "context_kind.h"
#include "scorer_fixture.h"

#include <sys/resource.h>

// A sequence on a context that grows, beside one on a context of full size.
namespace token_trie::test {
namespace {

const std::atomic<bool> kNotCancelled{false};
const AllowedSet kAll = {true, {}, {}};
constexpr std::uint32_t kLarge = 2048;

Tokens text_of(std::size_t n) {
    std::string text;
    while (text.size() < n) {
        text += "line " + std::to_string(text.size()) + " of a text; ";
    }
    return bytes(text.substr(0, n));
}

std::vector<float> logits_of(Sequence & sequence) {
    const float * logits = sequence.logits(kAll, false, kNotCancelled);
    return {logits, logits + kTinyVocab};
}

class GrowingContext : public ::testing::TestWithParam<ContextKind> {
   protected:
    static Sequence growing() { return Sequence(maker_of(GetParam().params(kLarge), GetParam().model)); }

   private:
    CapturedLog quiet_;
};

TEST_P(GrowingContext, GivesTheLogitsOfALargeOneAndEvaluatesNoMore) {
    Sequence sequence = growing();
    Sequence other = growing();
    other.grow(kLarge);
    EXPECT_EQ(other.n_ctx(), kLarge);
    EXPECT_EQ(sequence.n_ctx(), 256U);
    std::size_t n_ctx = 0;
    for (const std::size_t n : {30U, 200U, 300U, 301U, 700U, 1400U}) {
        SCOPED_TRACE(n);
        for (Sequence * each : {&sequence, &other}) {
            each->replace(text_of(n), kNotCancelled);
            each->append(kRead);
            each->append(kFile);
        }
        expect_same(GetParam(), logits_of(sequence), logits_of(other));
        EXPECT_EQ(sequence.n_passes(), other.n_passes());
        EXPECT_GE(sequence.n_ctx(), n + 2);
        EXPECT_GE(sequence.n_ctx(), n_ctx);
        n_ctx = sequence.n_ctx();
    }
    EXPECT_LT(n_ctx, kLarge);
    sequence.replace(text_of(kLarge), kNotCancelled);
    EXPECT_EQ(sequence.n_ctx(), kLarge);
    EXPECT_EQ(status_of([&] { sequence.append(kRead); }), Status::context);
}

TEST_P(GrowingContext, GivesTheScoresOfALargeOne) {
    std::mt19937 rng(7);
    const Cursor cursor = cursor_of(unnamed_trie_of(random_members(rng, 100, 6, kTinyVocab)));
    Sequence sequence = growing();
    Sequence other = growing();
    other.grow(kLarge);
    for (const std::size_t n : {40U, 250U, 600U}) {
        SCOPED_TRACE(n);
        for (const bool with_prefix : {false, true}) {
            ScoreOptions options;
            options.prefix = with_prefix ? text_of(n / 2) : Tokens();
            std::vector<std::vector<double>> scores;
            for (Sequence * each : {&sequence, &other}) {
                each->replace(text_of(n), kNotCancelled);
                scores.push_back(score_all(*each, cursor, options, kNotCancelled).logprobs);
            }
            if (GetParam().is_attention_alone()) {
                expect_same(GetParam(), scores[0], scores[1]);
                EXPECT_EQ(sequence.n_passes(), other.n_passes()) << "nothing is evaluated again";
                expect_same(GetParam(), logits_of(sequence), logits_of(other));
            } else {  // which have lost other snapshots, and evaluate more or less at once
                for (std::size_t i = 0; i < scores[0].size(); ++i) {
                    ASSERT_NEAR(scores[0][i], scores[1][i], GetParam().flash ? 0.1 : 2e-2);
                }
            }
        }
    }
}

TEST_P(GrowingContext, TellsTheBytesOfItsCache) {
    Sequence sequence = growing();
    EXPECT_EQ(sequence.cache_bytes(), 0U);
    sequence.replace(text_of(10), kNotCancelled);
    const std::size_t small = sequence.cache_bytes();
    EXPECT_GT(small, 0U);
    sequence.replace(text_of(1024 - 1), kNotCancelled);
    EXPECT_EQ(sequence.n_ctx(), 1024U);
    if (GetParam().model == TinyKind::recurrent) {
        EXPECT_EQ(sequence.cache_bytes(), small);
    } else if (GetParam().model != TinyKind::hybrid) {
        EXPECT_NEAR(static_cast<double>(sequence.cache_bytes()), 4. * static_cast<double>(small), 4096);
    } else {
        EXPECT_GT(sequence.cache_bytes(), small);
    }
}

INSTANTIATE_TEST_SUITE_P(On, GrowingContext, ::testing::ValuesIn(context_kinds()), [](const auto & info) {
    return name_of(info.param);
});

class GrowingContextTest : public WithTinyModel {};

TEST_F(GrowingContextTest, KeepsEveryAdapter) {
    const Adapter adapter = tiny_adapter(TinyKind::attention, "blk.1.attn_q.weight");
    Sequence sequence(
        ContextMaker(tiny_model(TinyKind::attention), tiny_context_params(kLarge), {{adapter.get()}, {1}}));
    Sequence other(maker_of(kLarge));
    other.grow(kLarge);
    set_adapter(other.context(), adapter.get());
    Sequence without(maker_of(kLarge));
    for (const std::size_t n : {100U, 500U}) {
        for (Sequence * each : {&sequence, &other, &without}) {
            each->replace(text_of(n), kNotCancelled);
        }
        EXPECT_EQ(logits_of(sequence), logits_of(other));
        EXPECT_NE(logits_of(sequence), logits_of(without));
    }
}

TEST_F(GrowingContextTest, WithoutMemoryForMoreStaysAsItWas) {
    if (kSanitized) {
        GTEST_SKIP() << "a sanitizer needs more addresses than the limit leaves";
    }
    Sequence sequence(maker_of(tiny_context_params(1U << 28U)));
    sequence.replace(text_of(200), kNotCancelled);
    const std::vector<float> before = logits_of(sequence);
    const std::uint64_t n_passes = sequence.n_passes();
    rlimit old{};
    ASSERT_EQ(getrlimit(RLIMIT_AS, &old), 0);
    const rlimit tight = {rlim_t{16} << 30U, old.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
    EXPECT_EQ(status_of([&] { sequence.grow(1U << 27U); }), Status::memory);
    ASSERT_EQ(setrlimit(RLIMIT_AS, &old), 0);
    EXPECT_EQ(sequence.n_ctx(), 256U);
    EXPECT_EQ(logits_of(sequence), before);
    EXPECT_EQ(sequence.n_passes(), n_passes);
}

}  // namespace
}  // namespace token_trie::test
