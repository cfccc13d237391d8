#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// Version and commit of the ggml compiled against and of the one loaded, as "0.9.4 (a1b2c3d)". Compiled is empty where
// both were built as one project, and without a commit where only headers without one were there.
std::string llama_compiled();
std::string llama_loaded();

// Address of a constant in the libllama that is used here: who has another address uses another copy of it.
std::uintptr_t llama_constant();

// Throws Error (llama) unless the library loaded is the one compiled against: of its version and commit, where both are
// known, and with structs of the same size. Whatever passes llama.cpp's structs checks here first, for their layout
// changes from release to release.
void require_same_llama();

// Bytes of llama.cpp's structs as compiled against: "llama_batch" the size, "llama_batch.logits" the member's offset.
std::vector<std::pair<std::string, std::size_t>> llama_layout();

// A device that llama.cpp can compute on, as it names it.
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
