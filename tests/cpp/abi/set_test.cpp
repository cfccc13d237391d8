#include "abi_stream_fixture.h"

#include "trie/cache.h"
#include "trie/trie_file.h"

#include <unistd.h>
#include <array>
#include <cstdio>
#include <fstream>
#include <thread>

namespace token_trie::test {
namespace {

class AbiSet : public AbiStream {
   protected:
    static inline const std::string kTwo =
        R"({"descriptors": [{"path": "action", "leaves": [{"name": "get", "tokens": [80, 81]}]},)"
        R"({"path": "city[]", "leaves": [{"name": "Oslo", "tokens": [90]}]},)"
        R"({"path": "action", "leaves": [{"name": "set", "tokens": [82]}]}]})";

    static token_trie_set_info info(const SetHandle & set) {
        auto out = sized<token_trie_set_info>();
        EXPECT_EQ(token_trie_set_get_info(set.get(), &out), TOKEN_TRIE_OK) << token_trie_last_error();
        return out;
    }
    static Tokens member(const SetHandle & set, std::size_t i, std::string & name) {
        std::array<llama_token, 8> tokens{};
        std::size_t n = 0;
        const char * own = nullptr;
        EXPECT_EQ(token_trie_set_get_member(set.get(), i, &own, tokens.data(), tokens.size(), &n), TOKEN_TRIE_OK);
        name = own == nullptr ? "" : own;
        return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n)};
    }
    static std::int32_t pick(const Handle & stream, const SetHandle & set, const char * path) {
        token_trie_params params = end_params();
        params.path = path;
        return token_trie_stream_set_token_trie(stream.get(), set.get(), &params);
    }
    static std::string name_of(const Handle & stream) {
        EXPECT_EQ(token_trie_stream_generate(stream.get(), 8, nullptr, nullptr), TOKEN_TRIE_OK);
        return state_of(stream).leaf_name;
    }

    const Handle stream_ = open();
    const llama_vocab * const vocab_ = llama_model_get_vocab(tiny_model());
};

TEST_F(AbiSet, OfAPayloadIsUsedByPathOrAsAWhole) {
    const SetHandle set = set_of(kTwo);
    ASSERT_NE(set, nullptr) << token_trie_last_error();
    for (int round = 0; round < 2; ++round) {
        ASSERT_EQ(pick(stream_, set, "city[]"), TOKEN_TRIE_OK) << token_trie_last_error();
        EXPECT_EQ(name_of(stream_), "Oslo");
        ASSERT_EQ(pick(stream_, set, "action"), TOKEN_TRIE_OK) << token_trie_last_error();
        const std::string name = name_of(stream_);
        EXPECT_TRUE(name == "get" || name == "set");
    }
    EXPECT_EQ(pick(stream_, set, nullptr), TOKEN_TRIE_OK);
    EXPECT_EQ(info(set).n_members, 3U);
    const SetHandle action(token_trie_set_select(set.get(), "action"));
    EXPECT_EQ(info(action).n_members, 2U);
}

TEST_F(AbiSet, IsReadOnceAndSharedWithTheCache) {
    const SetHandle set = set_of(kTwo);
    const Cache::Stats before = Cache::shared().stats();
    ASSERT_EQ(pick(stream_, set, "action"), TOKEN_TRIE_OK);
    EXPECT_EQ(Cache::shared().stats().hits, before.hits);
    EXPECT_EQ(Cache::shared().stats().misses, before.misses);
    EXPECT_EQ(Cache::shared().get(kTwo, "action", 0)->n_leaves(), 2U);
    EXPECT_EQ(Cache::shared().stats().hits, before.hits + 1) << "what is read once is there for others";
}

TEST_F(AbiSet, OfTokensHasThemNamedOrNumbered) {
    const Tokens tokens = {80, 81, 82, 90};
    const std::array<std::uint64_t, 4> offsets = {0, 2, 3, 4};
    const std::array<const char *, 3> names = {"get", "set", "Oslo"};
    const SetHandle named(token_trie_set_from_tokens(tokens.data(), offsets.data(), 3, names.data(), nullptr));
    const SetHandle numbered(token_trie_set_from_tokens(tokens.data(), offsets.data(), 3, nullptr, nullptr));
    std::string name;
    EXPECT_EQ(member(named, 0, name), (Tokens{80, 81}));
    EXPECT_EQ(name, "get");
    EXPECT_EQ(member(numbered, 2, name), Tokens{90});
    EXPECT_EQ(name, "");
    EXPECT_EQ(info(named).max_tokens, 2U);
    EXPECT_EQ(info(named).n_nodes, 5U);
    ASSERT_EQ(pick(stream_, named, nullptr), TOKEN_TRIE_OK);
    EXPECT_NE(name_of(stream_), "");
}

