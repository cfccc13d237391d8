#pragma once

namespace token_trie {

// Why generated text ends. The values of enum token_trie_stop, which csrc/abi checks against these.
enum class Stop { none = 0, max_tokens = 1, complete = 2, end = 3, callback = 4, cancelled = 5, string = 6 };

}  // namespace token_trie
