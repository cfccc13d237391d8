#pragma once

#include <cstdint>

namespace token_trie {

// Why generated text ends. The values of enum token_trie_stop, which csrc/abi checks against these.
enum class Stop { none = 0, max_tokens = 1, complete = 2, end = 3, callback = 4, cancelled = 5, string = 6 };

// How tokens are drawn, by llama.cpp's own samplers.
struct Sampling {
    std::uint32_t seed = 0;
    float temperature = 0;            // 0: the best token
    float top_p = 1;                  // 1: off
    std::int32_t top_k = 0;           // 0: off
    float min_p = 0;                  // 0: off
    std::int32_t penalty_last_n = 0;  // 0: off
    float penalty_repeat = 1;
    float penalty_freq = 0;
    float penalty_present = 0;

    // Throws Error (argument) on values that llama.cpp does not take.
    void check() const;
};

}  // namespace token_trie
