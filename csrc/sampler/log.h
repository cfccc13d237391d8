#pragma once

namespace token_trie {

// To llama.cpp's log callback, where the library loaded has a way to ask for it; else nowhere.
void log_warning(const char * text);

}  // namespace token_trie
