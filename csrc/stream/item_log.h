#pragma once

#include "sampler/cursor.h"

#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// The members that a span has produced, and where they stand in the sequence.
class ItemLog {
   public:
    struct Item {
        LeafId leaf = kNoLeaf;
        std::size_t begin = 0;  // place of its first token
        std::size_t end = 0;    // and behind its last
        double logprob = 0;     // over its branch points
    };

    void clear() noexcept;
    // Takes note of a step from one cursor to the next by a token that now stands last in a sequence of n.
    // span_logprob: of the span, before and with it.
    void add(
        const Cursor & before, const Cursor & after, std::size_t n, double logprob_before, double logprob) noexcept;
    // Sees to it that add finds memory.
    void make_room();

    const std::vector<Item> & items() const noexcept { return items_; }

   private:
    std::vector<Item> items_;  // a finished one may go on, to be a longer one
    std::size_t begin_ = 0;    // of the one under way
    double logprob_ = 0;       // of the span before it
};

}  // namespace token_trie
