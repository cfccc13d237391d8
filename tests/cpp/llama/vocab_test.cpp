#include "llama/vocab.h"

#include "tiny_model.h"
#include "trie/cache.h"
#include "trie/sha256.h"

namespace token_trie::test {
namespace {

TEST(VocabNone, ANullVocabularyIsOfUnknownSizeAndEndsNothing) {
    const Vocab none(nullptr);
    EXPECT_EQ(none.size(), 0);
    EXPECT_EQ(none.fingerprint(), "");
    EXPECT_TRUE(none.end_of_generation().empty());
    const auto trie = trie_of({{"far", {300000}}});
    EXPECT_EQ(message_of([&] { check_vocab(*trie, none); }), "");
    EXPECT_EQ(message_of([] { tokenize(nullptr, {"a"}, "choices"); }),
              "choices: this model has no tokenizer; give token sequences instead");
    EXPECT_EQ(message_of([] { detokenize(nullptr, {1}); }), "tokens: this model has no tokenizer");
}

class VocabTest : public WithVocab {
   protected:
    const Vocab facts{model_vocab()};
};

// The definition in token_trie.h, told a second time.
TEST_F(VocabTest, FingerprintIsWhatTheHeaderDefines) {
    Sha256 hash;
    const auto u32 = [&hash](std::size_t n) {
        for (int i = 0; i < 4; ++i, n /= 256) {
            hash.update(std::string(1, static_cast<char>(n % 256)));
        }
    };
    const std::int32_t n = llama_vocab_n_tokens(vocab);
    u32(static_cast<std::size_t>(n));
    for (Token token = 0; token < n; ++token) {
        const std::string text = llama_vocab_get_text(vocab, token);
        u32(text.size());
        hash.update(text);
    }
    std::string expected = "sha256:";
    for (const unsigned byte : hash.finish()) {
        expected.append({"0123456789abcdef"[byte / 16], "0123456789abcdef"[byte % 16]});
    }
    EXPECT_EQ(facts.fingerprint(), expected);
    EXPECT_EQ(facts.fingerprint(), expected) << "remembered";
}

TEST_F(VocabTest, EndOfGenerationTokensAreThoseOfTheModelInAscendingOrder) {
    const std::vector<Token> tokens = facts.end_of_generation();
    ASSERT_FALSE(tokens.empty());
    for (Token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        EXPECT_EQ(std::binary_search(tokens.begin(), tokens.end(), token), llama_vocab_is_eog(vocab, token)) << token;
    }
}

TEST_F(VocabTest, TextsOfControlTokensAreThoseThatAreReadOnlyWhereSpecialsAre) {
    std::vector<Token> expected;
    for (Token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        if (llama_vocab_is_control(vocab, token) || llama_vocab_is_eog(vocab, token)) {
            expected.push_back(token);
        }
    }
    std::vector<Token> tokens;
    for (const auto & [token, text] : facts.control_texts()) {
        tokens.push_back(token);
        EXPECT_EQ(text, llama_vocab_get_text(vocab, token));
        EXPECT_EQ(tokenize(vocab, {text}, "texts", /* special = */ true).tokens, Tokens{token});
    }
    EXPECT_EQ(tokens, expected);
}

TEST_F(VocabTest, ATrieThatCannotBelongToItIsRefusedNamingTheLeaf) {
    const std::string n = std::to_string(llama_vocab_n_tokens(vocab));
    const auto trie = trie_of({{"near", {1}}, {"far", {1, llama_vocab_n_tokens(vocab)}}});
    EXPECT_EQ(message_of([&] { check_vocab(*trie, facts); }),
              "leaf \"far\": tokens[1]: " + n + " is outside the vocabulary (" + n + " tokens)");
    const FollowSet follow(*trie, {OnComplete::restart, {1}, {1, llama_vocab_n_tokens(vocab)}, 0});
    EXPECT_EQ(message_of([&] { check_vocab(follow, facts); }),
              "separator[1]: " + n + " is outside the vocabulary (" + n + " tokens)");
}

TEST_F(VocabTest, AFingerprintOfAnotherIsRefusedAndItsOwnAccepted) {
    const auto with_fingerprint = [](const std::string & fingerprint) {
        LeafList leaves = leaf_list({{"a", {1}}});
        leaves.vocab = fingerprint;
        return Trie::build(std::move(leaves));
    };
    EXPECT_EQ(message_of([&] { check_vocab(*with_fingerprint(facts.fingerprint()), facts); }), "");
    const std::string other = "sha256:" + std::string(64, '0');
    EXPECT_EQ(message_of([&] { check_vocab(*with_fingerprint(other), facts); }),
              "vocab: the set was made for another vocabulary (" + other + ") than this model's (" +
                  facts.fingerprint() + "); build it again with this model");
}

TEST_F(VocabTest, TokenizedTextsReadBackAsThemselves) {
    const std::vector<std::string> texts = {"READ", "READ_FILE", " caf\u00e9 \U0001F600", "", "<|endoftext|>"};
    const LeafList leaves = tokenize(vocab, texts, "texts");
    ASSERT_EQ(leaves.size(), texts.size());
    EXPECT_TRUE(leaves.names.empty());
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const Tokens tokens(leaves.tokens.begin() + static_cast<std::ptrdiff_t>(leaves.offsets[i]),
                            leaves.tokens.begin() + static_cast<std::ptrdiff_t>(leaves.offsets[i + 1]));
        EXPECT_TRUE(std::none_of(tokens.begin(), tokens.end(), [&](Token t) {
            return llama_vocab_is_control(vocab, t);
        })) << "special tokens are not recognized";
        EXPECT_EQ(detokenize(vocab, tokens), texts[i]);
    }
}

TEST_F(VocabTest, ManyTextsAreTokenizedAsEachAloneAndTheFirstWrongOneIsTold) {
    std::vector<std::string> texts;
    texts.reserve(3000);
    for (int i = 0; i < 3000; ++i) {
        texts.push_back("item " + std::to_string(i * 7919) + (i % 3 == 0 ? " red" : " of wood"));
    }
    LeafList each;
    for (const std::string & text : texts) {
        each.append(tokenize(vocab, {text}, "texts"));
    }
    const LeafList all = tokenize(vocab, texts, "texts");
    EXPECT_EQ(all.tokens, each.tokens);
    EXPECT_EQ(all.offsets, each.offsets);
    for (const std::size_t wrong : {2900U, 1400U, 20U}) {
        texts[wrong] = std::string(65536, 'x');
        EXPECT_EQ(message_of([&] { tokenize(vocab, texts, "texts"); }),
                  "texts[" + std::to_string(wrong) + "]: 65536 bytes; at most 65535");
    }
}

TEST_F(VocabTest, ATextOverTheLimitIsRefused) {
    EXPECT_EQ(message_of([&] { tokenize(vocab, {"a", std::string(65536, 'x')}, "choices"); }),
              "choices[1]: 65536 bytes; at most 65535");
}

TEST_F(VocabTest, ATokenOutsideItCannotBeSpelled) {
    const std::string n = std::to_string(llama_vocab_n_tokens(vocab));
    EXPECT_EQ(message_of([&] { detokenize(vocab, {1, -1}); }),
              "tokens[1]: -1 is outside the vocabulary (" + n + " tokens)");
}

// Two models whose tokens have the same texts, of which other tokens end a generation.
class VocabTwins : public WithTinyModel {
   protected:
    const Vocab one_{tiny_vocab()};
    const Vocab other_{llama_model_get_vocab(tiny_model(TinyKind::other_end))};
};

TEST_F(VocabTwins, HaveOneFingerprintAsTheirSequencesMeanTheSame) {
    EXPECT_EQ(one_.fingerprint(), other_.fingerprint());
    EXPECT_EQ(one_.end_of_generation(), Tokens{kTinyEnd});
    EXPECT_EQ(other_.end_of_generation(), (Tokens{kTinyEnd, kSend}));
}

// The allocator mostly gives the second model the first one's place.
TEST_F(VocabTwins, AModelLoadedInTheOthersPlaceBringsItsOwnEndTokens) {
    const SetHandle set = set_of(payload_of({{"READ", {kRead}}}));
    auto params = sized<token_trie_params>();
    params.mode = TOKEN_TRIE_SAMPLED;
    params.on_complete = TOKEN_TRIE_END;
    llama_model_params load = llama_model_default_params();
    load.vocab_only = true;
    for (int i = 0; i < 8; ++i) {
        const TinyKind kind = i % 2 == 0 ? TinyKind::attention : TinyKind::other_end;
        const Model model(llama_model_load_from_file(tiny_model_path(kind).c_str(), load));
        const llama_vocab * vocab = llama_model_get_vocab(model.get());
        const Sampler sampler(llama_sampler_init_token_trie_set(vocab, set.get(), &params));
        ASSERT_NE(sampler, nullptr) << token_trie_last_error();
        llama_sampler_accept(sampler.get(), kRead);
        Candidates candidates = Candidates::at_own_index(std::vector<float>(kTinyVocab, 0.0F));
        llama_sampler_apply(sampler.get(), candidates.get());
        EXPECT_EQ(candidates.ids(), i % 2 == 0 ? Tokens{kTinyEnd} : (Tokens{kTinyEnd, kSend}));
    }
}

}  // namespace
}  // namespace token_trie::test
