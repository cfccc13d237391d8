#pragma once

namespace token_trie {

constexpr const char * kSpanClosed =
    "token-trie: a span went on for max_span tokens; it ends with the member under way\n";

// To llama.cpp's log callback, where the library loaded gives it; else nowhere.
void log_warning(const char * text);

}  // namespace token_trie
