// The loops that are timed, the same for every sampler of llama.cpp: each repetition on its own, in nanoseconds.

#include <llama.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#define BENCH_API extern "C" __attribute__((visibility("default")))

namespace {

using Clock = std::chrono::steady_clock;

std::int64_t nanoseconds_since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// The candidates that llama_sampler_sample builds from the logits before it applies a chain.
llama_token_data_array fill(std::vector<llama_token_data> & candidates, const float * logits) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        candidates[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
    }
    return {candidates.data(), candidates.size(), -1, false};
}

}  // namespace

// Leaves nothing of anyone's in the caches, as the forward pass between two steps does when it streams the weights.
BENCH_API void token_trie_bench_evict() {
    constexpr std::size_t line = 64;
    constexpr std::size_t more_than_a_cache = std::size_t{96} << 20U;
    static const std::vector<char> others(more_than_a_cache, 1);
    for (std::size_t i = 0; i < others.size(); i += line) {
        static_cast<void>(*static_cast<const volatile char *>(&others[i]));
    }
}

// n readings of a clock around nothing, to be taken off the others.
BENCH_API void token_trie_bench_clock(std::int32_t n, std::int64_t * out) {
    for (std::int32_t i = 0; i < n; ++i) {
        const Clock::time_point start = Clock::now();
        out[i] = nanoseconds_since(start);
    }
}

// llama_sampler_apply alone, on an array filled anew each time, so that caches hold what they hold in production.
// paths: n rows of depth tokens, each ended early by a negative one, accepted first; NULL stays at the beginning.
// cold: whether the caches are emptied before the array is filled.
BENCH_API void token_trie_bench_apply(llama_sampler * sampler,
                                      const float * logits,
                                      std::int32_t n_vocab,
                                      const llama_token * paths,
                                      std::int32_t depth,
                                      bool cold,
                                      std::int32_t n,
                                      std::int64_t * out) {
    std::vector<llama_token_data> candidates(static_cast<std::size_t>(n_vocab));
    for (std::int32_t i = 0; i < n; ++i) {
        llama_sampler_reset(sampler);
        for (std::int32_t k = 0; paths != nullptr && k < depth && paths[i * depth + k] >= 0; ++k) {
            llama_sampler_accept(sampler, paths[i * depth + k]);
        }
        if (cold) {
            token_trie_bench_evict();
        }
        llama_token_data_array array = fill(candidates, logits);
        const Clock::time_point start = Clock::now();
        llama_sampler_apply(sampler, &array);
        out[i] = nanoseconds_since(start);
    }
    llama_sampler_reset(sampler);
}

// The whole of llama_sampler_sample: llama.cpp's own fill of the array, the chain, and its accept.
BENCH_API void token_trie_bench_step(llama_sampler * chain, llama_context * ctx, std::int32_t n, std::int64_t * out) {
    for (std::int32_t i = 0; i < n; ++i) {
        llama_sampler_reset(chain);
        const Clock::time_point start = Clock::now();
        llama_sampler_sample(chain, ctx, -1);
        out[i] = nanoseconds_since(start);
    }
    llama_sampler_reset(chain);
}
