#include "llama/log.h"

#include <llama.h>

namespace token_trie {

void log_warning(const char * text) {
    ggml_log_callback callback = nullptr;
    void * user_data = nullptr;
    llama_log_get(&callback, &user_data);
    if (callback != nullptr) {
        callback(GGML_LOG_LEVEL_WARN, text, user_data);
    }
}

}  // namespace token_trie
