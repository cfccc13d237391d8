#include "batch/tree_task.h"

#include <algorithm>

namespace token_trie {

TreeTask::TreeTask(TreeQuery & query, const Trie & trie, const Origin & origin)
    : query_(query),
      trie_(trie),
      paths_(origin.memory, trie, origin.id, static_cast<llama_pos>(origin.n_before)),
      nodes_(query.next(0)),
      wants_root_(!nodes_.empty() && nodes_.front() == kRoot) {
    n_placed_ = wants_root_ ? 1 : 0;
}

std::size_t TreeTask::n_ids_wanted() const noexcept {
    const std::size_t n = std::min<std::size_t>(nodes_.size() - n_placed_, trie_.n_leaves());
    return n - std::min(n, paths_.n_ids());
}

std::vector<Row> TreeTask::next_rows(std::size_t max_nodes, std::size_t max_cells) {
    if (!needs_cells()) {
        return {};
    }
    TreePaths::Wave wave =
        paths_.next_wave(nodes_.data() + n_placed_, std::min(nodes_.size() - n_placed_, max_nodes), max_cells);
    n_placed_ += wave.n_queried;
    n_evaluated_ += wave.rows.size();
    n_cells_ = wave.n_cells;
    return std::move(wave.rows);
}

void TreeTask::advance() {
    if (!needs_cells()) {
        nodes_ = query_.next(n_evaluated_);
        n_placed_ = 0;
    }
}

void write(Ranking result, Answer & answer) { static_cast<Ranking &>(answer) = std::move(result); }

void write(LeafScores result, Answer & answer) {
    answer.scores = std::move(result.leaves);
    answer.nodes = std::move(result.nodes);
}

}  // namespace token_trie
