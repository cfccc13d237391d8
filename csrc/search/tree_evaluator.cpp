#include "search/tree_evaluator.h"

#include "context/cell_table.h"

#include <algorithm>

namespace token_trie {

TreeEvaluator::TreeEvaluator(Sequence & sequence,
                             const Trie & trie,
                             std::size_t depth,
                             std::vector<Token> prefix,
                             const std::atomic<bool> & cancelled,
                             bool all)
    : sequence_(sequence), trie_(trie), prefix_(std::move(prefix)), cancelled_(cancelled) {
    const std::size_t n_base = prefix_.empty() ? sequence.tokens().size() : prefix_.size();
    const std::size_t n_taken = n_base + (prefix_.empty() ? 0 : sequence.tokens().size());
    throw_if(n_taken + depth > sequence.n_ctx_max(), Status::context, n_taken, " tokens and ", depth,
             " of the longest leaf do not fit the context of ", sequence.n_ctx_max());
    if (prefix_.empty() && sequence.n_passes() == 0) {
        static_cast<void>(sequence_.logits({true, {}, {}}, false, cancelled_));  // which reports where the layers are
    }
    base_ = static_cast<llama_pos>(n_base);
    const llama_model * model = llama_get_model(sequence.context());
    n_swa_ = llama_model_n_swa(model);
    has_states_ = has_states(model);
    loses_window_ = n_swa_ > 0 && n_base + depth >= static_cast<std::size_t>(n_swa_);
    // The sequence has an id, the prefix has one, and a path needs at least one.
    const std::size_t n_reserved = prefix_.empty() ? 1 : 2;
    const bool shares = sequence.n_ids() > n_reserved;
    // After a prefix the first call would know less of where the layers are than the second.
    const bool rows_are_cheap = prefix_.empty() && sequence.has_layers_on_device();
    all = all || rows_are_cheap;
    const std::size_t n_ids = all ? sequence.n_ids() : std::min(sequence.n_ids(), n_frugal_ids(sequence.vocab()));
    n_ids_ = shares ? std::min<std::size_t>(n_ids - n_reserved, trie.n_leaves()) : 0;
    // All paths at once, and what fills up a batch.
    const std::size_t n_cells_of_paths = std::max<std::size_t>(n_ids_, 1) * depth;
    const std::size_t n_cells =
        (has_states_ ? n_cells_of_paths : std::min<std::size_t>(n_cells_of_paths, trie.n_nodes())) + kRowGroup;
    max_cells_ = std::min(sequence.n_ctx_max() - n_taken, n_cells);
    // A context has logits of as many rows as it has ids, and here a batch may want those of all its rows.
    const std::size_t n_rows = rows_are_cheap ? std::min({n_cells, kMaxRows, sequence.n_ids()}) : 1;
    sequence_.trim_cache();  // first, as a sequence that loses its cells shares none with its branches
    sequence.grow(n_taken + max_cells_, n_ids_ > 0 ? std::max(n_ids_ + n_reserved, n_rows) : 1);
    if (prefix_.empty()) {
        static_cast<void>(sequence_.logits({true, {}, {}}, false, cancelled_));
    }
    first_id_ = sequence.first_free_id();  // now, as the sequence may have kept snapshots
    n_ids_ = std::min(n_ids_, sequence.n_ids() - std::min(sequence.n_ids(), n_reserved));
    memory_ = llama_get_memory(sequence.context());  // the last context's: it may have grown again
    try {
        begin();
    } catch (...) {
        end();
        throw;
    }
}

// Puts what is before the root into the cache.
void TreeEvaluator::begin() {
    // The state of an empty cache is none to go back to: llama.cpp may end the process on it.
    if (n_ids_ == 0 && !prefix_.empty() && sequence_.n_cached() > 0) {
        before_ = state();
    }
    if (!prefix_.empty()) {
        if (n_ids_ == 0) {
            llama_memory_seq_rm(memory_, 0, -1, -1);
        }
        std::vector<Row> rows;
        rows.reserve(prefix_.size());
        for (std::size_t i = 0; i < prefix_.size(); ++i) {
            rows.push_back({kRoot, prefix_[i], static_cast<llama_pos>(i), i + 1 == prefix_.size(), {base_id()}});
        }
        decode(std::move(rows), sequence_.n_batch(), [&](NodeId, const float * logits) {
            root_logits_.assign(logits, logits + llama_vocab_n_tokens(sequence_.vocab()));
        });
    }
    if (n_ids_ == 0) {
        keep_state();
        return;
    }
    paths_ = make_paths(llama_get_model(sequence_.context()), memory_, trie_, base_id(), base_);
    for (std::size_t i = 0; i < n_ids_; ++i) {
        paths_->add_id(id_of(i));
    }
}

// Leaves the cache as it was.
void TreeEvaluator::end() noexcept {
    if (n_ids_ > 0) {
        if (paths_) {
            paths_->clear();
        }
        if (!prefix_.empty()) {
            llama_memory_seq_rm(memory_, base_id(), -1, -1);
        }
    } else if (before_ ? !restore(*before_) : !prefix_.empty() || !llama_memory_seq_rm(memory_, 0, base_, -1)) {
        sequence_.forget_cache();
    }
    sequence_.check_window();
}

void TreeEvaluator::evaluate(const std::vector<NodeId> & nodes, const Visit & visit) {
    auto node = nodes.begin();
    if (node != nodes.end() && *node == kRoot) {
        check_cancelled();
        visit(kRoot, prefix_.empty() ? sequence_.logits({true, {}, {}}, false, cancelled_) : root_logits_.data());
        ++node;
    }
    if (n_ids_ == 0) {
        for (; node != nodes.end(); ++node) {
            evaluate_singly(*node, visit);
        }
        return;
    }
    std::size_t n_left = static_cast<std::size_t>(nodes.end() - node);
    while (n_left > 0 || paths_->has_more_rows()) {
        Paths::Wave wave = paths_->next_wave(&*(nodes.end() - static_cast<std::ptrdiff_t>(n_left)), n_left, max_cells_);
        n_left -= wave.n_queried;
        n_evaluated_ += wave.rows.size();
        if (!has_states_) {
            fill_up(wave);
        }
        decode(std::move(wave.rows), kMaxRows, visit);
    }
}

Answer TreeEvaluator::answer(TreeQuery & query) {
    for (std::vector<NodeId> nodes = query.next(); !nodes.empty(); nodes = query.next()) {
        evaluate(nodes, [&](NodeId node, const float * logits) { query.observe(node, logits); });
    }
    Answer out;
    query.write(out);
    out.info.n_evaluated = n_evaluated_;
    out.info.n_passes = sequence_.n_passes() - n_passes_before_;
    return out;
}

// Where two or three rows of a group remain, rows that nobody observes, after the last path, fill it up. The next
// wave drops their cells.
void TreeEvaluator::fill_up(Paths::Wave & wave) const {
    const std::size_t n_more = n_to_fill_up(wave.rows.size());
    if (n_more == 0 || wave.n_cells + n_more > max_cells_) {
        return;
    }
    Row filler = wave.rows.back();
    filler.node = kFiller;
    filler.wanted = true;  // the last layer multiplies logits
    for (std::size_t i = 0; i < n_more; ++i) {
        ++filler.position;
        wave.rows.push_back(filler);
    }
}

void TreeEvaluator::evaluate_singly(NodeId node, const Visit & visit) {
    const TreePath path = path_to(trie_, node);
    const auto differ = std::mismatch(here_.begin(), here_.end(), path.begin(), path.end() - 1);
    const auto n_kept = static_cast<std::size_t>(differ.first - here_.begin());
    go_back_to(n_kept);
    for (std::size_t depth = n_kept; depth < path.size(); ++depth) {
        decode(
            {{path[depth], trie_.token(path[depth]), base_ + static_cast<llama_pos>(depth), path[depth] == node, {0}}},
            1, visit);
        here_.push_back(path[depth]);
        ++n_evaluated_;
        keep_state();
    }
}

// Takes the nodes of the path after depth out of the cache.
void TreeEvaluator::go_back_to(std::size_t depth) {
    if (depth == here_.size()) {
        return;
    }
    const llama_pos end = base_ + static_cast<llama_pos>(depth);
    const bool is_there = has_window(memory_, 0, static_cast<std::size_t>(end), n_swa_);
    throw_if(is_there ? !llama_memory_seq_rm(memory_, 0, end, -1) : !restore(states_[depth]), Status::context,
             "the model's state could not be taken back");
    here_.resize(depth);
    states_.erase(states_.begin() + static_cast<std::ptrdiff_t>(loses_window_ ? depth + 1 : 0), states_.end());
}

void TreeEvaluator::keep_state() {
    if (loses_window_) {
        states_.push_back(state());
    }
}

SavedState TreeEvaluator::state() const {
    SavedState state(sequence_.context(), 0);
    throw_if(!state, Status::context, "the model's state could not be copied");
    return state;
}

bool TreeEvaluator::restore(const SavedState & state) noexcept {
    sequence_.forget_sharing();
    return state.restore(sequence_.context(), 0);
}

void TreeEvaluator::decode(std::vector<Row> rows, std::size_t max_rows, const Visit & visit) {
    // llama.cpp ends the process on more logits than a context was made for, which are at least its sequences.
    const std::size_t max_visited = llama_n_seq_max(sequence_.context());
    const std::size_t n_batch = std::min(sequence_.n_batch(), max_rows);
    for (auto begin = rows.begin(); begin != rows.end();) {
        check_cancelled();
        batch_.clear(n_batch, max_visited, sequence_.takes_one_at_a_time());
        for (auto row = begin; row != rows.end() && batch_.fits(row->wanted, row->ids); ++row) {
            batch_.add(row->token, row->position, row->ids, row->wanted);
        }
        sequence_.evaluate_beside(batch_.batch());
        for (std::size_t i = 0; i < batch_.size(); ++begin, ++i) {
            if (begin->wanted && begin->node != kFiller) {
                visit(begin->node, sequence_.row(static_cast<std::int32_t>(i)));
            }
        }
    }
}

}  // namespace token_trie
