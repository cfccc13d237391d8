#include "batch/failure.h"
#include "batch/scheduler.h"
#include "stream/finite.h"

#include <algorithm>

namespace token_trie {

void Scheduler::pass(const OnAnswer & on_answer) noexcept {
    try {
        rows_.clear(n_batch_, n_ids_);
        plan(rows_, on_answer);
        if (rows_.size() == 0) {
            return;
        }
        decode(rows_);
        for (const Job & job : jobs_) {
            cells_.append(job.id(), job.prompt().data() + job.prompt().size() - job.n_prompt_left(), job.n_planned());
        }
    } catch (...) {
        fail_all(on_answer);
        return;
    }
    bool is_finite = true;
    for (auto job = jobs_.begin(); job != jobs_.end();) {
        const auto next = std::next(job);
        try {
            job->take([this](const WantedRow & row, const Task & task) { return logits_of(row, task); },
                      [this](std::size_t row) { return state_of(row); });
            if (job->is_done()) {
                answer(job, on_answer);
            }
        } catch (const NotFinite &) {
            is_finite = false;
            if (is_apart_) {
                on_answer(job->ticket(), failure());
                jobs_.erase(job);
            }
        } catch (...) {
            on_answer(job->ticket(), failure());
            end(job);
        }
        job = next;
    }
    if (!is_finite) {
        set_apart(on_answer);
    }
}

// All under way.
void Scheduler::set_apart(const OnAnswer & on_answer) noexcept {
    try {
        for (Job & job : jobs_) {
            apart_.emplace(job.ticket(), job.take_request());
        }
    } catch (...) {
        apart_.clear();
        fail_all(on_answer);
        return;
    }
    jobs_.clear();
    clear_cache();
}

// Of what is decided; it ends.
void Scheduler::answer(Jobs::iterator job, const OnAnswer & on_answer) noexcept {
    Answer made;
    try {
        made = job->answer();
        job->keep_text(cells_);
    } catch (...) {
        made = failure();
    }
    on_answer(job->ticket(), std::move(made));
    end(job);
}

// First what is nearest to its answer.
void Scheduler::plan(BatchRows & rows, const OnAnswer & on_answer) {
    for (Job & job : jobs_) {
        if (job.needs_cells() && rows.fits(true)) {
            place_rows(job, rows);
        }
        if (job.n_prompt_left() == 0) {
            job.plan(rows, 0);
        }
    }
    if (n_chunk_ > 0) {
        plan_by_chunks(rows, on_answer);
        return;
    }
    // A long prompt leaves rows to others, as long as there are any.
    const std::size_t part = std::max<std::size_t>(n_batch_ / 2, 1);
    for (Job & job : jobs_) {
        job.plan(rows, part);
    }
    admit(rows, part, on_answer);
    for (Job & job : jobs_) {
        job.plan(rows, n_batch_);
    }
}

void Scheduler::place_rows(Job & job, BatchRows & rows) {
    lend_ids(job);
    // Of a large tree, no more cells than a pass or so takes; and where others may come, half of the logits left.
    const std::size_t max_cells = std::min(job.n_cells() + n_cells_left(), 2 * n_batch_);
    const std::size_t max_nodes = n_chunk_ == 0 ? rows.n_wanted_left() : (rows.n_wanted_left() + 1) / 2;
    job.place_rows(max_nodes, std::max(job.n_cells(), max_cells));
    for (llama_seq_id id = job.return_id(); id >= 0; id = job.return_id()) {
        empty_.push_back(id);
    }
}

void Scheduler::decode(BatchRows & rows) {
    const bool cut =
        rows.n_wanted() > 0 && std::all_of(jobs_.begin(), jobs_.end(), [](const Job & job) { return job.wants_few(); });
    filler_.assign(empty_.end() - (empty_.empty() ? 0 : 1), empty_.end());
    const bool is_filled = !cut && rows.fill_up(filler_, filler_.empty() ? 0 : n_cells_left());
    check_decoded(head_.decode(context_.get(), rows.batch(), cut));
    if (is_filled) {
        cells_.cut(filler_.front(), 0);
    }
}

const float * Scheduler::logits_of(const WantedRow & row, const Task & task) {
    if (head_.was_cut()) {
        few_logits_.resize(static_cast<std::size_t>(llama_vocab_n_tokens(vocab_)));
        head_.multiply(task.wanted(), llama_n_threads(context_.get()), few_logits_.data(), row.output);
        check_finite(few_logits_.data(), task.wanted(), few_logits_.size());
        return few_logits_.data();
    }
    const float * logits = llama_get_logits_ith(context_.get(), row.row);
    if (logits == nullptr) {
        throw Error(Status::context, "the context gives no logits");
    }
    check_finite(logits, {true, {}, {}}, static_cast<std::size_t>(llama_vocab_n_tokens(vocab_)));
    return logits;
}

std::vector<float> Scheduler::state_of(std::size_t row) {
    llama_synchronize(context_.get());
    std::vector<float> state = head_.hidden_state(rows_.output_of(row));
    check_finite(state);
    return state;
}

// By what is handled where this is called.
void Scheduler::fail_all(const OnAnswer & on_answer) noexcept {
    with_failure([&](Status status, const char * message) {
        for (const Job & job : jobs_) {
            on_answer(job.ticket(), failure(status, message));
        }
    });
    jobs_.clear();
    clear_cache();
}

}  // namespace token_trie
