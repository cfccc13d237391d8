#include "answer.h"

#include "trie/cache.h"

#include <atomic>
#include <thread>

// The promise of token_trie.h that all but a sampler may be used from any thread; worth most under ThreadSanitizer.
namespace token_trie::test {
namespace {

void run_in_threads(unsigned n, const std::function<void(unsigned)> & work) {
    std::vector<std::thread> threads(n);
    for (unsigned i = 0; i < n; ++i) {
        threads[i] = std::thread(work, i);
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
}

// Twice as many payloads as the cache holds, so that 16 threads build, hit and evict all the time.
TEST(Threads, TriesSamplersAndCacheAreSafeAcrossThreads) {
    constexpr unsigned n_threads = 16;
    constexpr int n_rounds = 300;
    std::vector<std::string> payloads(2 * Cache::kCapacity);
    for (std::size_t i = 0; i < payloads.size(); ++i) {
        const auto token = static_cast<Token>(i);
        payloads[i] = payload_of({{"A", {token}}, {"B", {token, 1000}}});
    }
    std::atomic<int> n_wrong{0};
    const auto work = [&](unsigned seed) {
        std::mt19937 rng(seed);
        for (int round = 0; round < n_rounds; ++round) {
            const std::size_t i = rng() % payloads.size();
            const auto token = static_cast<Token>(i);
            const Sampler sampler(llama_sampler_init_token_trie(nullptr, payloads[i].c_str(), TOKEN_TRIE_GREEDY));
            const Sampler clone(llama_sampler_clone(sampler.get()));
            Candidates candidates(Candidates::Pairs{{2000, 1.0F}, {token, 0.5F}});
            llama_sampler_apply(clone.get(), candidates.get());
            n_wrong += candidates.ids() == Tokens({token}) ? 0 : 1;
            n_wrong += llama_sampler_init_token_trie(nullptr, "{", TOKEN_TRIE_GREEDY) == nullptr ? 0 : 1;
            auto stats = sized<token_trie_cache_stats>();
            n_wrong += token_trie_cache_get_stats(&stats) == TOKEN_TRIE_OK && stats.entries <= stats.capacity ? 0 : 1;
            if (rng() % 50 == 0) {
                token_trie_cache_clear();
            }
        }
    };
    run_in_threads(n_threads, work);
    EXPECT_EQ(n_wrong, 0);
}

// One trie, held by samplers of several threads after the cache has let go of it.
TEST(Threads, TheLastSamplerFreesTheTrie) {
    const std::string payload = payload_of({{"A", {1, 2, 3}}});
    std::vector<Sampler> samplers(8);
    for (Sampler & sampler : samplers) {
        sampler.reset(llama_sampler_init_token_trie(nullptr, payload.c_str(), TOKEN_TRIE_SAMPLED));
        ASSERT_NE(sampler, nullptr);
    }
    token_trie_cache_clear();
    run_in_threads(8, [&samplers](unsigned i) {
        const Sampler sampler = std::move(samplers[i]);
        for (const Token token : {1, 2, 3}) {
            llama_sampler_accept(sampler.get(), token);
        }
        EXPECT_EQ(state_of(sampler.get()).state, TOKEN_TRIE_COMPLETE);
    });
}

class ThreadsVocab : public WithVocab {};

TEST_F(ThreadsVocab, AVocabularyMayBeLookedIntoFromManyThreads) {
    const SetHandle set = set_of(payload_of({{"A", {1}}}));
    run_in_threads(4, [&](unsigned /*i*/) {
        auto params = sized<token_trie_params>();
        params.on_complete = TOKEN_TRIE_END;
        const Sampler sampler(llama_sampler_init_token_trie_set(vocab, set.get(), &params));
        EXPECT_NE(sampler, nullptr) << token_trie_last_error();
    });
}

TEST(Threads, EachThreadHasItsOwnLastError) {
    EXPECT_EQ(llama_sampler_init_token_trie(nullptr, nullptr, 0), nullptr);
    const std::string here = token_trie_last_error();
    EXPECT_EQ(here, "trie_descriptor_json: null");
    std::thread([] {
        EXPECT_STREQ(token_trie_last_error(), "");
        EXPECT_EQ(token_trie_cache_get_stats(nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    }).join();
    EXPECT_EQ(token_trie_last_error(), here);
}

// A stream on a tiny model, and a payload that takes some time to read.
class ThreadsStream : public WithTinyModel {
   public:
    ThreadsStream() {
        stream_ = open_tiny().release();
        const Tokens prompt = bytes("Do: ");
        EXPECT_EQ(token_trie_stream_prefill(stream_, prompt.data(), prompt.size()), TOKEN_TRIE_OK);
    }
    ~ThreadsStream() override { token_trie_stream_close(stream_); }
    ThreadsStream(const ThreadsStream &) = delete;
    ThreadsStream & operator=(const ThreadsStream &) = delete;

   protected:
    // Never the same one, which the cache would hold.
    static std::string long_payload() {
        static int n = 0;
        std::vector<Leaf> leaves;
        for (Token a = 3; a < kTinyVocab; ++a) {
            for (Token b = 3; b < kTinyVocab; ++b) {
                leaves.push_back({std::to_string(a * kTinyVocab + b) + " of " + std::to_string(n), {a, b}});
            }
        }
        ++n;
        return payload_of(leaves);
    }
    bool is_busy() const {
        auto state = sized<token_trie_stream_state>();
        return token_trie_stream_get_state(stream_, &state) == TOKEN_TRIE_ERROR_BUSY;
    }
    // Returns whether the stream was seen to be busy with it.
    bool runs_beside(const std::function<void()> & call, const std::function<void()> & once_busy) {
        std::atomic<bool> over{false};
        std::thread worker([&] {
            call();
            over = true;
        });
        bool busy = false;
        while (!over && !busy) {
            busy = is_busy();
        }
        once_busy();
        worker.join();
        return busy;
    }

    token_trie_stream * stream_ = nullptr;
};

TEST_F(ThreadsStream, ACancelOfAScoreStands) {
    for (const bool whole : {true, false}) {
        const SetHandle set = set_of(long_payload());
        token_trie_query query = query_of(set, whole ? TOKEN_TRIE_QUERY_SCORES : TOKEN_TRIE_QUERY_BEST);
        query.n_best = std::size_t{kTinyVocab - 3} * (kTinyVocab - 3);
        std::int32_t status = TOKEN_TRIE_OK;
        EXPECT_TRUE(runs_beside(
            [&] {
                AnswerHandle out;
                status = answer(stream_, query, out);
            },
            [&] { token_trie_stream_cancel(stream_); }));
        EXPECT_EQ(status, TOKEN_TRIE_ERROR_CANCELLED);
    }
}

TEST_F(ThreadsStream, NextInSeveralThreadsServesOneAndRefusesTheOthers) {
    const std::string payload = payload_of({{"A", {kRead}}, {"B", {kSend}}});
    ASSERT_EQ(set_trie(stream_, payload), TOKEN_TRIE_OK);
    std::atomic<int> n_wrong{0};
    run_in_threads(3, [&](unsigned /*i*/) {
        for (int i = 0; i < 50; ++i) {
            auto token = sized<token_trie_token>();
            std::int32_t stop = 0;
            const std::int32_t status = token_trie_stream_next(stream_, &token, &stop);
            const bool served = status == TOKEN_TRIE_OK && (token.id == kRead || token.id == kSend);
            n_wrong += served || status == TOKEN_TRIE_ERROR_BUSY ? 0 : 1;
        }
    });
    EXPECT_EQ(n_wrong, 0);
}

}  // namespace
}  // namespace token_trie::test
