#include "sampler/vocab.h"

#include "abi_stream_fixture.h"

namespace token_trie::test {
namespace {

class StreamUntil : public AbiStream {
   protected:
    struct Written {
        std::int32_t stop_string = 0;
        std::string text;  // of the sequence, behind the prompt
        std::int32_t stop = 0;
    };
    static Written until(const Handle & stream, const std::vector<const char *> & stops, std::int32_t max_tokens = 24) {
        Written out;
        EXPECT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
        EXPECT_EQ(token_trie_stream_generate_until(stream.get(), max_tokens, 0, 1, stops.data(), stops.size(), nullptr,
                                                   nullptr, &out.stop_string),
                  TOKEN_TRIE_OK)
            << token_trie_last_error();
        std::size_t n = 0;
        EXPECT_EQ(token_trie_stream_get_tokens(stream.get(), nullptr, 0, &n), TOKEN_TRIE_OK);
        Tokens tokens(n);
        EXPECT_EQ(token_trie_stream_get_tokens(stream.get(), tokens.data(), n, &n), TOKEN_TRIE_OK);
        out.text = detokenize(token_trie_stream_get_vocab(stream.get()),
                              {tokens.begin() + static_cast<std::ptrdiff_t>(kPrompt.size()), tokens.end()});
        out.stop = state_of(stream).stop;
        return out;
    }

    const Context context_ = tiny_stream_context();
    const Handle stream_ = open(context_);
};

TEST_F(StreamUntil, FindsATextWhereverItLiesAndTakesItOut) {
    ASSERT_EQ(token_trie_stream_set_grammar(stream_.get(), "root ::= \"a SEND_MAIL b READ_FILE\"", nullptr),
              TOKEN_TRIE_OK);
    const std::string whole = "a SEND_MAIL b READ_FILE";
    EXPECT_EQ(until(stream_, {}).text, whole);
    for (std::size_t begin = 0; begin < whole.size(); ++begin) {
        for (const std::size_t length : {1U, 2U, 5U}) {
            const std::string stop = whole.substr(begin, length);
            SCOPED_TRACE(stop);
            const Written out = until(stream_, {"never", stop.c_str()});
            EXPECT_EQ(out.text, whole.substr(0, whole.find(stop)));
            EXPECT_EQ(out.stop_string, 1);
            EXPECT_EQ(out.stop, TOKEN_TRIE_STOP_STRING);
        }
    }
}

TEST_F(StreamUntil, SaysWhyItEnded) {
    ASSERT_EQ(token_trie_stream_set_grammar(stream_.get(), "root ::= \"abc\"", nullptr), TOKEN_TRIE_OK);
    EXPECT_EQ(until(stream_, {"x"}).stop, TOKEN_TRIE_STOP_END);
    EXPECT_EQ(until(stream_, {"x"}, 2).stop, TOKEN_TRIE_STOP_MAX_TOKENS);
    EXPECT_EQ(until(stream_, {"x"}).stop_string, -1);
    EXPECT_EQ(until(stream_, {"bc", "b"}).stop_string, 1);
}

TEST_F(StreamUntil, WhatIsNoTextIsRefused) {
    const auto refused = [&](const std::vector<const char *> & stops) {
        return refusal(TOKEN_TRIE_ERROR_ARGUMENT,
                       token_trie_stream_generate_until(stream_.get(), 1, 0, 1, stops.data(), stops.size(), nullptr,
                                                        nullptr, nullptr));
    };
    EXPECT_EQ(refused({"a", ""}), "stop_strings[1]: empty");
    EXPECT_EQ(refused({nullptr}), "stop_strings[0]: null");
    EXPECT_EQ(state_of(stream_).n_tokens, kPrompt.size());
}

}  // namespace
}  // namespace token_trie::test
