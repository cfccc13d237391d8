#include "llama/version.h"

#include "trie/error.h"

#include <ggml.h>

namespace [[gnu::visibility("default")]] token_trie {

std::string llama_compiled() { return TOKEN_TRIE_GGML_COMPILED; }

std::string llama_loaded() { return std::string(ggml_version()) + " (" + ggml_commit() + ")"; }

void require_same_llama() {
    if (!llama_compiled().empty() && llama_compiled() != llama_loaded()) {
        throw Error(Status::llama, "compiled against the llama.cpp with ggml " + llama_compiled() + ", but ggml " +
                                       llama_loaded() +
                                       " is loaded; build token-trie again beside it: pip install --force-reinstall "
                                       "--no-deps --no-cache-dir token-trie");
    }
}

}  // namespace token_trie
