#include "sampler/vocab.h"

#include "support.h"
#include "trie/sha256.h"

namespace token_trie::test {
namespace {

TEST(VocabNone, ANullVocabularyIsOfUnknownSizeAndEndsNothing) {
    EXPECT_EQ(vocab_size(nullptr), 0);
    EXPECT_EQ(vocab_fingerprint(nullptr), "");
    EXPECT_TRUE(vocab_end_of_generation(nullptr).empty());
    const auto trie = trie_of({{"far", {300000}}});
    EXPECT_EQ(message_of([&] { check_vocab(*trie, nullptr); }), "");
    EXPECT_EQ(message_of([] { tokenize(nullptr, {"a"}, "choices"); }),
              "choices: this model has no tokenizer; give token sequences instead");
    EXPECT_EQ(message_of([] { detokenize(nullptr, {1}); }), "tokens: this model has no tokenizer");
}

class Vocab : public WithVocab {};

// The definition in token_trie.h, told a second time.
TEST_F(Vocab, FingerprintIsWhatTheHeaderDefines) {
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
    EXPECT_EQ(vocab_fingerprint(vocab), expected);
    EXPECT_EQ(vocab_fingerprint(vocab), expected) << "remembered";
}

TEST_F(Vocab, EndOfGenerationTokensAreThoseOfTheModelInAscendingOrder) {
    const std::vector<Token> tokens = vocab_end_of_generation(vocab);
    ASSERT_FALSE(tokens.empty());
    for (Token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        EXPECT_EQ(std::binary_search(tokens.begin(), tokens.end(), token), llama_vocab_is_eog(vocab, token)) << token;
    }
}

// The lexicon, token by token: what llama.cpp prints without special text leads to the token, and nothing else does.
TEST_F(Vocab, EachTokenSpellsWhatLlamaPrintsWithoutSpecialText) {
    const std::shared_ptr<const Lexicon> lexicon = vocab_lexicon(vocab);
    EXPECT_EQ(lexicon, vocab_lexicon(vocab)) << "remembered";
    EXPECT_EQ(lexicon->vocab(), vocab_fingerprint(vocab));
    std::set<NodeId> nodes;
    std::size_t n_spelling = 0;
    for (Token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        char piece[256];
        const std::int32_t n = llama_token_to_piece(vocab, token, piece, sizeof piece, 0, /* special = */ false);
        ASSERT_GE(n, 0);
        NodeId node = kRoot;
        for (std::int32_t i = 0; i < n && node != kNoNode; ++i) {
            node = lexicon->next(node, static_cast<unsigned char>(piece[i]));
        }
        const bool spells = n > 0 && !llama_vocab_is_eog(vocab, token);
        EXPECT_EQ(node != kNoNode && lexicon->tokens(node).contains(token), spells) << token;
        if (spells) {
            ++n_spelling;
            nodes.insert(node);
        }
    }
    std::size_t n_found = 0;
    for (const NodeId node : nodes) {
        n_found += lexicon->tokens(node).size;
    }
    EXPECT_EQ(n_found, n_spelling);
    EXPECT_EQ(vocab_lexicon(nullptr), nullptr);
}

TEST_F(Vocab, ATrieThatCannotBelongToItIsRefusedNamingTheLeaf) {
    const std::string n = std::to_string(llama_vocab_n_tokens(vocab));
    const auto trie = trie_of({{"near", {1}}, {"far", {1, llama_vocab_n_tokens(vocab)}}});
    EXPECT_EQ(message_of([&] { check_vocab(*trie, vocab); }),
              "leaf \"far\": tokens[1]: " + n + " is outside the vocabulary (" + n + " tokens)");
    const FollowSet follow(*trie, {OnComplete::restart, {1}, {1, llama_vocab_n_tokens(vocab)}, 0});
    EXPECT_EQ(message_of([&] { check_vocab(follow, vocab); }),
              "separator[1]: " + n + " is outside the vocabulary (" + n + " tokens)");
}

TEST_F(Vocab, AFingerprintOfAnotherIsRefusedAndItsOwnAccepted) {
    const auto with_fingerprint = [](const std::string & fingerprint) {
        LeafList leaves = leaf_list({{"a", {1}}});
        leaves.vocab = fingerprint;
        return Trie::build(std::move(leaves));
    };
    EXPECT_EQ(message_of([&] { check_vocab(*with_fingerprint(vocab_fingerprint(vocab)), vocab); }), "");
    const std::string other = "sha256:" + std::string(64, '0');
    EXPECT_EQ(message_of([&] { check_vocab(*with_fingerprint(other), vocab); }),
              "vocab: the set was made for another vocabulary (" + other + ") than this model's (" +
                  vocab_fingerprint(vocab) + "); build it again with this model");
}

TEST_F(Vocab, TokenizedTextsReadBackAsThemselves) {
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

TEST_F(Vocab, ATextOverTheLimitIsRefused) {
    EXPECT_EQ(message_of([&] { tokenize(vocab, {"a", std::string(65536, 'x')}, "choices"); }),
              "choices[1]: 65536 bytes; at most 65535");
}

TEST_F(Vocab, ATokenOutsideItCannotBeSpelled) {
    const std::string n = std::to_string(llama_vocab_n_tokens(vocab));
    EXPECT_EQ(message_of([&] { detokenize(vocab, {1, -1}); }),
              "tokens[1]: -1 is outside the vocabulary (" + n + " tokens)");
}

}  // namespace
}  // namespace token_trie::test
