#include "abi_stream_fixture.h"

#include "trie/cache.h"

namespace token_trie::test {
namespace {

class AbiPaths : public AbiStream {
   protected:
    static inline const std::string kTwo =
        R"({"descriptors": [{"path": "action", "leaves": [{"name": "get", "tokens": [80, 81]}]},)"
        R"({"path": "city[]", "leaves": [{"name": "Oslo", "tokens": [90]}]},)"
        R"({"path": "action", "leaves": [{"name": "set", "tokens": [82]}]}]})";

    static std::int32_t give(const Handle & stream, const std::string & payload) {
        return token_trie_stream_set_payload(stream.get(), payload.data(), payload.size());
    }
    static std::int32_t pick(const Handle & stream, const char * path) {
        token_trie_params params = end_params();
        params.path = path;
        return token_trie_stream_set_token_trie_ext(stream.get(), nullptr, 0, &params);
    }
    static std::string name_of(const Handle & stream) {
        EXPECT_EQ(token_trie_stream_generate(stream.get(), 8, 0, 1, nullptr, nullptr), TOKEN_TRIE_OK);
        return state_of(stream).leaf_name;
    }

    const Context context_ = tiny_stream_context();
    const Handle stream_ = open(context_);
};

TEST_F(AbiPaths, AreSetOneAfterTheOther) {
    ASSERT_EQ(give(stream_, kTwo), TOKEN_TRIE_OK) << token_trie_last_error();
    for (int round = 0; round < 2; ++round) {
        ASSERT_EQ(pick(stream_, "city[]"), TOKEN_TRIE_OK) << token_trie_last_error();
        EXPECT_EQ(name_of(stream_), "Oslo");
        ASSERT_EQ(pick(stream_, "action"), TOKEN_TRIE_OK) << token_trie_last_error();
        const std::string name = name_of(stream_);
        EXPECT_TRUE(name == "get" || name == "set");
    }
}

TEST_F(AbiPaths, AreNotReadAgain) {
    ASSERT_EQ(give(stream_, kTwo), TOKEN_TRIE_OK);
    const Cache::Stats before = Cache::shared().stats();
    ASSERT_EQ(pick(stream_, "action"), TOKEN_TRIE_OK);
    EXPECT_EQ(Cache::shared().stats().hits, before.hits);
    EXPECT_EQ(Cache::shared().stats().misses, before.misses);
    EXPECT_EQ(Cache::shared().get(kTwo, "action", 0)->n_leaves(), 2U);
    EXPECT_EQ(Cache::shared().stats().hits, before.hits + 1) << "what is read once is there for others";
}

TEST_F(AbiPaths, OfAnotherVocabularyAreRefusedAtOnce) {
    ASSERT_EQ(give(stream_, kRead4), TOKEN_TRIE_OK);
    const std::string outside = payload_of({{"a", {kTinyVocab}}});
    EXPECT_NE(refusal(TOKEN_TRIE_ERROR_VOCAB, give(stream_, outside)), "");
    EXPECT_EQ(pick(stream_, nullptr), TOKEN_TRIE_OK) << "the payload before is kept";
}

TEST_F(AbiPaths, ThatThereAreNoneOfAreRefused) {
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, pick(stream_, "action")),
              "payload_json: null, and the stream was given no payload");
    ASSERT_EQ(give(stream_, kTwo), TOKEN_TRIE_OK);
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, pick(stream_, "b")), R"(path: no descriptor has the path "b")");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, pick(stream_, nullptr)), "path: null, and the payload has several");
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_PAYLOAD, give(stream_, "{}")), "payload: the key \"descriptors\" is missing");
    EXPECT_EQ(pick(stream_, "action"), TOKEN_TRIE_OK) << "the payload before is kept";
    ASSERT_EQ(give(stream_, kRead4), TOKEN_TRIE_OK);
    EXPECT_EQ(pick(stream_, nullptr), TOKEN_TRIE_OK) << "the only path there is";
    ASSERT_EQ(token_trie_stream_set_payload(stream_.get(), nullptr, 0), TOKEN_TRIE_OK);
    EXPECT_EQ(name_of(stream_), "READ") << "the trie that is set stays";
    EXPECT_EQ(pick(stream_, nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
}

}  // namespace
}  // namespace token_trie::test
