#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace token_trie {

// Ranks of the prompts in the cache; the lowest goes first, and of equals the one that was used least recently.
enum class Eviction {
    fresh,   // no other prompt has begun with it yet
    text,    // a generated text, which a prompt may continue
    shared,  // other prompts have begun with it
    live,    // a prompt that continues it waits or is expected; the shortest goes first
    pinned   // stays
};

// The policy of a batch. Its mechanism is in scheduler.h, which fills passes, and in prefix_cache.h, which keeps
// prompts.
//
// The rows of a pass go, in this order, to
//
//     1  answers under way
//     2  short prompts under way, n_first_rows each
//     3  requests that wait, n_first_rows each: the oldest, once max_overtaken others have passed it; those that
//        continue what the cache holds; the others, by age
//     4  the rest of the short prompts
//     5  long prompts: half of their chunk to the oldest, the rest to the one with the least left
//
// A request is admitted when its prompt and one answer have their cells, so that it always comes to its end. It waits
// for a prompt under way that is about to evaluate much of its own.
struct Policy {
    // The two columns: the least time for all requests together, or for each, by chunks of the long prompts.
    //                             together     by chunks
    std::size_t max_short;      // no limit     n_chunk   tokens of its own that a short prompt has at most
    std::size_t n_first_rows;   // half a pass  a pass    rows of a prompt before others are admitted
    std::size_t max_overtaken;  // 64           4096      requests that may pass the oldest
    std::size_t reserved_part;  // none         8         one part in so many of the cells is for short prompts alone
    std::size_t tree_part;      // 1            2         a tree takes one part in so many of the logits left in a pass

    static Policy of(std::size_t n_batch, std::size_t n_chunk) {
        return n_chunk == 0 ? Policy{SIZE_MAX, std::max<std::size_t>(n_batch / 2, 1), 64, SIZE_MAX, 1}
                            : Policy{std::min(n_chunk, n_batch), n_batch, 4096, 8, 2};
    }

    // Passes.
    static constexpr std::size_t kRows = 256;         // rows at most: llama.cpp's full speed, and soon over
    static constexpr std::size_t kLookAhead = 4;      // requests looked at to admit one, for each id
    static constexpr std::size_t kMinShared = 16;     // tokens worth a pass's delay, to evaluate them once
    static constexpr double kChunk = 0.5;             // a chunk: rows of long prompts in a pass, of max_short
    static constexpr double kBesideOthers = 0.25;     // the part of a chunk that they have beside others
    static constexpr std::size_t kQuietPasses = 32;   // without a short prompt; then long ones have whole passes
    static constexpr std::size_t kMaxTreePasses = 2;  // the cells of a tree fill so many passes at most

    // Ids and cells, one part in so many.
    static constexpr std::size_t kSpareIds = 8;     // not lent to trees, nor to prompts that will be continued
    static constexpr std::size_t kSpareCells = 4;   // left free beside prompts that will be continued
    static constexpr std::size_t kRetainedIds = 4;  // hold prompts for later ones, texts not counted
    static constexpr std::size_t kMinPaths = 3;     // ids of a tree on states, at least, beside others

    // Where the evaluation of a prompt stops, so that others go on from the state there.
    static constexpr std::size_t kMaxStops = 4;    // ahead of it
    static constexpr std::size_t kTail = 64;       // tokens that one is before the last part,
    static constexpr std::size_t kLongPart = 256;  // where that has so many at least

    // The cache.
    static constexpr std::size_t kMaxFresh = 8;       // fresh prompts retained
    static constexpr std::size_t kSeam = 8;           // tokens at a text's end that its continuation may spell anew
    static constexpr std::size_t kPatience = 4;       // passes for which a continuation is expected
    static constexpr double kMinUnused = 256;         // rows without a use after which a prompt goes, at least
    static constexpr double kPromptRow = 0.125;       // time of a prompt's row, beside a row alone (measured on two
    static constexpr double kPromptAttention = 0.25;  // processors: 0.08 to 0.22), and of its attention to a cell
};

}  // namespace token_trie
