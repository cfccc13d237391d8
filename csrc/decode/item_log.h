#pragma once

#include "cursor/cursor.h"

#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// The members that a span has produced, and where they stand in the sequence.
class ItemLog {
   public:
    struct Item {
        LeafId leaf = kNoLeaf;
        std::size_t begin = 0;  // position of its first token
        std::size_t end = 0;    // and behind its last
        double logprob = 0;     // over its branch points
    };

    // What there is to know of a cursor before it steps.
    struct Position {
        NodeId node;
        std::int32_t n_before;
    };
    static Position position_of(const Cursor & cursor) noexcept { return {cursor.node(), cursor.n_before()}; }

    void clear() noexcept;
    // Takes note of a cursor's step by a token that is the last in a sequence of n. logprob: of the span, before and
    // with it.
    void add(
        const Position & before, const Cursor & after, std::size_t n, double logprob_before, double logprob) noexcept;
    // Sees to it that add finds memory.
    void reserve();

    const std::vector<Item> & items() const noexcept { return items_; }

   private:
    std::vector<Item> items_;  // a finished one may go on, to be a longer one
    std::size_t begin_ = 0;    // of the one under way
    double logprob_ = 0;       // of the span before it
};

}  // namespace token_trie
