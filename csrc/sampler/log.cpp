#include "sampler/log.h"

#include <ggml.h>

// Younger than the oldest llama.cpp supported, so the library must load without it.
extern "C" __attribute__((weak)) void llama_log_get(ggml_log_callback * log_callback, void ** user_data);

namespace token_trie {

void log_warning(const char * text) {
    if (llama_log_get == nullptr) {
        return;
    }
    ggml_log_callback callback = nullptr;
    void * user_data = nullptr;
    llama_log_get(&callback, &user_data);
    if (callback != nullptr) {
        callback(GGML_LOG_LEVEL_WARN, text, user_data);
    }
}

}  // namespace token_trie
