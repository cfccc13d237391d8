#pragma once

#include "stream/window.h"
#include "trie/trie.h"

#include <llama.h>

#include <vector>

namespace token_trie {

// What each sequence id of a context holds in its cache, from the first position on, and how many cells that takes: one
// that several ids share is one.
//
//     id 0   Classify : Great !     cells 0 1 2 3
//     id 1   Classify : Awful       cells 0 1 4
//     id 2   -
class HeldTokens {
   public:
    // n_swa: the model's window of sliding attention; 0: it has none.
    HeldTokens(llama_memory_t memory, std::size_t n_ids, std::int32_t n_swa)
        : memory_(memory), n_swa_(n_swa), held_(n_ids) {}

    std::size_t n_held(llama_seq_id id) const noexcept { return of(id).size(); }
    std::size_t n_cells() const noexcept { return n_refs_.size() - free_.size(); }
    // Tokens that both begin with.
    std::size_t n_common(llama_seq_id id, const std::vector<Token> & tokens) const noexcept;
    std::size_t n_common(llama_seq_id a, llama_seq_id b) const noexcept;
    // Whether the token behind the id's first n can be evaluated: then these may be shared, or cut back to.
    bool has_window(llama_seq_id id, std::size_t n) const noexcept {
        return token_trie::has_window(memory_, id, n, n_swa_);
    }

    // Lets an id that holds nothing hold the first n tokens of another. Where memory runs out halfway, llama.cpp has
    // lost count, until all is cleared.
    void share(llama_seq_id from, llama_seq_id to, std::size_t n);
    // Says that these are in the cache now, behind what the id holds.
    void append(llama_seq_id id, const Token * tokens, std::size_t n);
    // Drops all behind the first n.
    void cut(llama_seq_id id, std::size_t n) noexcept;
    // Of all ids.
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

    llama_memory_t memory_;
    std::int32_t n_swa_;
    bool has_count_ = true;
    std::vector<Cells> held_;            // by id
    std::vector<std::uint32_t> n_refs_;  // of cells, by name
    std::vector<std::uint32_t> free_;    // names
};

}  // namespace token_trie
