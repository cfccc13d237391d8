#include "search/state_paths.h"

#include "context/cell_table.h"

#include <algorithm>

namespace [[gnu::visibility("default")]] token_trie {

llama_seq_id StatePaths::take_idle_id() noexcept {
    const auto idle = std::find_if(ids_.begin(), ids_.end(), [](const Id & each) { return each.node == kRoot; });
    if (idle == ids_.end() || has_more_rows()) {
        return -1;
    }
    const llama_seq_id id = idle->id;
    ids_.erase(idle);
    return id;
}

Paths::Wave StatePaths::next_wave(const NodeId * nodes, std::size_t n, std::size_t max_cells) {
    Wave wave;
    if (!has_more_rows()) {
        wave.n_queried = begin_group(nodes, n, max_cells);
    }
    wave.n_cells = n_cells_;
    std::size_t next = n_steps_;  // at which branches are forked again
    for (const Branch & branch : branches_) {
        next = branch.begins > step_ ? std::min(next, branch.begins) : next;
        if (branch.begins == step_ && branch.parent != kNone) {
            fork(ids_[branches_[branch.parent].id].id, ids_[branch.id].id);
        }
    }
    // By id, as llama.cpp evaluates recurrent models side by side only where ids follow each other.
    std::vector<const Branch *> order(branches_.size());
    std::transform(branches_.begin(), branches_.end(), order.begin(), [](const Branch & branch) { return &branch; });
    std::sort(order.begin(), order.end(),
              [this](const Branch * a, const Branch * b) { return ids_[a->id].id < ids_[b->id].id; });
    for (const Branch * branch : order) {
        for (std::size_t step = std::max(step_, branch->begins); step < std::min(next, branch->end()); ++step) {
            const std::size_t depth = branch->n_before + step - branch->begins;
            const NodeId node = branch->path[depth];
            const bool wanted = std::binary_search(queried_.begin(), queried_.end(), node);
            wave.rows.push_back(
                {node, trie_.token(node), base_ + static_cast<llama_pos>(depth), wanted, {ids_[branch->id].id}});
        }
    }
    step_ = next;
    return wave;
}

// Takes the first nodes, each on a branch of its own unless it is below the one before. Returns how many.
std::size_t StatePaths::begin_group(const NodeId * nodes, std::size_t n, std::size_t max_cells) {
    ++n_groups_;
    branches_.clear();
    step_ = n_steps_ = 0;
    Tips tips = take_tips(trie_, nodes, n, ids_.size(), max_cells);
    for (TreePath & path : tips.paths) {
        branches_.push_back({std::move(path)});
    }
    queried_.assign(nodes, nodes + tips.n_nodes);
    std::sort(queried_.begin(), queried_.end());
    n_cells_ = find_beginnings();
    if (n_cells_ > max_cells) {  // where a path parts from an id's before its end, both have cells for the rest
        for (Id & id : ids_) {
            release(id);
        }
        n_cells_ = find_beginnings();
    }
    assign_ids(max_cells);
    return tips.n_nodes;
}

// Finds what has the most of each branch's path: an id, or the branch before it that evaluates the last node of it.
// Returns the cells of the branches and of these ids.
std::size_t StatePaths::find_beginnings() {
    std::size_t n_cells = 0;
    std::vector<bool> is_source(ids_.size());
    n_steps_ = 0;
    std::vector<std::size_t> branch_at(trie_.max_length(), kNone);  // by depth, that evaluates the node
    std::vector<std::size_t> step_after(trie_.max_length(), 0);
    for (std::size_t i = 0; i < branches_.size(); ++i) {
        Branch & branch = branches_[i];
        branch = {std::move(branch.path)};
        for (std::size_t id = 0; id < ids_.size(); ++id) {
            const std::size_t depth = ids_[id].depth;
            if (depth > branch.n_before && depth < branch.path.size() && branch.path[depth - 1] == ids_[id].node) {
                branch.n_before = depth;
                branch.source = id;
            }
        }
        const std::size_t n_shared = i == 0 ? 0 : common_prefix(branches_[i - 1].path, branch.path);
        if (n_shared > branch.n_before && branch_at[n_shared - 1] != kNone) {
            branch.n_before = n_shared;
            branch.source = kNone;
            branch.parent = branch_at[n_shared - 1];
            branch.begins = step_after[n_shared - 1];
        }
        for (std::size_t depth = n_shared; depth < branch.n_before; ++depth) {
            branch_at[depth] = kNone;
        }
        for (std::size_t depth = branch.n_before; depth < branch.path.size(); ++depth) {
            branch_at[depth] = i;
            step_after[depth] = branch.begins + depth - branch.n_before + 1;
        }
        n_steps_ = std::max(n_steps_, branch.end());
        n_cells += branch.path.size() - branch.n_before;
        if (branch.source != kNone && !is_source[branch.source]) {
            is_source[branch.source] = true;
            n_cells += ids_[branch.source].depth;
        }
    }
    return n_cells;
}

// Gives each branch an id, forked from what is before it. A branch takes over the id that it goes on from where no
// other path will, or where ids or cells are short, once what has not been used for longest is released.
void StatePaths::assign_ids(std::size_t max_cells) {
    std::size_t n_free = 0;
    std::size_t n_kept_cells = 0;
    for (const Id & id : ids_) {
        n_free += id.node == kRoot ? 1 : 0;
        n_kept_cells += id.depth;
    }
    for (const Branch & branch : branches_) {
        if (branch.source != kNone) {
            ids_[branch.source].used = n_groups_;
            ids_[branch.source].n_left -= std::min(ids_[branch.source].n_left, 1U);
        }
    }
    std::size_t n_needed = branches_.size();
    std::vector<bool> is_taken_over(ids_.size());
    const auto take_over = [&](std::size_t id) {
        is_taken_over[id] = true;
        n_kept_cells -= ids_[id].depth;
        --n_needed;
    };
    for (std::size_t id = 0; id < ids_.size(); ++id) {
        if (ids_[id].node != kRoot && ids_[id].used == n_groups_ && ids_[id].n_left == 0) {
            take_over(id);
        }
    }
    for (std::size_t next = 0; n_free < n_needed || n_kept_cells + n_cells_ > max_cells;) {
        if (Id * const oldest = least_recent()) {
            n_kept_cells -= oldest->depth;
            release(*oldest);
            ++n_free;
            continue;
        }
        while (ids_[next].node == kRoot || is_taken_over[next]) {
            ++next;
        }
        take_over(next);
    }
    n_cells_ += n_kept_cells;
    std::size_t free = 0;
    for (Branch & branch : branches_) {
        if (branch.source != kNone && is_taken_over[branch.source]) {
            branch.id = branch.source;
            is_taken_over[branch.source] = false;
            continue;
        }
        while (ids_[free].node != kRoot) {
            ++free;
        }
        branch.id = free++;
        if (branch.parent == kNone) {
            fork(branch.source == kNone ? base_id_ : ids_[branch.source].id, ids_[branch.id].id);
        }
    }
    for (const Branch & branch : branches_) {
        ids_[branch.id] = {ids_[branch.id].id, branch.path.back(), branch.path.size(),
                           trie_.children(branch.path.back()).size, n_groups_};
    }
}

// The one of those that hold a state that was used least recently, before this group; null: there is none.
StatePaths::Id * StatePaths::least_recent() noexcept {
    Id * oldest = nullptr;
    for (Id & id : ids_) {
        if (id.node != kRoot && id.used < n_groups_ && (oldest == nullptr || id.used < oldest->used)) {
            oldest = &id;
        }
    }
    return oldest;
}

void StatePaths::release(Id & id) noexcept {
    llama_memory_seq_rm(memory_, id.id, -1, -1);
    id = {id.id};
}

void StatePaths::fork(llama_seq_id from, llama_seq_id to) { llama_memory_seq_cp(memory_, from, to, -1, -1); }

void StatePaths::clear() noexcept {
    for (const Id & id : ids_) {
        llama_memory_seq_rm(memory_, id.id, -1, -1);
    }
    ids_.clear();
    branches_.clear();
    step_ = n_steps_ = 0;
}

}  // namespace token_trie
