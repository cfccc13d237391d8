#pragma once

#include <string>

namespace [[gnu::visibility("default")]] token_trie {

// Version and commit of the ggml compiled against and of the one loaded, as "0.9.4 (a1b2c3d)". Compiled is empty where
// both were built as one project.
std::string llama_compiled();
std::string llama_loaded();

// Throws Error (llama) unless the two are the same. Whatever passes llama.cpp's structs by value checks here first, for
// their layout changes from release to release.
void require_same_llama();

}  // namespace token_trie
