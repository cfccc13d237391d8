#include "support.h"
#include "trie/cache.h"

#include <climits>

namespace token_trie::test {
namespace {

struct FreeMatcher {
    void operator()(token_trie_matcher * matcher) const { token_trie_matcher_free(matcher); }
};
using Owned = std::unique_ptr<token_trie_matcher, FreeMatcher>;

constexpr llama_token kEnd = 2;
constexpr std::int32_t kVocab = 40;
const std::string kPayload = payload_of({{"READ", {7}}, {"READ_FILE", {7, 8}}});

token_trie_params end_params() {
    auto params = sized<token_trie_params>();
    params.on_complete = TOKEN_TRIE_END;
    params.end_tokens = &kEnd;
    params.n_end_tokens = 1;
    return params;
}

Owned init(const token_trie_params & params = end_params(),
           std::int32_t n_vocab = kVocab,
           const llama_vocab * vocab = nullptr,
           const std::string & payload = kPayload) {
    const SetHandle set = set_of(payload, std::max(n_vocab, 0), vocab);
    return Owned(set == nullptr ? nullptr : token_trie_matcher_init(vocab, n_vocab, set.get(), &params));
}

Tokens allowed(const token_trie_matcher * matcher) {
    std::size_t n = 0;
    EXPECT_EQ(token_trie_matcher_get_allowed(matcher, nullptr, 0, &n), TOKEN_TRIE_OK);
    Tokens tokens(n);
    EXPECT_EQ(token_trie_matcher_get_allowed(matcher, tokens.data(), n, &n), TOKEN_TRIE_OK);
    return tokens;
}

TEST(AbiMatcher, WalksWithoutAModel) {
    const Owned matcher = init();
    ASSERT_NE(matcher, nullptr) << token_trie_last_error();
    Tokens forced(8);
    std::size_t n = 0;
    EXPECT_EQ(token_trie_matcher_get_forced(matcher.get(), forced.data(), forced.size(), &n), TOKEN_TRIE_OK);
    EXPECT_EQ(n, 1U);
    EXPECT_EQ(forced[0], 7);
    const llama_token wrong = 8;
    EXPECT_EQ(token_trie_matcher_accept(matcher.get(), &wrong, 1, &n), TOKEN_TRIE_OK);
    EXPECT_EQ(n, 0U);
    const Tokens tokens{7, 8, 8};
    EXPECT_EQ(token_trie_matcher_accept(matcher.get(), tokens.data(), tokens.size(), &n), TOKEN_TRIE_OK);
    EXPECT_EQ(n, 2U);
    const Owned clone(token_trie_matcher_clone(matcher.get()));
    EXPECT_EQ(token_trie_matcher_rollback(matcher.get(), 1), TOKEN_TRIE_OK);
    EXPECT_EQ(allowed(matcher.get()), Tokens({kEnd, 8}));
    EXPECT_EQ(allowed(clone.get()), Tokens({kEnd}));
    EXPECT_EQ(token_trie_matcher_accept(clone.get(), &kEnd, 1, &n), TOKEN_TRIE_OK);
    bool is_terminated = false;
    EXPECT_EQ(token_trie_matcher_is_terminated(clone.get(), &is_terminated), TOKEN_TRIE_OK);
    EXPECT_TRUE(is_terminated);
}

TEST(AbiMatcher, FillsTheRowsItIsToldAndNoOther) {
    const Owned constrained = init();
    const Owned released = init(sized<token_trie_params>());
    const llama_token seven = 7;
    std::size_t n = 0;
    EXPECT_EQ(token_trie_matcher_accept(released.get(), &seven, 1, &n), TOKEN_TRIE_OK);
    const token_trie_matcher * const matchers[] = {constrained.get(), released.get()};
    const std::size_t rows[] = {2, 0};
    bool is_needed[] = {false, true};
    std::vector<std::int32_t> masks(8, 5);
    EXPECT_EQ(token_trie_matcher_fill_masks(matchers, 2, rows, masks.data(), 4, 2, is_needed), TOKEN_TRIE_OK);
    EXPECT_EQ(masks, (std::vector<std::int32_t>{-1, -1, 5, 5, 1 << 7, 0, 5, 5}));
    EXPECT_TRUE(is_needed[0]);
    EXPECT_FALSE(is_needed[1]);
    EXPECT_EQ(token_trie_matcher_fill_masks(matchers, 2, nullptr, masks.data(), 4, 2, nullptr), TOKEN_TRIE_OK);
    EXPECT_EQ(masks, (std::vector<std::int32_t>{1 << 7, 0, -1, -1, 1 << 7, 0, 5, 5}));
}

TEST(AbiMatcher, ARowThatIsNotThereOrOfAnotherWidthWritesNothing) {
    const Owned narrow = init();
    const Owned wide = init(end_params(), kVocab + 32);
    const token_trie_matcher * const matchers[] = {narrow.get(), wide.get()};
    const std::size_t rows[] = {0, 2};
    std::vector<std::int32_t> masks(4, 5);
    const auto fill = [&](const token_trie_matcher * const * which, const std::size_t * where, std::size_t n_words) {
        EXPECT_EQ(token_trie_matcher_fill_masks(which, 2, where, masks.data(), 2, n_words, nullptr),
                  TOKEN_TRIE_ERROR_ARGUMENT);
        EXPECT_EQ(masks, std::vector<std::int32_t>(4, 5));
        return std::string(token_trie_last_error());
    };
    EXPECT_EQ(fill(matchers, rows, 2), "rows[1]: 2 of 2 rows");
    EXPECT_EQ(fill(matchers, nullptr, 2), "n_words: 2, but a row of matchers[1] has 3");
    const token_trie_matcher * const one_null[] = {narrow.get(), nullptr};
    EXPECT_EQ(fill(one_null, nullptr, 2), "matchers[1]: null");
    EXPECT_EQ(token_trie_matcher_fill_masks(nullptr, 1, nullptr, masks.data(), 2, 2, nullptr),
              TOKEN_TRIE_ERROR_ARGUMENT);
}

TEST(AbiMatcher, EveryWrongCallIsRefusedByName) {
    const auto refusal = [](const Owned & made) {
        EXPECT_EQ(made, nullptr);
        return std::string(token_trie_last_error());
    };
    Cache::shared().clear();
    EXPECT_EQ(refusal(init(end_params(), 0)), "n_vocab: 0 is no size of a vocabulary");
    EXPECT_EQ(refusal(init(end_params(), -1)), "n_vocab: -1 is no size of a vocabulary");
    Cache::shared().clear();
    EXPECT_EQ(refusal(init(end_params(), 8)),
              "descriptors[0].leaves[1].tokens[1]: 8 is outside the vocabulary (8 tokens)");
    EXPECT_EQ(Cache::shared().stats().entries, 0U);
    auto params = end_params();
    params.end_tokens = nullptr;
    params.n_end_tokens = 0;
    EXPECT_EQ(refusal(init(params)), "on_complete end needs end_tokens or a vocabulary that has some");
    EXPECT_EQ(token_trie_matcher_init(nullptr, kVocab, nullptr, &params), nullptr);
    EXPECT_EQ(token_trie_matcher_init(nullptr, kVocab, set_of(kPayload).get(), nullptr), nullptr);

    const Owned matcher = init();
    bool flag = false;
    std::size_t n = 0;
    const llama_token outside = INT_MAX;
    EXPECT_EQ(token_trie_matcher_accept(matcher.get(), &outside, 1, &n), TOKEN_TRIE_ERROR_VOCAB);
    EXPECT_EQ(token_trie_matcher_rollback(matcher.get(), SIZE_MAX), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_matcher_accept(matcher.get(), &outside, 1, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_matcher_accept(matcher.get(), nullptr, 1, &n), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_matcher_get_allowed(matcher.get(), nullptr, 1, &n), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_matcher_get_forced(matcher.get(), nullptr, 1, &n), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(allowed(matcher.get()), Tokens({7})) << "nothing has moved";

    EXPECT_EQ(token_trie_matcher_accept(nullptr, &outside, 1, &n), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_matcher_is_terminated(nullptr, &flag), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_matcher_clone(nullptr), nullptr);
    token_trie_matcher_free(nullptr);
}

class AbiMatcherWithVocab : public WithVocab {};

TEST_F(AbiMatcherWithVocab, TakesEndTokensAndWidthFromTheVocabulary) {
    auto params = sized<token_trie_params>();
    params.on_complete = TOKEN_TRIE_END;
    const Owned matcher = init(params, 0, vocab);
    ASSERT_NE(matcher, nullptr) << token_trie_last_error();
    const Tokens member{7, 8};
    std::size_t n = 0;
    EXPECT_EQ(token_trie_matcher_accept(matcher.get(), member.data(), 2, &n), TOKEN_TRIE_OK);
    for (const llama_token token : allowed(matcher.get())) {
        EXPECT_TRUE(llama_vocab_is_eog(vocab, token));
    }
    const std::int32_t n_vocab = llama_vocab_n_tokens(vocab);
    EXPECT_NE(init(params, n_vocab + 64, vocab), nullptr) << "logits may be padded";
    EXPECT_EQ(init(params, n_vocab - 1, vocab), nullptr);
}

}  // namespace
}  // namespace token_trie::test
