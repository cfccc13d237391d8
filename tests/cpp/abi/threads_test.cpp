#include "abi_stream_fixture.h"

#include <atomic>
#include <fstream>
#include <thread>

// Calls from callbacks, from other threads, and without an end.
namespace token_trie::test {
namespace {

class AbiStreamThreads : public AbiStream {};

TEST_F(AbiStreamThreads, ACallFromTheCallbackIsBusyExceptCancel) {
    const Handle stream = open();
    ASSERT_EQ(set(stream, kRead4), TOKEN_TRIE_OK);
    Listener listener;
    listener.on_token = [&](const token_trie_token & /*token*/) {
        token_trie_stream * s = stream.get();
        auto state = sized<token_trie_stream_state>();
        auto next = sized<token_trie_token>();
        for (const std::int32_t status :
             {prefill(stream, kPrompt), set(stream, kReadOrSend), token_trie_stream_set_grammar(s, nullptr, nullptr),
              set_sampling(s, 0), token_trie_stream_generate(s, 1, nullptr, nullptr),
              token_trie_stream_next(s, &next, &state.stop), token_trie_stream_get_state(s, &state)}) {
            EXPECT_EQ(refusal(TOKEN_TRIE_ERROR_BUSY, status),
                      "the stream is in a call already, of another thread or of its own callback");
        }
        token_trie_stream_clear_token_trie(s);
        EXPECT_EQ(token_trie_last_status(), TOKEN_TRIE_ERROR_BUSY);
        EXPECT_NE(token_trie_stream_get_vocab(s), nullptr);
        return true;
    };
    EXPECT_EQ(generate(stream, listener), TOKEN_TRIE_OK);
    EXPECT_EQ(listener.text, "READ");
    listener.on_token = [&](const token_trie_token & /*token*/) {
        token_trie_stream_cancel(stream.get());
        return true;
    };
    EXPECT_EQ(generate(stream, listener), TOKEN_TRIE_OK);
    EXPECT_EQ(listener.text, "READR");
    EXPECT_EQ(state_of(stream).stop, TOKEN_TRIE_STOP_CANCELLED);
}

TEST_F(AbiStreamThreads, ACallbackMayCloseItsStream) {
    for (const bool owned : {false, true}) {
        Handle stream = owned ? open_file(file_params()) : open();
        ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
        ASSERT_EQ(set(stream, kRead4), TOKEN_TRIE_OK);
        token_trie_stream * handle = stream.release();
        Listener listener;
        listener.on_token = [&](const token_trie_token & token) {
            token_trie_stream_close(handle);
            EXPECT_EQ(token.text[0], 'R') << "still valid";
            return true;
        };
        EXPECT_EQ(token_trie_stream_generate(handle, 32, Listener::call, &listener), TOKEN_TRIE_OK);
        EXPECT_EQ(listener.text, "R") << "cancelled";
        expect_all_refused(handle, "stream: closed, or never opened");
    }
}

// A list that nothing ends, so that only the other thread can.
token_trie_params endless(const llama_token & newline) {
    auto params = sized<token_trie_params>();
    params.on_complete = TOKEN_TRIE_RESTART;
    params.end_tokens = &newline;
    params.n_end_tokens = 1;
    return params;
}

TEST_F(AbiStreamThreads, CloseFromAnotherThreadWaitsForTheCallItCancels) {
    for (int round = 0; round < 50; ++round) {
        token_trie_stream * handle = open().release();
        std::atomic<bool> begun{false};
        std::thread worker([&] {
            Listener listener;
            listener.on_token = [&](const token_trie_token & /*token*/) {
                begun = true;
                return true;
            };
            // Until it is refused; whatever the moment.
            std::int32_t status = TOKEN_TRIE_OK;
            while (status == TOKEN_TRIE_OK) {
                status = token_trie_stream_prefill(handle, kPrompt.data(), kPrompt.size());
                if (status == TOKEN_TRIE_OK) {
                    status = token_trie_stream_generate(handle, 100, Listener::call, &listener);
                }
            }
            EXPECT_TRUE(status == TOKEN_TRIE_ERROR_ARGUMENT || status == TOKEN_TRIE_ERROR_CANCELLED)
                << token_trie_last_error();
        });
        while (!begun) {
            std::this_thread::yield();
        }
        token_trie_stream_close(handle);
        worker.join();
    }
}

TEST_F(AbiStreamThreads, CancelFromAnotherThreadEndsGenerate) {
    const Handle stream = open();
    const llama_token newline = bytes("\n")[0];
    const token_trie_params params = endless(newline);
    ASSERT_EQ(token_trie_stream_set_token_trie(stream.get(), set_of(kReadOrSend).get(), &params), TOKEN_TRIE_OK);
    std::atomic<bool> begun{false};
    std::atomic<bool> cancelled{false};
    Listener listener;
    listener.on_token = [&](const token_trie_token & /*token*/) {
        begun = true;
        while (!cancelled) {
            std::this_thread::yield();
        }
        return true;
    };
    std::thread other([&] {
        while (!begun) {
            std::this_thread::yield();
        }
        token_trie_stream_cancel(stream.get());
        cancelled = true;
    });
    EXPECT_EQ(generate(stream, listener, 200), TOKEN_TRIE_OK);
    other.join();
    EXPECT_EQ(listener.tokens.size(), 1U);
    EXPECT_EQ(state_of(stream).stop, TOKEN_TRIE_STOP_CANCELLED);
}

TEST_F(AbiStreamThreads, TwoHandlesOnOneModelInTwoThreads) {
    const Handle handles[] = {open(), open()};
    std::string expected;
    {
        const Handle stream = open();
        ASSERT_EQ(set(stream, kReadOrSend), TOKEN_TRIE_OK);
        expected = text_of(stream);
        expected += text_of(stream);
    }
    std::atomic<int> n_wrong{0};
    const auto work = [&](const Handle & stream) {
        for (int round = 0; round < 50; ++round) {
            Listener listener;
            n_wrong += prefill(stream, kPrompt) == TOKEN_TRIE_OK ? 0 : 1;
            n_wrong += set(stream, kReadOrSend) == TOKEN_TRIE_OK ? 0 : 1;
            n_wrong += generate(stream, listener) == TOKEN_TRIE_OK ? 0 : 1;
            n_wrong += generate(stream, listener) == TOKEN_TRIE_OK ? 0 : 1;
            n_wrong += listener.text == expected ? 0 : 1;
        }
    };
    std::thread one([&] { work(handles[0]); });
    std::thread two([&] { work(handles[1]); });
    one.join();
    two.join();
    EXPECT_EQ(n_wrong, 0);
}

TEST_F(AbiStreamThreads, OneHandleInManyThreadsIsBusyOrServes) {
    const Handle stream = open();
    std::vector<std::thread> threads;
    threads.reserve(4);
    std::atomic<int> n_wrong{0};
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            const auto check = [&](std::int32_t status) {
                n_wrong += status == TOKEN_TRIE_OK || status == TOKEN_TRIE_ERROR_BUSY ? 0 : 1;
            };
            for (int round = 0; round < 100; ++round) {
                auto state = sized<token_trie_stream_state>();
                check(set(stream, kReadOrSend));
                check(token_trie_stream_generate(stream.get(), 1, nullptr, nullptr));
                check(token_trie_stream_get_state(stream.get(), &state));
                token_trie_stream_clear_token_trie(stream.get());
                token_trie_stream_cancel(stream.get());
                const std::int32_t status = prefill(stream, kPrompt);
                check(status == TOKEN_TRIE_ERROR_CANCELLED ? TOKEN_TRIE_OK : status);
            }
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    EXPECT_EQ(n_wrong, 0);
    EXPECT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
    EXPECT_EQ(set(stream, kRead4), TOKEN_TRIE_OK);
    EXPECT_EQ(text_of(stream), "READ");
}

TEST_F(AbiStreamThreads, AProcessMayEndWithStreamsOpen) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            token_trie_stream_close(nullptr);  // before llama.cpp has begun
            const token_trie_stream_params params = file_params();
            token_trie_stream * stream = token_trie_stream_open_file(tiny_model_path().c_str(), &params);
            std::exit(stream != nullptr ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "");
}

// Pages that this process holds in memory; 0 where they tell nothing, as sanitizers keep what was freed.
std::size_t resident_pages() {
    std::size_t size = 0;
    std::size_t resident = 0;
    std::ifstream("/proc/self/statm") >> size >> resident;
    return kSanitized ? 0 : resident;
}

TEST_F(AbiStreamThreads, TenThousandRoundsTakeNoMoreMemory) {
    const Handle stream = open();
    std::vector<std::string> payloads(200);  // more than the cache holds
    for (std::size_t i = 0; i < payloads.size(); ++i) {
        const auto token = static_cast<Token>(3 + i);
        payloads[i] = payload_of({{"A", {kRead, token}}, {"B", {kSend, token}}});
    }
    const auto rounds = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            ASSERT_EQ(set(stream, payloads[i % payloads.size()], static_cast<int>(i % 2)), TOKEN_TRIE_OK);
            const auto max_tokens = static_cast<std::int32_t>(i % 3);
            ASSERT_EQ(token_trie_stream_generate(stream.get(), max_tokens, nullptr, nullptr), TOKEN_TRIE_OK);
            token_trie_stream_clear_token_trie(stream.get());
            if (i % 100 == 0) {
                ASSERT_EQ(token_trie_stream_set_grammar(stream.get(), "root ::= [a-z]+", nullptr), TOKEN_TRIE_OK);
                ASSERT_EQ(prefill(stream, kPrompt), TOKEN_TRIE_OK);
            }
        }
    };
    rounds(1000);
    const std::size_t before = resident_pages();
    rounds(10000);
    EXPECT_LE(resident_pages(), before + 256);
}

}  // namespace
}  // namespace token_trie::test
