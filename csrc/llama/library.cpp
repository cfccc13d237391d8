#include "llama/library.h"

#include "llama/runs_in_graph.h"
#include "trie/error.h"

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

namespace [[gnu::visibility("default")]] token_trie {

std::string llama_compiled() { return TOKEN_TRIE_GGML_COMPILED; }

std::string llama_loaded() { return std::string(ggml_version()) + " (" + ggml_commit() + ")"; }

void require_same_llama() {
    // Of headers alone the version is known, and not the commit behind it.
    const std::string compiled = llama_compiled();
    const std::string loaded = llama_loaded();
    if (!compiled.empty() && compiled != loaded && loaded.rfind(compiled + " ", 0) != 0) {
        throw Error(Status::llama, "compiled against the llama.cpp with ggml " + compiled + ", but ggml " + loaded +
                                       " is loaded; build token-trie again beside it: pip install --force-reinstall "
                                       "--no-deps --no-cache-dir --no-binary token-trie token-trie");
    }
}

namespace {

const char * kind_of(ggml_backend_dev_t device) {
    switch (ggml_backend_dev_type(device)) {
        case GGML_BACKEND_DEVICE_TYPE_CPU: return "cpu";
        case GGML_BACKEND_DEVICE_TYPE_GPU: return "gpu";
        case GGML_BACKEND_DEVICE_TYPE_IGPU: return "integrated gpu";
        default: return "accelerator";
    }
}

}  // namespace

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
