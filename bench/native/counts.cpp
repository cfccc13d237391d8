// Counts what a process asks of llama.cpp. Preloaded, these functions stand before llama.cpp's own, which they call.

#include <dlfcn.h>
#include <ggml-backend.h>
#include <llama.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#define BENCH_API extern "C" __attribute__((visibility("default")))

namespace {

// In the order of bench/native.py.
enum Count { CALLS, ROWS, PASSES, COPIED, N_COUNTS };

std::atomic<std::int64_t> counts[N_COUNTS];

// A function of llama.cpp's own. Python loads llama.cpp for itself alone, so that RTLD_NEXT does not find it.
template <typename Function>
Function * original(const char * name) {
    static void * const llama = dlopen("libllama.so.0", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<Function *>(dlsym(llama, name));
}

}  // namespace

BENCH_API void token_trie_bench_counts(std::int64_t * out) {
    for (int i = 0; i < N_COUNTS; ++i) {
        out[i] = counts[i];
    }
}

BENCH_API int32_t llama_decode(llama_context * context, llama_batch batch) {
    ++counts[CALLS];
    counts[ROWS] += batch.n_tokens;
    static auto * const theirs = original<decltype(llama_decode)>("llama_decode");
    return theirs(context, batch);
}

// Which llama_decode calls once for each part of a batch that it cuts.
BENCH_API ggml_status ggml_backend_sched_graph_compute_async(ggml_backend_sched_t scheduler, ggml_cgraph * graph) {
    ++counts[PASSES];
    static auto * const theirs =
        original<decltype(ggml_backend_sched_graph_compute_async)>("ggml_backend_sched_graph_compute_async");
    return theirs(scheduler, graph);
}

BENCH_API size_t llama_state_seq_get_data_ext(
    llama_context * context, uint8_t * to, size_t size, llama_seq_id id, llama_state_seq_flags flags) {
    static auto * const theirs = original<decltype(llama_state_seq_get_data_ext)>("llama_state_seq_get_data_ext");
    const std::size_t copied = theirs(context, to, size, id, flags);
    counts[COPIED] += static_cast<std::int64_t>(copied);
    return copied;
}

BENCH_API size_t llama_state_seq_set_data_ext(
    llama_context * context, const uint8_t * from, size_t size, llama_seq_id id, llama_state_seq_flags flags) {
    static auto * const theirs = original<decltype(llama_state_seq_set_data_ext)>("llama_state_seq_set_data_ext");
    const std::size_t copied = theirs(context, from, size, id, flags);
    counts[COPIED] += static_cast<std::int64_t>(copied);
    return copied;
}

BENCH_API size_t llama_state_seq_get_data(llama_context * context, uint8_t * to, size_t size, llama_seq_id id) {
    return llama_state_seq_get_data_ext(context, to, size, id, 0);
}

BENCH_API size_t llama_state_seq_set_data(llama_context * context, const uint8_t * from, size_t size, llama_seq_id id) {
    return llama_state_seq_set_data_ext(context, from, size, id, 0);
}
