#pragma once

#include "search/tree_paths.h"

#include <cstdint>

namespace [[gnu::visibility("default")]] token_trie {

// Paths of a model with states: an id holds the state after one node, and a branch of the tree is a fork of it.
//
//     The answer is |  READ  _  FILE     id 1
//       base_id     |           MAIL        2   forked from 1 after _
//                   |  SEND                 3
//
//                      first wave: READ _ in 1, SEND in 3; second: FILE in 1, MAIL in 2
//
// An id keeps the state after its node, for paths that go on from there, until another path needs the id: then what it
// held is evaluated again.
class StatePaths final : public Paths {
   public:
    StatePaths(const llama_memory_t & memory, const Trie & trie, llama_seq_id base_id, llama_pos base)
        : memory_(memory), trie_(trie), base_id_(base_id), base_(base) {}

    // Not base_id, as its state would be gone.
    void add_id(llama_seq_id id) override { ids_.push_back({id}); }
    std::size_t n_ids() const noexcept override { return ids_.size(); }
    llama_seq_id take_idle_id() noexcept override;
    Wave next_wave(const NodeId * nodes, std::size_t n, std::size_t max_cells) override;
    bool has_more_rows() const noexcept override { return step_ < n_steps_; }
    void clear() noexcept override;

   private:
    struct Id {
        llama_seq_id id;
        NodeId node = kRoot;       // after which it holds the state; the root: none
        std::size_t depth = 0;     // nodes to it from the root
        std::uint32_t n_left = 0;  // children to which no path has gone on
        std::uint64_t used = 0;    // the group that used it last
    };
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    // A path to the deepest node of those queried, from the step on at which it parts from another branch, or from what
    // an id or base_id holds.
    struct Branch {
        TreePath path;
        std::size_t n_before = 0;    // nodes that it does not evaluate
        std::size_t parent = kNone;  // the branch that does
        std::size_t source = kNone;  // or the id that holds them, by index
        std::size_t begins = 0;
        std::size_t id = kNone;  // on which it goes on, by index
        std::size_t end() const noexcept { return begins + path.size() - n_before; }
    };

    std::size_t begin_group(const NodeId * nodes, std::size_t n, std::size_t max_cells);
    std::size_t find_beginnings();
    void assign_ids(std::size_t max_cells);
    Id * least_recent() noexcept;
    void release(Id & id) noexcept;
    void fork(llama_seq_id from, llama_seq_id to);

    const llama_memory_t & memory_;
    const Trie & trie_;
    llama_seq_id base_id_;
    llama_pos base_;  // position of what follows the root
    std::vector<Id> ids_;
    // The branches under way, which go on side by side, a token a step.
    std::vector<Branch> branches_;
    std::vector<NodeId> queried_;  // sorted
    std::size_t step_ = 0;
    std::size_t n_steps_ = 0;
    std::size_t n_cells_ = 0;
    std::uint64_t n_groups_ = 0;
};

}  // namespace token_trie