TEST_F(AbiSet, IsFilteredByAByteAMember) {
    const std::vector<llama_token> tokens = {80, 81, 80, 82, 90};
    const std::vector<std::uint64_t> offsets = {0, 2, 4, 5};
    const std::array<const char *, 3> names = {"a", "b", "c"};
    const SetHandle set(token_trie_set_from_tokens(tokens.data(), offsets.data(), 3, names.data(), nullptr));
    const std::array<unsigned char, 3> keep = {0, 1, 0};
    const SetHandle left(token_trie_set_filter(set.get(), keep.data(), keep.size()));
    ASSERT_NE(left, nullptr) << token_trie_last_error();
    ASSERT_EQ(pick(stream_, left, nullptr), TOKEN_TRIE_OK) << token_trie_last_error();
    EXPECT_EQ(name_of(stream_), "b");
    EXPECT_EQ(info(left).n_members, 3U) << "indices stay";
    EXPECT_EQ(info(left).n_left, 1U);
    EXPECT_EQ(info(set).n_left, 3U);
    std::string name;
    EXPECT_EQ(member(left, 1, name), (Tokens{80, 82}));
    EXPECT_EQ(name, "b");
    for (const std::size_t out : {0U, 2U}) {
        const char * own = "before";
        std::size_t n = 7;
        EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_set_get_member(left.get(), out, &own, nullptr, 0, &n)),
                  "i: member " + std::to_string(out) + " is filtered out");
        EXPECT_STREQ(own, "before");
        EXPECT_EQ(n, 7U);
    }
    const std::array<unsigned char, 3> none = {0, 0, 0};
    EXPECT_EQ(token_trie_set_filter(set.get(), none.data(), none.size()), nullptr);
    EXPECT_STREQ(token_trie_last_error(), "no member of the set is left");
    const std::array<unsigned char, 3> other = {1, 0, 1};
    EXPECT_EQ(token_trie_set_filter(left.get(), other.data(), other.size()), nullptr) << "what is out stays out";
    EXPECT_EQ(token_trie_set_filter(set.get(), keep.data(), 2), nullptr);
    EXPECT_STREQ(token_trie_last_error(), "n_members: 2 for a set of 3");
    EXPECT_EQ(token_trie_set_filter(set.get(), nullptr, 3), nullptr);
    EXPECT_EQ(token_trie_set_filter(nullptr, keep.data(), 3), nullptr);
}

TEST_F(AbiSet, IsOpenedFromAFile) {
    const std::string path = ::testing::TempDir() + "abi_set_" + std::to_string(getpid()) + ".trie";
    {
        const TrieImage image(trie_of({{"get", {80, 81}}, {"set", {82}}}));
        std::ofstream file(path, std::ios::binary);
        for (const std::string_view piece : image.pieces()) {
            file << piece;
        }
    }
    const SetHandle set(token_trie_set_open(path.c_str()));
    std::remove(path.c_str());
    ASSERT_NE(set, nullptr) << token_trie_last_error();
    std::string name;
    EXPECT_EQ(member(set, 0, name), Tokens({80, 81}));
    EXPECT_EQ(name, "get");
    EXPECT_EQ(token_trie_set_open(path.c_str()), nullptr);
    EXPECT_NE(std::string(token_trie_last_error()).find("No such file"), std::string::npos);
    EXPECT_EQ(token_trie_set_open(nullptr), nullptr);
}

TEST_F(AbiSet, OfTextsIsSpelledAsTheTokenizerDoes) {
    const std::array<const char *, 2> texts = {"READ", "SEND"};
    const SetHandle set(token_trie_set_from_texts(vocab_, texts.data(), texts.size()));
    ASSERT_NE(set, nullptr) << token_trie_last_error();
    ASSERT_EQ(prefill(stream_, kPrompt), TOKEN_TRIE_OK);
    ASSERT_EQ(pick(stream_, set, nullptr), TOKEN_TRIE_OK) << token_trie_last_error();
    const std::string name = name_of(stream_);
    EXPECT_TRUE(name == "READ" || name == "SEND");
}

TEST_F(AbiSet, OfTextsMayBeBeyondAscii) {
    const char * const text = "caf\u00e9";
    const SetHandle set(token_trie_set_from_texts(vocab_, &text, 1));
    ASSERT_NE(set, nullptr) << token_trie_last_error();
    std::string name;
    EXPECT_FALSE(member(set, 0, name).empty());
    EXPECT_EQ(name, text);
}

TEST_F(AbiSet, LivesOnInWhatWasMadeWithIt) {
    const auto params = end_params();
    token_trie_set * set = token_trie_set_select(set_of(kTwo).get(), nullptr);
    token_trie_set_free(nullptr);
    const Sampler sampler(llama_sampler_init_token_trie_set(vocab_, set, &params));
    token_trie_matcher * matcher = token_trie_matcher_init(vocab_, 0, set, &params);
    ASSERT_EQ(token_trie_stream_set_token_trie(stream_.get(), set, &params), TOKEN_TRIE_OK);
    token_trie_set_free(set);
    token_trie_cache_clear();
    EXPECT_NE(name_of(stream_), "");
    llama_sampler_accept(sampler.get(), 90);
    EXPECT_STREQ(token_trie::test::state_of(sampler.get()).leaf_name, "Oslo");
    const llama_token token = 82;
    std::size_t n_accepted = 0;
    EXPECT_EQ(token_trie_matcher_accept(matcher, &token, 1, &n_accepted), TOKEN_TRIE_OK);
    EXPECT_EQ(n_accepted, 1U);
    token_trie_matcher_free(matcher);
}

