#include "abi_stream_fixture.h"

#include <atomic>
#include <thread>

namespace token_trie::test {
namespace {

class AbiFork : public AbiStream {
   protected:
    static Handle fork(const Handle & stream) {
        Handle out(token_trie_stream_fork(stream.get()));
        EXPECT_NE(out, nullptr) << token_trie_last_error();
        return out;
    }
    static Tokens tokens_of(const Handle & stream) {
        std::size_t n = 0;
        EXPECT_EQ(token_trie_stream_get_tokens(stream.get(), nullptr, 0, &n), TOKEN_TRIE_OK);
        Tokens tokens(n);
        EXPECT_EQ(token_trie_stream_get_tokens(stream.get(), tokens.data(), n, &n), TOKEN_TRIE_OK);
        return tokens;
    }
};

TEST_F(AbiFork, GoesOnAsTheStreamWould) {
    auto params = sized<token_trie_stream_params>();
    auto sampling = sized<token_trie_sampling>();
    params.sampling = &sampling;
    sampling.seed = 7;
    sampling.penalty_last_n = 8;
    sampling.penalty_repeat = 1.5F;
    sampling.temperature = 2;
    const Handle stream = open(params);
    ASSERT_EQ(token_trie_stream_set_grammar(stream.get(), "root ::= [a-z ]*", nullptr), TOKEN_TRIE_OK);
    ASSERT_EQ(token_trie_stream_generate(stream.get(), 3, nullptr, nullptr), TOKEN_TRIE_OK);
    const Handle other = fork(stream);
    EXPECT_EQ(tokens_of(other), tokens_of(stream));
    EXPECT_EQ(state_of(other).n_free, 0U) << "counts are its own";
    for (const Handle * each : {&stream, &other}) {
        for (int i = 0; i < 4; ++i) {
            ASSERT_EQ(token_trie_stream_generate(each->get(), 2, nullptr, nullptr), TOKEN_TRIE_OK);
        }
    }
    EXPECT_GT(tokens_of(stream).size(), 7U);
    EXPECT_EQ(tokens_of(other), tokens_of(stream));
}

TEST_F(AbiFork, KeepsItsPlaceInTheTrie) {
    const Handle stream = open();
    ASSERT_EQ(set(stream, kReadOrSend), TOKEN_TRIE_OK);
    ASSERT_EQ(token_trie_stream_generate(stream.get(), 2, nullptr, nullptr), TOKEN_TRIE_OK);
    const Handle other = fork(stream);
    token_trie_stream_clear_token_trie(stream.get());
    EXPECT_EQ(state_of(other).span, TOKEN_TRIE_CONSTRAINED);
    EXPECT_EQ(text_of(other).size(), 2U);
    EXPECT_EQ(state_of(other).span, TOKEN_TRIE_COMPLETE);
    EXPECT_EQ(state_of(stream).span, -1);
}

TEST_F(AbiFork, OutlivesTheStreamAndTheOtherWayRound) {
    for (const bool first : {true, false}) {
        Handle stream = open();
        Handle other = fork(stream);
        (first ? stream : other).reset();
        const Handle & left = first ? other : stream;
        EXPECT_EQ(prefill(left, bytes("Do: more")), TOKEN_TRIE_OK);
        EXPECT_EQ(token_trie_stream_generate(left.get(), 3, nullptr, nullptr), TOKEN_TRIE_OK);
    }
}

TEST_F(AbiFork, OfNothingAndOfWhatIsClosedIsRefused) {
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_fork(nullptr)), "stream: null");
    Handle stream = open();
    token_trie_stream * closed = stream.get();
    stream.reset();
    EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_ARGUMENT, token_trie_stream_fork(closed)), "stream: closed, or never opened");
}

TEST_F(AbiFork, IsRefusedWhileTheOtherIsInACall) {
    const Handle stream = open();
    Handle other = fork(stream);
    Listener listener;
    auto state = sized<token_trie_stream_state>();
    listener.on_token = [&](const token_trie_token & /*token*/) {
        EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_BUSY, prefill(other, kPrompt)),
                  "another stream on this context, which was forked, is in a call");
        EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_BUSY, token_trie_stream_fork(other.get())),
                  "another stream on this context, which was forked, is in a call");
        refusal(TOKEN_TRIE_ERROR_BUSY, token_trie_stream_get_state(other.get(), &state));
        token_trie_stream_cancel(other.get());
        return true;
    };
    EXPECT_EQ(generate(stream, listener, 3), TOKEN_TRIE_OK);
    EXPECT_EQ(listener.tokens.size(), 3U) << "to cancel the one does not end the other";
    EXPECT_EQ(prefill(other, kPrompt), TOKEN_TRIE_OK);
}

TEST_F(AbiFork, ClosedInACallOfTheOtherGoesWithIt) {
    const Handle stream = open();
    Handle other = fork(stream);
    Listener listener;
    listener.on_token = [&](const token_trie_token & /*token*/) {
        other.reset();
        return true;
    };
    EXPECT_EQ(generate(stream, listener, 3), TOKEN_TRIE_OK);
    EXPECT_EQ(listener.tokens.size(), 3U);
    EXPECT_EQ(token_trie_stream_generate(stream.get(), 3, nullptr, nullptr), TOKEN_TRIE_OK);
}

TEST_F(AbiFork, FromManyThreadsOneIsInACallAtATime) {
    const Handle stream = open_file(file_params());
    ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
    std::vector<Handle> forks;
    forks.reserve(4);
    for (int i = 0; i < 4; ++i) {
        forks.push_back(fork(stream));
    }
    std::atomic<int> n_done{0};
    std::vector<std::thread> threads;
    threads.reserve(forks.size());
    for (Handle & each : forks) {
        threads.emplace_back([&] {
            for (int n = 0; n < 20;) {
                const std::int32_t status = token_trie_stream_generate(each.get(), 1, nullptr, nullptr);
                n += status == TOKEN_TRIE_OK ? 1 : 0;
                EXPECT_TRUE(status == TOKEN_TRIE_OK || status == TOKEN_TRIE_ERROR_BUSY) << token_trie_last_error();
                std::this_thread::yield();
            }
            each.reset();
            ++n_done;
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    EXPECT_EQ(n_done, 4);
    EXPECT_EQ(tokens_of(stream), kPrompt);
}

}  // namespace
}  // namespace token_trie::test
