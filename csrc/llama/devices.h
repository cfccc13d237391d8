#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// What llama.cpp can compute on, as it names it.
struct Device {
    std::string backend;      // "CPU", "Vulkan", "CUDA", ...
    std::string name;         // "CPU", "Vulkan0", ...
    std::string description;  // the processor's or the card's, with its driver where the backend tells
    std::string kind;         // "cpu", "gpu", "integrated gpu" or "accelerator"
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
};

// Loads the backends that stand beside ggml as libraries of their own, where there are such.
std::vector<Device> devices();

// Whether the llama.cpp compiled against can run samplers inside the compute graph.
bool samples_in_graph();

}  // namespace token_trie
