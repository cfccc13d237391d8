#include "batch/job.h"

#include "context/output_head.h"

#include <algorithm>

namespace token_trie {

std::size_t Stops::add(std::size_t n, std::size_t n_planned, bool is_shared) noexcept {
    const auto after = std::find_if(stops_.begin(), stops_.end(), [n](const Stop & each) { return each.n > n; });
    const bool has_before = after != stops_.begin();
    if (const auto before = has_before ? std::prev(after) : after; has_before && before->n + Policy::kMinShared > n) {
        before->is_shared = before->is_shared || is_shared;
        return before->n;
    }
    if (n < n_planned || n < last_ + Policy::kMinShared) {
        return 0;
    }
    if (after != stops_.end() && n + Policy::kMinShared > after->n) {
        *after = {n, after->is_shared || is_shared};
    } else if (stops_.size() < Policy::kMaxStops) {
        stops_.insert(after, {n, is_shared});
    } else {
        return has_before ? std::prev(after)->n : 0;
    }
    return n;
}

Stops::Stop Stops::pass() noexcept {
    const Stop stop = stops_.front();
    stops_.erase(stops_.begin());
    last_ = stop.n;
    return stop;
}

Job::Job(Ticket ticket,
         Request request,
         const llama_vocab * vocab,
         const Task::Origin & origin,
         llama_seq_id path_id,
         std::size_t n_shared,
         std::size_t n_paths)
    : ticket_(ticket),
      request_(std::move(request)),
      n_vocab_(static_cast<std::size_t>(llama_vocab_n_tokens(vocab))),
      ids_{origin.id},
      n_prompt_(n_shared),
      task_(make_task(request_, vocab, origin, n_paths)),
      wants_root_(task_->wants_root()),
      kept_id_(origin.id),
      n_shared_(n_shared),
      stops_(n_shared) {
    if (path_id >= 0) {
        lend(path_id);
    } else {
        task_->lend(id());
    }
    if (!task_->needs_cells()) {
        place_rows(0, 0);
    }
}

void Job::lend(llama_seq_id id) {
    lent_.push_back(id);
    task_->lend(id);
}

void Job::place_rows(std::size_t max_nodes, std::size_t max_cells) {
    rows_.clear();
    n_rows_done_ = 0;
    if (!task_->is_done()) {
        rows_ = task_->next_rows(max_nodes, max_cells);
    }
}

llama_seq_id Job::return_id() noexcept {
    const llama_seq_id id = task_->return_id();
    if (id >= 0) {
        lent_.erase(std::find(lent_.begin(), lent_.end(), id));
    }
    return id;
}

void Job::plan(BatchRows & rows, std::size_t max_prompt) {
    const std::size_t n_to_stop = stops_.next() == nullptr ? n_prompt_left() : stops_.next()->n - n_prompt_;
    for (; n_planned_ < std::min(n_to_stop, max_prompt); ++n_planned_) {
        const std::size_t at = n_prompt_ + n_planned_;
        const bool is_last = at + 1 == prompt().size();
        const bool wants_state = is_last && request_.with_hidden_state;
        const bool is_wanted = is_last && (wants_root_ || wants_state);
        if (!rows.fits(is_wanted)) {
            return;
        }
        if (wants_state) {
            state_row_ = rows.size();
        }
        if (is_last && wants_root_) {
            want(rows, kRoot);
        }
        rows.add(prompt()[at], static_cast<llama_pos>(at), ids_, is_wanted);
    }
    if (n_planned_ < n_prompt_left()) {
        return;
    }
    for (; has_rows(); ++n_rows_done_) {
        Row & row = rows_[n_rows_done_];
        if (!rows.fits(row.wanted)) {
            return;
        }
        if (row.wanted) {
            want(rows, row.node);
        }
        rows.add(row.token, row.position, row.ids, row.wanted);
        is_in_pass_ = true;
    }
}

// Wants the logits of the row that comes next.
void Job::want(const BatchRows & rows, NodeId node) { wanted_.push_back({node, rows.size()}); }

bool Job::wants_few() const { return wanted_.empty() || OutputHead::are_few(task_->wanted(), n_vocab_); }

void Job::end_pass() {
    if (n_planned_ > 0 && n_planned_ == n_prompt_left()) {
        prompt_ended_ = std::chrono::steady_clock::now();
    }
    n_prompt_ += std::exchange(n_planned_, 0);
    n_passes_ += std::exchange(is_in_pass_, false) ? 1 : 0;
    wanted_.clear();
    state_row_.reset();
}

void Job::advance() {
    end_pass();
    if (error_) {
        std::rethrow_exception(std::exchange(error_, nullptr));
    }
    if (n_prompt_left() > 0 || has_rows() || task_->is_done()) {
        return;
    }
    task_->advance();
    if (!task_->needs_cells()) {
        place_rows(0, 0);
    }
}

Answer Job::answer() const {
    Answer out;
    task_->write(out);
    out.hidden_state = state_;
    out.info.n_shared = n_shared_;
    out.info.n_passes = n_passes_;
    out.info.prompt_ns = ns_between(started_, prompt_ended_);
    out.info.decide_ns = ns_between(prompt_ended_, std::chrono::steady_clock::now());
    return out;
}

void Job::keep(CellTable & cells) {
    const Task::Written written = task_->written();
    if (written.tokens.size > 0) {
        if (written.id != id()) {
            cells.note_shared(id(), written.id, prompt().size());
        }
        cells.append(written.id, written.tokens.data, written.tokens.size);
        n_kept_ = written.tokens.size;
        kept_id_ = written.id;
    }
    if (request_.goes_on) {
        continuation_ = {0, prompt().size(), true};
    } else if (n_kept_ > 0) {
        continuation_ = {prompt().size(), prompt().size() + written.n_answered, false};
    }
}

void Job::clear_cache(CellTable & cells) noexcept {
    if (kept_id_ == id()) {
        task_->clear();
        for (const llama_seq_id each : lent_) {
            cells.forget(each);  // where noting it failed half-way
        }
    }
    cells.cut(id(), n_prompt_ + (kept_id_ == id() ? n_kept_ : 0));
}

}  // namespace token_trie
