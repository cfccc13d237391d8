#include "search/tree_paths.h"

#include "context/cell_table.h"
#include "search/state_paths.h"

#include <algorithm>

namespace [[gnu::visibility("default")]] token_trie {

TreePath path_to(const Trie & trie, NodeId node) {
    TreePath path;
    for (; node != kRoot; node = trie.parent(node)) {
        path.push_back(node);
    }
    std::reverse(path.begin(), path.end());
    return path;
}

void sort_depth_first(const Trie & trie, std::vector<NodeId> & nodes) {
    std::vector<std::pair<TreePath, NodeId>> keyed;
    keyed.reserve(nodes.size());
    for (const NodeId node : nodes) {
        keyed.emplace_back(path_to(trie, node), node);
    }
    std::sort(keyed.begin(), keyed.end());
    std::transform(keyed.begin(), keyed.end(), nodes.begin(), [](const auto & pair) { return pair.second; });
}

Tips take_tips(const Trie & trie, const NodeId * nodes, std::size_t n, std::size_t max_paths, std::size_t max_cells) {
    Tips tips;
    for (; tips.n_nodes < n; ++tips.n_nodes) {
        TreePath path = path_to(trie, nodes[tips.n_nodes]);
        const std::size_t n_shared = tips.paths.empty() ? 0 : common_prefix(tips.paths.back(), path);
        const bool goes_on = !tips.paths.empty() && n_shared == tips.paths.back().size();
        const std::size_t n_more = path.size() - n_shared;
        if (tips.paths.size() + (goes_on ? 0 : 1) > max_paths || tips.n_cells + n_more > max_cells) {
            break;
        }
        tips.n_cells += n_more;
        if (!goes_on) {
            tips.paths.emplace_back();
        }
        tips.paths.back() = std::move(path);
    }
    return tips;
}

std::unique_ptr<Paths> make_paths(
    const llama_model * model, const llama_memory_t & memory, const Trie & trie, llama_seq_id base_id, llama_pos base) {
    if (has_states(model)) {
        return std::make_unique<StatePaths>(memory, trie, base_id, base);
    }
    return std::make_unique<TreePaths>(memory, trie, base_id, base);
}

llama_seq_id TreePaths::take_idle_id() noexcept {
    const auto idle = std::find_if(ids_.begin(), ids_.end(),
                                   [this](const Id & each) { return each.id != base_id_ && each.path.empty(); });
    if (idle == ids_.end()) {
        return -1;
    }
    const llama_seq_id id = idle->id;
    if (idle->has_base) {
        llama_memory_seq_rm(memory_, id, -1, -1);
    }
    ids_.erase(idle);
    return id;
}

TreePaths::Wave TreePaths::next_wave(const NodeId * nodes, std::size_t n, std::size_t max_cells) {
    const Tips tips = take_tips(trie_, nodes, n, ids_.size(), max_cells);
    Wave wave{place(tips.paths), tips.n_nodes, tips.n_cells};
    // Both are in depth-first order.
    const NodeId * queried = nodes;
    for (Row & row : wave.rows) {
        row.wanted = queried != nodes + wave.n_queried && *queried == row.node;
        queried += row.wanted ? 1 : 0;
    }
    return wave;
}

// With sliding attention llama.cpp removes cells from a sequence that is more than a window longer. The rest of such a
// path cannot begin another one, nor be in one row with others.
void TreePaths::drop_torn() noexcept {
    const llama_pos first = llama_memory_seq_pos_min(memory_, base_id_);
    for (Id & id : ids_) {
        if (id.has_base && llama_memory_seq_pos_min(memory_, id.id) != first) {
            llama_memory_seq_rm(memory_, id.id, -1, -1);
            id = {id.id, false, {}};
        }
    }
}

// Finds for each path the id that holds the most of it. The first path of an id extends what is there, and takes it
// over.
std::vector<TreePaths::Source> TreePaths::find_sources(const std::vector<TreePath> & tips) const {
    std::vector<Source> sources;
    std::vector<bool> is_taken(ids_.size());
    for (const TreePath & tip : tips) {
        Source best;
        for (std::size_t id = 0; id < ids_.size(); ++id) {
            const std::size_t n = std::min(common_prefix(ids_[id].path, tip), tip.size() - 1);
            if (n > best.n_held) {
                best = {id, n, !is_taken[id]};
            }
        }
        if (best.extends) {
            is_taken[best.id] = true;
        }
        sources.push_back(best);
    }
    return sources;
}

// Gives each path an id that holds its beginning, as far as that is in the cache.
std::vector<std::size_t> TreePaths::assign_ids(const std::vector<Source> & sources) {
    std::vector<bool> is_taken(ids_.size());
    for (const Source & source : sources) {
        is_taken[source.id] = is_taken[source.id] || source.extends;
    }
    for (std::size_t id = 0; id < ids_.size(); ++id) {
        if (!is_taken[id] && !ids_[id].path.empty()) {
            llama_memory_seq_rm(memory_, ids_[id].id, base_, -1);
            ids_[id].path.clear();
        }
    }
    std::vector<std::size_t> ids;
    std::size_t free = 0;
    for (const Source & source : sources) {
        if (source.extends) {
            ids.push_back(source.id);
            continue;
        }
        while (is_taken[free]) {
            ++free;
        }
        ids.push_back(free);
        Id & id = ids_[free++];
        if (!id.has_base) {
            llama_memory_seq_cp(memory_, base_id_, id.id, -1, base_);
            id.has_base = true;
        }
        if (source.n_held > 0) {
            llama_memory_seq_cp(memory_, ids_[source.id].id, id.id, base_,
                                base_ + static_cast<llama_pos>(source.n_held));
        }
    }
    return ids;
}

// Returns the rows that are missing. A node that several paths share is one row.
std::vector<Row> TreePaths::place(const std::vector<TreePath> & tips) {
    drop_torn();
    const std::vector<Source> sources = find_sources(tips);
    const std::vector<std::size_t> ids = assign_ids(sources);
    std::vector<Row> rows;
    std::vector<std::size_t> row_at(trie_.max_length());  // by depth, on the path before
    for (std::size_t i = 0; i < tips.size(); ++i) {
        const TreePath & path = tips[i];
        Id & id = ids_[ids[i]];
        if (sources[i].extends) {
            llama_memory_seq_rm(memory_, id.id, base_ + static_cast<llama_pos>(sources[i].n_held), -1);
        }
        const std::size_t n_shared = i == 0 ? 0 : common_prefix(tips[i - 1], path);
        for (std::size_t depth = sources[i].n_held; depth < path.size(); ++depth) {
            if (depth >= n_shared) {
                row_at[depth] = rows.size();
                rows.push_back(
                    {path[depth], trie_.token(path[depth]), base_ + static_cast<llama_pos>(depth), false, {}});
            }
            rows[row_at[depth]].ids.push_back(id.id);
        }
        id.path = path;
    }
    return rows;
}

void TreePaths::clear() noexcept {
    for (const Id & id : ids_) {
        llama_memory_seq_rm(memory_, id.id, id.id == base_id_ ? base_ : -1, -1);
    }
    ids_.clear();
}

}  // namespace token_trie
