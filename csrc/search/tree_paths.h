#pragma once

#include "context/batch_rows.h"
#include "trie/non_copyable.h"

#include <memory>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// From below the root to a node.
using TreePath = std::vector<NodeId>;
TreePath path_to(const Trie & trie, NodeId node);

// Nodes in depth-first order.
void sort_depth_first(const Trie & trie, std::vector<NodeId> & nodes);

// Paths to the first of some nodes in depth-first order, as many as paths and cells suffice for. A node below the one
// before is on its path.
struct Tips {
    std::vector<TreePath> paths;
    std::size_t n_nodes = 0;
    std::size_t n_cells = 0;
};
Tips take_tips(const Trie & trie, const NodeId * nodes, std::size_t n, std::size_t max_paths, std::size_t max_cells);

// The paths of a trie that lie in the cache, after what is before its root, and the rows that evaluate more of them.
// Ids are lent to it, each for a path.
class Paths : NonCopyable {
   public:
    virtual ~Paths() = default;

    virtual void add_id(llama_seq_id id) = 0;
    virtual std::size_t n_ids() const noexcept = 0;
    // Gives back one lent that no path is on, with nothing in it; -1: there is none.
    virtual llama_seq_id take_idle_id() noexcept = 0;

    // Rows of one pass.
    struct Wave {
        std::vector<Row> rows;      // with those before them that are not in the cache; parents come first
        std::size_t n_queried = 0;  // nodes that were taken
        std::size_t n_cells = 0;    // that paths have after it
    };
    // Takes as many of the first nodes as there are ids and cells for, or goes on with those taken before. They come in
    // depth-first order, the root is none of them, over all calls each comes once, and before those below it. At least
    // one fits.
    virtual Wave next_wave(const NodeId * nodes, std::size_t n, std::size_t max_cells) = 0;
    // Whether nodes taken wait for a pass to end, after which the next wave has rows of theirs, and takes no others.
    virtual bool has_more_rows() const noexcept { return false; }

    // Drops what lies after the root, and all of the ids but base_id's.
    virtual void clear() noexcept = 0;
};

// Paths in a model's memory. The first `base` cells of base_id are before the root. The memory, which may change
// with all that it holds, and the trie must outlive it.
std::unique_ptr<Paths> make_paths(
    const llama_model * model, const llama_memory_t & memory, const Trie & trie, llama_seq_id base_id, llama_pos base);

// Paths whose cells are shared.
//
// A cache cell belongs to a set of llama.cpp's sequences, and a token attends to the cells of its own. Each path to a
// deepest node gets a sequence id, and a node that several paths share is one cell with all of their ids:
//
//     sequence    The answer is |  READ  _  FILE            ids 1
//                   ids 0 1 2 3 |        _  MAIL                2     READ: 1 2    _ : 1 2    SEND: 3
//                               |  SEND                         3
//
// Paths stay in the cache until the next wave of nodes, of which those that go on from them take over their ids.
class TreePaths final : public Paths {
   public:
    TreePaths(const llama_memory_t & memory, const Trie & trie, llama_seq_id base_id, llama_pos base)
        : memory_(memory), trie_(trie), base_id_(base_id), base_(base) {}

    // It may be base_id, where no path ends a window of sliding attention or more after the first cell: when it is cut
    // back to its base, the window before that is no longer there.
    void add_id(llama_seq_id id) override { ids_.push_back({id, id == base_id_, {}}); }
    std::size_t n_ids() const noexcept override { return ids_.size(); }
    llama_seq_id take_idle_id() noexcept override;
    Wave next_wave(const NodeId * nodes, std::size_t n, std::size_t max_cells) override;
    void clear() noexcept override;

   private:
    struct Id {
        llama_seq_id id;
        bool has_base;  // whether the cells before the root belong to it
        TreePath path;  // in the cache
    };
    struct Source {
        std::size_t id = 0;      // index into ids_
        std::size_t n_held = 0;  // nodes of a path that it holds
        bool extends = false;    // the path goes on there
    };
    void drop_torn() noexcept;
    std::vector<Source> find_sources(const std::vector<TreePath> & tips) const;
    std::vector<std::size_t> assign_ids(const std::vector<Source> & sources);
    std::vector<Row> place(const std::vector<TreePath> & tips);

    const llama_memory_t & memory_;
    const Trie & trie_;
    llama_seq_id base_id_;
    llama_pos base_;  // position of what follows the root
    std::vector<Id> ids_;
};

}  // namespace token_trie
