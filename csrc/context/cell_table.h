#pragma once

#include "trie/trie.h"

#include <llama.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// Whether a model keeps states of its sequences, which cannot be cut back: recurrent and hybrid ones do.
inline bool has_states(const llama_model * model) {
    return llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
}

// How many items two sequences begin with alike.
template <typename Items>
std::size_t common_prefix(const Items & a, const Items & b) {
    return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// Whether all is there that a token after the first n of a sequence attends to.
//
// With sliding attention, llama.cpp keeps the window before the last token of each sequence. Earlier tokens stay until
// a row of any sequence takes their cells, in caches of full size too, and a sequence shorter than the one that lost
// them may need them. The tokens that a sequence holds have no gaps; -1: it holds none.
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

// The tokens that each sequence id of a context holds in its cache, from the first position on, and the cells that they
// take: a cell that several ids share is one.
//
//     id 0   Classify : Great !     cells 0 1 2 3
//     id 1   Classify : Awful       cells 0 1 4
//     id 2   -
//
// A model with states (recurrent or hybrid) has one for each id, after all that it holds: what it holds can be shared
// whole, and is then a snapshot of that text, but not in part.
//
// Where memory runs out while cells are shared, llama.cpp has lost count of them, until all is cleared.
class CellTable {
   public:
    // The memory may change, with all that it holds, and has to outlive this.
    CellTable(const llama_memory_t & memory, const llama_model * model, std::size_t n_ids)
        : memory_(memory), has_states_(token_trie::has_states(model)), n_swa_(llama_model_n_swa(model)), held_(n_ids) {}
    CellTable(llama_memory_t && memory, const llama_model * model, std::size_t n_ids) = delete;

    std::size_t n_held(llama_seq_id id) const noexcept { return of(id).size(); }
    std::size_t n_cells() const noexcept { return n_refs_.size() - free_.size(); }
    // Tokens that both begin with.
    std::size_t n_common(llama_seq_id id, const std::vector<Token> & tokens) const noexcept;
    std::size_t n_common(llama_seq_id a, llama_seq_id b) const noexcept;
    // Cells that both begin with.
    std::size_t n_shared(llama_seq_id a, llama_seq_id b) const noexcept;
    bool has_states() const noexcept { return has_states_; }
    // Whether the token after the id's first n can be evaluated: to be queried wherever these are shared or cut back
    // to, and then it stays so.
    bool can_continue(llama_seq_id id, std::size_t n) const noexcept {
        return has_states_ ? n == 0 || n == n_held(id) : has_window(memory_, id, n, n_swa_);
    }

    // Lets an id that holds nothing hold the first n tokens of another, where these can be continued. Throws
    // std::bad_alloc.
    void share(llama_seq_id from, llama_seq_id to, std::size_t n);
    // Says that an id of which nothing was said holds the first n tokens of another. Throws std::bad_alloc, and has
    // then changed nothing.
    void note_shared(llama_seq_id from, llama_seq_id to, std::size_t n);
    // Lets an id that holds nothing hold what another one did. Throws std::bad_alloc.
    void move(llama_seq_id from, llama_seq_id to);
    // Says that these are in the cache now, after what the id holds. Throws std::bad_alloc, and has then changed
    // nothing.
    void append(llama_seq_id id, const Token * tokens, std::size_t n);
    // Drops all after the first n, of what is not in the table too. False where the model cannot drop these alone, and
    // nothing is dropped.
    bool cut(llama_seq_id id, std::size_t n) noexcept;
    // Says that an id's cells are others from position n on, and nobody's but its own.
    void forget(llama_seq_id id, std::size_t n = 0) noexcept;
    // Drops all tokens of all ids.
    void clear() noexcept;
    bool has_count() const noexcept { return has_count_; }

   private:
    struct Cell {
        Token token;
        std::uint32_t name;
    };
    using Cells = std::vector<Cell>;
    const Cells & of(llama_seq_id id) const noexcept { return held_[static_cast<std::size_t>(id)]; }
    Cells & of(llama_seq_id id) noexcept { return held_[static_cast<std::size_t>(id)]; }
    void copy(llama_seq_id from, llama_seq_id to, std::size_t n);

    const llama_memory_t & memory_;
    bool has_states_;
    std::int32_t n_swa_;  // the window of sliding attention; 0: none
    bool has_count_ = true;
    std::vector<Cells> held_;            // by id
    std::vector<std::uint32_t> n_refs_;  // ids that hold each cell, by its name
    std::vector<std::uint32_t> free_;    // names
};

}  // namespace token_trie
