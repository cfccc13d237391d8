#include "llama/vocab.h"

#include "abi_stream_fixture.h"

namespace token_trie::test {
namespace {

class StreamUntil : public AbiStream {
   protected:
    struct Written {
        std::int32_t status = 0;
        std::int32_t stop_string = 0;
        std::string text;  // the sequence's, behind the prompt
        Tokens tokens;     // likewise
        std::int32_t stop = 0;
        std::string passed_on;
    };
    static Written until(const Handle & stream,
                         const std::vector<const char *> & stops,
                         std::size_t max_tokens = 24,
                         float temperature = 0,
                         const Tokens & prompt = kPrompt) {
        Written out;
        Listener listener;
        EXPECT_EQ(prefill(stream, prompt), TOKEN_TRIE_OK);
        EXPECT_EQ(set_sampling(stream.get(), temperature), TOKEN_TRIE_OK);
        out.status = token_trie_stream_generate_until(stream.get(), static_cast<std::int32_t>(max_tokens), stops.data(),
                                                      stops.size(), Listener::call, &listener, &out.stop_string);
        std::size_t n = 0;
        EXPECT_EQ(token_trie_stream_get_tokens(stream.get(), nullptr, 0, &n), TOKEN_TRIE_OK);
        Tokens tokens(n);
        EXPECT_EQ(token_trie_stream_get_tokens(stream.get(), tokens.data(), n, &n), TOKEN_TRIE_OK);
        out.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end());
        out.text = detokenize(tiny_vocab(), out.tokens);
        out.stop = state_of(stream).stop;
        out.passed_on = listener.text;
        return out;
    }

    const Handle stream_ = open();
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

TEST_F(StreamUntil, EndsWhereASpanBegins) {
    token_trie_params params = end_params();
    const Tokens marker = {'-', '>'};
    params.start_after = marker.data();
    params.n_start_after = marker.size();
    params.max_before = 7;
    ASSERT_EQ(token_trie_stream_set_token_trie(stream_.get(), set_of(kRead4).get(), &params), TOKEN_TRIE_OK);
    const Written out = until(stream_, {"never"});
    EXPECT_EQ(out.stop, TOKEN_TRIE_STOP_COMPLETE);
    EXPECT_EQ(out.stop_string, -1);
    ASSERT_LE(out.tokens.size(), 9U);
    EXPECT_EQ(Tokens(out.tokens.end() - 2, out.tokens.end()), marker);
    EXPECT_EQ(state_of(stream_).span, TOKEN_TRIE_CONSTRAINED);
    // And the span follows.
    ASSERT_EQ(token_trie_stream_generate(stream_.get(), 24, nullptr, nullptr), TOKEN_TRIE_OK);
    EXPECT_EQ(state_of(stream_).stop, TOKEN_TRIE_STOP_COMPLETE);
    EXPECT_GE(state_of(stream_).leaf, 0);
}

// A host that gives the marker as text too finds it in any tokens, and its own where they are.
TEST_F(StreamUntil, TheMarkersOwnTokensStayAlsoWhereTheySpellAStopString) {
    token_trie_params params = end_params();
    const Tokens marker = {'-', '>'};
    params.start_after = marker.data();
    params.n_start_after = marker.size();
    params.max_before = 0;
    ASSERT_EQ(token_trie_stream_set_token_trie(stream_.get(), set_of(kRead4).get(), &params), TOKEN_TRIE_OK);
    const std::string text = detokenize(tiny_vocab(), marker);
    const Written out = until(stream_, {text.c_str()});
    EXPECT_EQ(out.stop, TOKEN_TRIE_STOP_COMPLETE);
    EXPECT_EQ(out.stop_string, -1);
    EXPECT_EQ(out.tokens, marker);
    EXPECT_EQ(out.passed_on, text);
    EXPECT_EQ(state_of(stream_).span, TOKEN_TRIE_CONSTRAINED);
}

// A token in which a stop string stands may be one, and what stands there before it several.
TEST_F(StreamUntil, NoMoreTokensThanAskedForOrThereIsRoomFor) {
    const std::string whole = "SEND_MAIL";
    ASSERT_EQ(token_trie_stream_set_grammar(stream_.get(), "root ::= \"SEND_MAIL\"", nullptr), TOKEN_TRIE_OK);
    const std::size_t n_ctx = state_of(stream_).n_context_max;
    for (std::uint32_t seed = 0; seed < 300; ++seed) {
        const std::string stop = whole.substr(seed % whole.size());
        const std::size_t max_tokens = seed / 9 % 10;
        for (const bool is_full : {false, true}) {
            SCOPED_TRACE(::testing::Message() << stop << ", " << max_tokens << " tokens, seed " << seed);
            ASSERT_EQ(set_sampling(stream_.get(), 1, 1, seed), TOKEN_TRIE_OK);
            const Tokens prompt(is_full ? n_ctx - max_tokens : 10, 'x');
            const Written out = until(stream_, {stop.c_str()}, is_full ? 24 : max_tokens, 1, prompt);
            EXPECT_LE(out.tokens.size(), max_tokens);
            EXPECT_EQ(out.text, whole.substr(0, out.text.size()));
            if (out.status != TOKEN_TRIE_OK) {
                EXPECT_EQ(out.status, TOKEN_TRIE_ERROR_CONTEXT);
                EXPECT_TRUE(is_full);
                EXPECT_EQ(out.text, out.passed_on);
            } else if (out.stop_string == 0) {
                EXPECT_EQ(out.stop, TOKEN_TRIE_STOP_STRING);
                EXPECT_EQ(out.text + stop, whole);
            } else {
                EXPECT_EQ(out.stop, TOKEN_TRIE_STOP_MAX_TOKENS);
            }
        }
    }
}

TEST_F(StreamUntil, WhatIsNoTextIsRefused) {
    const auto refused = [&](const std::vector<const char *> & stops) {
        return refusal(
            TOKEN_TRIE_ERROR_ARGUMENT,
            token_trie_stream_generate_until(stream_.get(), 1, stops.data(), stops.size(), nullptr, nullptr, nullptr));
    };
    EXPECT_EQ(refused({"a", ""}), "stop_strings[1]: empty");
    EXPECT_EQ(refused({nullptr}), "stop_strings[0]: null");
    EXPECT_EQ(state_of(stream_).n_tokens, kPrompt.size());
}

}  // namespace
}  // namespace token_trie::test
