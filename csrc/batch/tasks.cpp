#include "batch/tasks.h"

#include <algorithm>

namespace [[gnu::visibility("default")]] token_trie {

std::unique_ptr<Task> make_task(const Request & request,
                                const llama_vocab * vocab,
                                const Task::Origin & origin,
                                std::size_t n_paths) {
    if (request.is_decoded()) {
        return std::make_unique<DecodeTask>(request, vocab, origin);
    }
    const Cursor & cursor = *request.cursor;
    const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(vocab));
    std::unique_ptr<TreeQuery> query =
        request.mode == Query::Mode::best
            ? begin_search(cursor, request.search, n_vocab, {n_paths, false, has_states(origin.model)})
            : begin_scoring(cursor, request.search, n_vocab);
    return std::make_unique<TreeTask>(std::move(query), cursor.trie(), origin);
}

TreeTask::TreeTask(std::unique_ptr<TreeQuery> query, const Trie & trie, const Origin & origin)
    : query_(std::move(query)),
      trie_(trie),
      paths_(make_paths(origin.model, origin.memory, trie, origin.id, static_cast<llama_pos>(origin.n_before))),
      nodes_(query_->next()),
      wants_root_(!nodes_.empty() && nodes_.front() == kRoot) {
    n_placed_ = wants_root_ ? 1 : 0;
}

std::size_t TreeTask::n_ids_wanted() const noexcept {
    if (paths_->has_more_rows()) {
        return 0;
    }
    const std::size_t n = std::min<std::size_t>(nodes_.size() - n_placed_, trie_.n_leaves());
    return n - std::min(n, paths_->n_ids());
}

std::vector<Row> TreeTask::next_rows(std::size_t max_nodes, std::size_t max_cells) {
    if (!needs_cells()) {
        return {};
    }
    Paths::Wave wave =
        paths_->next_wave(nodes_.data() + n_placed_, std::min(nodes_.size() - n_placed_, max_nodes), max_cells);
    n_placed_ += wave.n_queried;
    n_evaluated_ += wave.rows.size();
    n_cells_ = wave.n_cells;
    return std::move(wave.rows);
}

void TreeTask::advance() {
    if (!needs_cells()) {
        nodes_ = query_->next();
        n_placed_ = 0;
    }
}

void TreeTask::write(Answer & answer) const {
    query_->write(answer);
    answer.info.n_evaluated = n_evaluated_;
}

DecodeTask::DecodeTask(const Request & request, const llama_vocab * vocab, const Origin & origin)
    : request_(request), origin_(origin), decoding_(request, vocab, /* n_before = */ 0) {
    DecodeTask::advance();
}

// The tokens since the last logits, after which the next are wanted.
std::vector<Row> DecodeTask::next_rows(std::size_t /*max_nodes*/, std::size_t /*max_cells*/) {
    if (needs_cells()) {
        llama_memory_seq_cp(origin_.memory, origin_.id, id_, -1, -1);
    }
    std::vector<Row> rows;
    rows.reserve(tokens_.size() - n_rows_);
    for (; n_rows_ < tokens_.size(); ++n_rows_) {
        const auto position = static_cast<llama_pos>(origin_.n_before + n_rows_);
        rows.push_back({kRoot, tokens_[n_rows_], position, n_rows_ + 1 == tokens_.size(), {id_}});
    }
    return rows;
}

void DecodeTask::observe(NodeId /*node*/, const float * logits) {
    logits_ = logits;
    decoding_.step(*this);
}

// Goes on as far as no choice is left.
void DecodeTask::advance() {
    while (!is_done() && decoding_.allowed().only() >= 0) {
        decoding_.step(*this);
    }
}

void DecodeTask::write(Answer & answer) const {
    decoding_.write(tokens_.data(), tokens_.size(), answer);
    answer.info.n_evaluated = n_rows_;
}

TokenSpan DecodeTask::text() const noexcept {
    return request_.is_text() ? TokenSpan{tokens_.data(), static_cast<std::uint32_t>(tokens_.size())} : TokenSpan{};
}

Task::Written DecodeTask::written() const noexcept {
    if (!request_.is_text() && !request_.goes_on) {
        return {};
    }
    return {id_,
            {tokens_.data(), static_cast<std::uint32_t>(n_rows_)},
            std::min(n_rows_, decoding_.n_kept(tokens_.size()))};
}

void DecodeTask::clear() noexcept {
    if (id_ != origin_.id) {
        llama_memory_seq_rm(origin_.memory, id_, -1, -1);
    }
}

}  // namespace token_trie