TEST_F(AbiSet, IsSelectedFromByAnyThread) {
    const SetHandle set = set_of(kTwo);
    std::vector<std::thread> threads;
    threads.reserve(8);
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&] {
            for (int round = 0; round < 200; ++round) {
                const SetHandle other(token_trie_set_select(set.get(), nullptr));
                const SetHandle city(token_trie_set_select(other.get(), "city[]"));
                auto out = sized<token_trie_set_info>();
                EXPECT_EQ(token_trie_set_get_info(city.get(), &out), TOKEN_TRIE_OK);
            }
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    EXPECT_EQ(info(set).n_members, 3U);
}

TEST_F(AbiSet, OfAnotherVocabularyIsRefusedWhereItIsUsed) {
    ASSERT_EQ(set(stream_, kRead4), TOKEN_TRIE_OK);
    const std::string outside = payload_of({{"a", {kTinyVocab}}});
    EXPECT_EQ(set_of(outside, 0, vocab_), nullptr);
    EXPECT_EQ(token_trie_last_status(), TOKEN_TRIE_ERROR_VOCAB);
    const SetHandle unchecked = set_of(outside);
    ASSERT_NE(unchecked, nullptr) << "a set needs no vocabulary";
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_VOCAB, pick(stream_, unchecked, nullptr)),
              R"(leaf "a": tokens[0]: 263 is outside the vocabulary (263 tokens))");
    const std::string other = "sha256:" + std::string(64, '0');
    const Tokens tokens = {80};
    const std::array<std::uint64_t, 2> offsets = {0, 1};
    const SetHandle foreign(token_trie_set_from_tokens(tokens.data(), offsets.data(), 1, nullptr, other.c_str()));
    EXPECT_EQ(pick(stream_, foreign, nullptr), TOKEN_TRIE_ERROR_VOCAB);
    EXPECT_EQ(name_of(stream_), "READ") << "the trie before stays";
}

TEST_F(AbiSet, WhatThereIsNotIsRefusedByName) {
    const std::string no_b = R"(path: no descriptor has the path "b"; there is "action", "city[]")";
    const SetHandle two = set_of(kTwo);
    const auto refused = [](const token_trie_set * made) {
        EXPECT_EQ(made, nullptr);
        return std::string(token_trie_last_error());
    };
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, pick(stream_, two, "b")), no_b);
    EXPECT_EQ(refused(token_trie_set_select(two.get(), "b")), no_b);
    EXPECT_EQ(refused(token_trie_set_select(nullptr, "b")), "set: null");
    EXPECT_EQ(refused(token_trie_set_read(nullptr, 0, nullptr, 0)), "payload_json: null");
    EXPECT_EQ(refused(token_trie_set_read(nullptr, -1, kTwo.data(), kTwo.size())), "n_vocab: -1 is negative");
    EXPECT_EQ(refused(token_trie_set_read(nullptr, 0, "{}", 2)), "payload: the key \"descriptors\" is missing");
    const Tokens tokens = {80, 81};
    const std::array<std::uint64_t, 3> falling = {0, 2, 1};
    EXPECT_EQ(refused(token_trie_set_from_tokens(tokens.data(), falling.data(), 2, nullptr, nullptr)),
              "offsets[2]: 1 is less than the one before it");
    EXPECT_EQ(refused(token_trie_set_from_tokens(tokens.data(), falling.data() + 1, 1, nullptr, nullptr)),
              "offsets[0] must be 0, not 2");
    EXPECT_EQ(refused(token_trie_set_from_tokens(nullptr, falling.data(), 1, nullptr, nullptr)), "tokens: null");
    EXPECT_EQ(refused(token_trie_set_from_tokens(tokens.data(), nullptr, 1, nullptr, nullptr)), "offsets: null");
    const char * const none = nullptr;
    EXPECT_EQ(refused(token_trie_set_from_texts(vocab_, &none, 1)), "texts[0]: null");
    EXPECT_EQ(refused(token_trie_set_from_texts(nullptr, &none, 1)), "vocab: null");
    const std::string long_text(65536, 'a');
    const std::array<const char *, 2> texts = {"a", long_text.c_str()};
    EXPECT_EQ(refused(token_trie_set_from_texts(vocab_, texts.data(), texts.size())),
              "texts[1]: 65536 bytes; at most 65535");
    std::size_t n = 0;
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_set_get_member(two.get(), 3, nullptr, nullptr, 0, &n)),
              "i: 3 of 3 members");
    EXPECT_EQ(token_trie_set_get_info(two.get(), nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_EQ(token_trie_set_get_info(nullptr, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
}

}  // namespace
}  // namespace token_trie::test
