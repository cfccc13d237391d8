#include "llama/devices.h"

#include "llama/runs_in_graph.h"

#include <ggml-backend.h>
#include <llama.h>

namespace [[gnu::visibility("default")]] token_trie {
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

}  // namespace token_trie
