#pragma once

#include "trie/error.h"

#include <cstddef>
#include <cstdint>

namespace [[gnu::visibility("default")]] token_trie {

// Sets that lie joined in arrays of the caller's, walked by rows of a batch at a time. As in trie/tensors.h, but
// that targets and tails name what they lead to: a node is a row, or, below 0, the complement of a place in tails.
//
//     row 0   free: any token        kind      free
//     row 1   a set's ended row      kind      ended    its edges, the end tokens, lead back to it
//     row 2   its complete row       kind      plain    the end tokens, or none and kind free
//     row 3   its root ...
//
// All functions: rows are n; nodes that are none throw Error (argument), which names the first, and nothing is written.
// A call reads the arrays, and writes only to what it is given: any number of threads at a time.
struct Tables {
    enum Kind : std::uint8_t { plain, free, ended };

    // Tokens are 16 bits wide where the vocabulary allows.
    struct Tokens {
        const void * data = nullptr;
        bool is_narrow = false;
        std::int32_t operator[](std::size_t i) const noexcept {
            return is_narrow ? static_cast<const std::int16_t *>(data)[i] : static_cast<const std::int32_t *>(data)[i];
        }
    };

    std::int32_t vocab_size = 0;
    std::int64_t n_rows = 0;
    std::int64_t n_in_tails = 0;
    std::int64_t n_sets = 0;
    const std::int32_t * first = nullptr;  // n_rows + 1
    const std::uint8_t * kinds = nullptr;  // n_rows
    Tokens tokens;
    const std::int32_t * targets = nullptr;
    Tokens tails;
    const std::int32_t * tail_begins = nullptr;  // n_sets
    const std::int32_t * completes = nullptr;    // n_sets

    // Numbers of bits that -inf is of, at a row's beginning and every stride elements.
    struct Matrix {
        void * data = nullptr;
        std::int64_t n_columns = 0;
        std::int64_t stride = 0;
        std::uint32_t n_bytes = 4;  // an element: 2, 4 or 8
        std::uint64_t minus_infinity = 0;
    };

    void check(const std::int64_t * nodes, std::int64_t n) const;
    // A row of which all allowed tokens are at -inf gets them back, at 0. Returns whether there was one that has not
    // ended.
    bool mask(const Matrix & logits, const std::int64_t * nodes, std::int64_t n) const;
    // Tokens may be any; out may be nodes.
    void step(const std::int64_t * nodes, const std::int64_t * given, std::int64_t n, std::int64_t * out) const;
    // The most children of a node; 1 at least.
    std::int64_t width(const std::int64_t * nodes, std::int64_t n) const;
    // Writes width children a row: their logprobs, tokens and nodes, then -inf, 0 and 0. Free row 0 has no children.
    void candidates(const Matrix & logprobs,
                    const std::int64_t * nodes,
                    std::int64_t n,
                    std::int64_t width,
                    void * values,
                    std::int64_t * out_tokens,
                    std::int64_t * out_nodes) const;

   private:
    std::int64_t next_in_tail(std::int64_t place, std::int32_t tail) const noexcept;
};

}  // namespace token_trie
