#pragma once

#include <llama.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace token_trie {

// Whether all is there that a token behind the first n of a sequence attends to: to be queried wherever cells of a
// prefix are shared or cut back to, and then it stays so.
//
// Of sliding attention llama.cpp keeps what is before the last token of each sequence. What came earlier stays until a
// row of any sequence takes its cell, in caches of full size too, and a sequence shorter than the one that lost it may
// have needed it. What a sequence holds has no gaps; -1: it holds nothing.
//
//     held        . . . . . . 6 7 8 9       window of 4: 7 8 9 for a tenth token
//     cut to 8    . . . . . . 6 7           5 is gone
inline bool has_window(llama_memory_t memory, llama_seq_id id, std::size_t n, std::int32_t n_swa) noexcept {
    if (n_swa <= 0 || n == 0) {
        return true;
    }
    const llama_pos first = llama_memory_seq_pos_min(memory, id);
    const auto end = static_cast<llama_pos>(n);
    return first >= 0 && first <= std::max(0, end - n_swa + 1) && llama_memory_seq_pos_max(memory, id) >= end - 1;
}

}  // namespace token_trie
