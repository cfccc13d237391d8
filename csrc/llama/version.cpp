#include "llama/version.h"

#include "trie/error.h"

#include <ggml.h>

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

}  // namespace token_trie
