#include "search/scorer.h"
#include "search/search.h"

#include "scorer_fixture.h"

#include <map>
#include <tuple>

namespace token_trie::test {
namespace {

// A member's score is its own, whoever else is in the set and whatever the prompt followed: here with F32 weights.
// For quantized ones the README says how far apart two scores may be, and `bench --mode score` measures it.
class BesideOthersOf : public ::testing::TestWithParam<std::tuple<TinyKind, bool>> {
   protected:
    static ContextMaker maker() {
        llama_context_params params = tiny_context_params(1024);
        params.flash_attn_type =
            std::get<1>(GetParam()) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        return maker_of(params, std::get<0>(GetParam()));
    }

    static std::map<Tokens, double> scores_of(Sequence & sequence, const std::set<Tokens> & members) {
        const std::shared_ptr<const Trie> trie = unnamed_trie_of(members);
        ScoreOptions options;
        options.leaf_end = LeafEnd::any;  // others that go on from a leaf change the rest
        const Answer scores = score_all(sequence, cursor_of(trie), options, kNotCancelled);
        std::map<Tokens, double> out;
        for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
            out[trie->sequence(leaf)] = scores.logprobs[leaf];
        }
        return out;
    }

    // Flash attention works in half precision, and a step of Gemma's GELU is one of a table in that.
    static double near() {
        const auto [kind, flash] = GetParam();
        return flash ? 5e-3 : kind == TinyKind::sliding_window ? 1e-3 : kNear;
    }

    CapturedLog quiet_;
    Sequence sequence_{maker()};
};

std::string name_of_model(const ::testing::TestParamInfo<std::tuple<TinyKind, bool>> & info) {
    return std::string(std::get<0>(info.param) == TinyKind::attention ? "AttentionTo" : "ASlidingWindowOf") +
           (std::get<1>(info.param) ? "AllInAFlash" : "All");
}

INSTANTIATE_TEST_SUITE_P(AModelWith,
                         BesideOthersOf,
                         ::testing::Combine(::testing::Values(TinyKind::attention, TinyKind::sliding_window),
                                            ::testing::Bool()),
                         name_of_model);

// 600 tokens: more than a batch, and than flash attention splits among threads.
Tokens long_prompt() {
    Tokens out;
    for (Token i = 0; i < 600; ++i) {
        out.push_back(3 + i * i % 200);
    }
    return out;
}

TEST_P(BesideOthersOf, AMemberKeepsItsScoreWhenOthersJoin) {
    std::mt19937 rng(11);
    for (const Tokens & prompt : {bytes("the answer is"), long_prompt()}) {
        sequence_.replace(prompt, kNotCancelled);
        const std::set<Tokens> many = random_texts(rng, 200, 5, 8);
        const std::map<Tokens, double> expected = scores_of(sequence_, many);
        for (const std::size_t n : {1U, 2U, 3U, 5U, 10U, 20U, 30U, 60U}) {
            std::set<Tokens> some;
            for (const Tokens & member : many) {
                if (some.size() < n && rng() % 3 == 0) {
                    some.insert(member);
                }
            }
            for (const auto & [member, score] : scores_of(sequence_, some)) {
                EXPECT_NEAR(score, expected.at(member), near()) << "among " << n;
            }
        }
        const std::shared_ptr<const Trie> trie = unnamed_trie_of(many);
        SearchOptions options;
        options.leaf_end = LeafEnd::any;
        options.n_best = 5;
        for (const Found & found : found_by(search(sequence_, cursor_of(trie), options, kNotCancelled))) {
            EXPECT_NEAR(found.logprob, expected.at(trie->sequence(found.leaf)), near());
        }
    }
}

TEST_P(BesideOthersOf, APromptThatSharesItsBeginningWithTheOneBeforeIsLikeAFreshOne) {
    std::mt19937 rng(12);
    const std::set<Tokens> members = random_texts(rng, 30, 4, 8);
    const Tokens prompt = long_prompt();
    sequence_.replace(prompt, kNotCancelled);
    const std::map<Tokens, double> fresh = scores_of(sequence_, members);
    for (const std::ptrdiff_t n_shared : {1, 2, 300, 511, 512, 513, 598, 599}) {
        Tokens before(prompt.begin(), prompt.begin() + n_shared);
        before.push_back(kSend);
        sequence_.replace(before, kNotCancelled);
        sequence_.replace(prompt, kNotCancelled);
        for (const auto & [member, score] : scores_of(sequence_, members)) {
            EXPECT_NEAR(score, fresh.at(member), near()) << n_shared << " tokens shared";
        }
    }
}

}  // namespace
}  // namespace token_trie::test
