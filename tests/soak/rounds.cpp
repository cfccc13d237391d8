#include "answer.h"
#include "soak.h"

#include "trie/cache.h"

#include <array>
#include <thread>

namespace token_trie::soak {
namespace {

constexpr std::size_t kCases = 64;
constexpr std::int32_t kMaxTokens = 12;

token_trie_stream_params file_params() {
    auto params = sized<token_trie_stream_params>();
    params.n_ctx = 128;
    params.n_batch = 64;
    params.n_threads = 1;
    return params;
}

Handle open_file() {
    const token_trie_stream_params params = file_params();
    return Handle(token_trie_stream_open_file(tiny_model_path().c_str(), &params));
}

Handle open_model() { return open_tiny(tiny_context_params(128)); }

// Work is given the numbers below n, each once, and the thread's own state.
template <typename State>
void share(unsigned n_threads, std::uint64_t n, const std::function<void(std::uint64_t, State &)> & work) {
    std::atomic<std::uint64_t> next{0};
    std::vector<std::thread> threads;
    threads.reserve(n_threads);
    for (unsigned i = 0; i < n_threads; ++i) {
        threads.emplace_back([&] {
            State state{};
            for (std::uint64_t index = next++; index < n; index = next++) {
                work(index, state);
            }
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
}

}  // namespace

// Empty, and no answer of any set, where it fails.
Tokens Rounds::answer(const Case & given, token_trie_stream * stream) {
    const token_trie_params params = params_of(given.options, given.mode);
    Tokens out;
    const auto keep = [](const token_trie_token * token, void * user) {
        static_cast<Tokens *>(user)->push_back(token->id);
        return true;
    };
    const bool done =
        stream != nullptr &&
        token_trie_stream_prefill(stream, given.prompt.data(), given.prompt.size()) == TOKEN_TRIE_OK &&
        token_trie_stream_set_token_trie(stream, set_of(given.payload, 0, token_trie_stream_get_vocab(stream)).get(),
                                         &params) == TOKEN_TRIE_OK &&
        set_sampling(stream, 1, 1, given.seed) == TOKEN_TRIE_OK &&
        token_trie_stream_generate(stream, kMaxTokens, keep, &out) == TOKEN_TRIE_OK;
    return done ? out : Tokens{};
}

Rounds::Rounds(unsigned n_threads) : n_threads_(n_threads) {
    for (std::size_t i = 0; i < kCases; ++i) {
        std::mt19937 rng(static_cast<std::uint32_t>(i));
        const RandomCase random(rng, kTinyVocab);
        Case made{payload_of(random.members),
                  random.options,
                  one_in(rng, 2) ? Mode::greedy : Mode::sampled,
                  static_cast<std::uint32_t>(rng()),
                  bytes("Do " + std::to_string(i) + ": "),
                  {}};
        made.expected[0] = answer(made, open_model().get());
        made.expected[1] = answer(made, open_file().get());
        cases_.push_back(std::move(made));
    }
}

void Rounds::run(std::uint32_t seed, std::uint64_t n, Findings & findings, const Tick & tick) const {
    struct Own {
        Handle stream;
    };
    share<Own>(n_threads_, n, [&](std::uint64_t index, Own & own) {
        std::mt19937 rng = generator(seed, index);
        const Case & given = cases_[below(rng, cases_.size())];
        const bool on_file = one_in(rng, 16);
        if (own.stream == nullptr || one_in(rng, 8)) {
            own.stream = open_model();
        }
        const Tokens got = answer(given, on_file ? open_file().get() : own.stream.get());
        if (got.empty() || got != given.expected[on_file ? 1 : 0]) {
            findings.add("round " + std::to_string(index) + ": generated \"" + name_of(got) + "\", alone \"" +
                         name_of(given.expected[on_file ? 1 : 0]) + "\" " +
                         (got.empty() ? token_trie_last_error() : ""));
        }
        tick();
    });
}

void run_cache(unsigned n_threads, std::uint32_t seed, std::uint64_t n, Findings & findings, const Tick & tick) {
    std::vector<std::string> payloads(3 * Cache::kCapacity);
    for (std::size_t i = 0; i < payloads.size(); ++i) {
        const auto token = static_cast<Token>(3 + i % 256);
        payloads[i] = test::payload_of({{std::to_string(i), {token}}, {"other", {token, kRead}}});
    }
    const auto stats_now = [] {
        auto stats = sized<token_trie_cache_stats>();
        token_trie_cache_get_stats(&stats);
        return stats;
    };
    const token_trie_cache_stats before = stats_now();
    struct Nothing {};
    share<Nothing>(n_threads, n, [&](std::uint64_t index, Nothing & /*own*/) {
        std::mt19937 rng = generator(seed, index);
        const std::size_t i = below(rng, one_in(rng, 2) ? 64 : payloads.size());
        const auto expected = static_cast<Token>(3 + i % 256);
        const Sampler sampler(llama_sampler_init_token_trie(tiny_vocab(), payloads[i].c_str(), TOKEN_TRIE_GREEDY));
        Candidates candidates(Candidates::Pairs{{kSend, 1.0F}, {expected, 0.5F}});
        if (sampler != nullptr) {
            llama_sampler_apply(sampler.get(), candidates.get());
        }
        const token_trie_cache_stats stats = stats_now();
        if (sampler == nullptr || candidates.ids() != Tokens({expected}) || stats.entries > stats.capacity) {
            findings.add("cache, call " + std::to_string(index) + ": " + token_trie_last_error());
        }
        if (one_in(rng, 500)) {
            token_trie_cache_clear();
        }
        tick();
    });
    const token_trie_cache_stats after = stats_now();
    if (after.hits + after.misses != before.hits + before.misses + n || after.hits == before.hits ||
        after.evictions == before.evictions) {
        findings.add("cache: " + std::to_string(after.hits - before.hits) + " hits and " +
                     std::to_string(after.misses - before.misses) + " misses of " + std::to_string(n) + " calls");
    }
}

}  // namespace token_trie::soak
