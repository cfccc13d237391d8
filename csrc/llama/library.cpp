#include "llama/library.h"

#include "llama/runs_in_graph.h"
#include "trie/error.h"

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <new>
#include <string_view>

namespace [[gnu::visibility("default")]] token_trie {

namespace {

[[noreturn]] void refuse(const std::string & difference) {
    throw Error(Status::llama, "compiled against the llama.cpp with ggml ", llama_compiled(), ", but ", difference,
                "; build token-trie again beside it: pip install --force-reinstall --no-deps "
                "--no-cache-dir --no-binary token-trie token-trie");
}

// The digits of the commit in "0.25.3 (0c1e570-dirty)"; none where it is "unknown".
std::string_view commit_of(std::string_view ggml) {
    const std::size_t open = ggml.find('(');
    const std::string_view rest = open == std::string_view::npos ? std::string_view() : ggml.substr(open + 1);
    return rest.substr(0, std::min(rest.find_first_not_of("0123456789abcdef"), rest.size()));
}

bool is_same(std::string_view compiled, std::string_view loaded) {
    if (compiled.substr(0, compiled.find(' ')) != loaded.substr(0, loaded.find(' '))) {
        return false;
    }
    // Git shortens a commit to as many digits as tell it from others.
    const std::string_view a = commit_of(compiled);
    const std::string_view b = commit_of(loaded);
    const std::size_t n = std::min(a.size(), b.size());
    return a.substr(0, n) == b.substr(0, n);
}

// A struct above 16 bytes is returned into memory of the caller, so that memory for a larger one shows what is written.
template <typename Params>
void require_size(Params (*defaults)(), const char * name) {
    static_assert(sizeof(Params) > 16, "returned in registers");
    struct Larger {
        alignas(Params) unsigned char bytes[sizeof(Params) + 512];
    };
    constexpr unsigned char untouched = 0x5A;
    alignas(Larger) unsigned char memory[sizeof(Larger)];
    volatile unsigned char * const fill = memory;
    for (std::size_t i = 0; i < sizeof memory; ++i) {
        fill[i] = untouched;
    }
    const Larger & given =
        *new (memory) Larger(reinterpret_cast<Larger (*)()>(reinterpret_cast<void (*)()>(defaults))());
    std::size_t n = sizeof given.bytes;
    while (n > 0 && given.bytes[n - 1] == untouched) {
        --n;
    }
    n = (n + alignof(Params) - 1) / alignof(Params) * alignof(Params);
    if (n != sizeof(Params)) {
        refuse(concat(name, " has ", sizeof(Params), " bytes there and ", n, " in the library that is loaded"));
    }
}

const char * kind_of(ggml_backend_dev_t device) {
    switch (ggml_backend_dev_type(device)) {
        case GGML_BACKEND_DEVICE_TYPE_CPU: return "cpu";
        case GGML_BACKEND_DEVICE_TYPE_GPU: return "gpu";
        case GGML_BACKEND_DEVICE_TYPE_IGPU: return "integrated gpu";
        default: return "accelerator";
    }
}

}  // namespace

std::string llama_compiled() { return TOKEN_TRIE_GGML_COMPILED; }

std::string llama_loaded() { return std::string(ggml_version()) + " (" + ggml_commit() + ")"; }

std::uintptr_t llama_constant() {
    return reinterpret_cast<std::uintptr_t>(llama_flash_attn_type_name(LLAMA_FLASH_ATTN_TYPE_AUTO));
}

void require_same_llama() {
    const std::string compiled = llama_compiled();
    const std::string loaded = llama_loaded();
    if (compiled.empty()) {
        return;
    }
    if (!is_same(compiled, loaded)) {
        refuse("ggml " + loaded + " is loaded");
    }
    require_size(&llama_context_default_params, "llama_context_params");
    require_size(&llama_model_default_params, "llama_model_params");
    // A commit that is not known, or changed since, may have other members of the same size; these defaults are as old
    // as the members.
    const llama_context_params defaults = llama_context_default_params();
    if (compiled != loaded &&
        (defaults.n_threads != GGML_DEFAULT_N_THREADS || defaults.pooling_type != LLAMA_POOLING_TYPE_UNSPECIFIED ||
         defaults.type_k != GGML_TYPE_F16 || defaults.cb_eval != nullptr || !defaults.offload_kqv)) {
        refuse("the members of llama_context_params are at other offsets in the library that is loaded");
    }
}

std::vector<std::pair<std::string, std::size_t>> llama_layout() {
#define SIZE_OF(name) {#name, sizeof(name)}
#define OFFSET_OF(name, member)                   \
    {                                             \
        #name "." #member, offsetof(name, member) \
    }
    return {
        SIZE_OF(llama_context_params),
        OFFSET_OF(llama_context_params, n_ctx),
        OFFSET_OF(llama_context_params, n_batch),
        OFFSET_OF(llama_context_params, n_seq_max),
        OFFSET_OF(llama_context_params, n_outputs_max),
        OFFSET_OF(llama_context_params, n_threads),
        OFFSET_OF(llama_context_params, n_threads_batch),
        OFFSET_OF(llama_context_params, attention_type),
        OFFSET_OF(llama_context_params, cb_eval),
        OFFSET_OF(llama_context_params, cb_eval_user_data),
        OFFSET_OF(llama_context_params, embeddings),
        OFFSET_OF(llama_context_params, swa_full),
        OFFSET_OF(llama_context_params, kv_unified),
        OFFSET_OF(llama_context_params, samplers),
        OFFSET_OF(llama_context_params, n_samplers),
        SIZE_OF(llama_model_params),
        SIZE_OF(llama_batch),
        OFFSET_OF(llama_batch, logits),
        SIZE_OF(llama_token_data),
        SIZE_OF(llama_token_data_array),
        OFFSET_OF(llama_token_data_array, selected),
        SIZE_OF(llama_sampler),
        SIZE_OF(llama_sampler_i),
    };
#undef SIZE_OF
#undef OFFSET_OF
}

std::vector<Device> devices() {
    ggml_backend_load_all();
    std::vector<Device> out;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        Device each{ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), ggml_backend_dev_name(device),
                    ggml_backend_dev_description(device), kind_of(device)};
        ggml_backend_dev_memory(device, &each.free_bytes, &each.total_bytes);
        out.push_back(std::move(each));
    }
    return out;
}

bool samples_in_graph() { return RunsInGraph<llama_sampler_i>::value; }

void log_warning(const char * text) {
    ggml_log_callback callback = nullptr;
    void * user_data = nullptr;
    llama_log_get(&callback, &user_data);
    if (callback != nullptr) {
        callback(GGML_LOG_LEVEL_WARN, text, user_data);
    }
}

}  // namespace token_trie
