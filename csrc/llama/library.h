#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// Version and commit of the ggml compiled against and of the one loaded, as "0.9.4 (a1b2c3d)". Compiled is empty where
// both were built as one project.
std::string llama_compiled();
std::string llama_loaded();

// Throws Error (llama) unless the two are the same. Whatever passes llama.cpp's structs by value checks here first, for
// their layout changes from release to release.
void require_same_llama();

// What llama.cpp can compute on, as it names it.
struct Device {
    std::string backend;      // "CPU", "Vulkan", "CUDA", ...
    std::string name;         // "CPU", "Vulkan0", ...
    std::string description;  // the processor's or the card's, with its driver where the backend reports it
    std::string kind;         // "cpu", "gpu", "integrated gpu" or "accelerator"
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
};

// Loads the backends that lie beside ggml as libraries of their own, where there are such.
std::vector<Device> devices();

// Whether the llama.cpp compiled against can run samplers inside the compute graph.
bool samples_in_graph();

constexpr const char * kSpanClosed =
    "token-trie: a span went on for max_span tokens; it ends with the member under way\n";

// To llama.cpp's log callback, where the library loaded gives it; else nowhere.
void log_warning(const char * text);

}  // namespace token_trie
