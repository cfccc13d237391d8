#include "batch/scheduler.h"

#include <algorithm>

namespace token_trie {
namespace {

// Of a chunk, the part that long prompts have beside others.
constexpr std::size_t kBesideOthers = 4;

}  // namespace

void Scheduler::plan_by_chunks(BatchRows & rows, const OnAnswer & on_answer) {
    for (Job & job : jobs_) {
        if (!is_long(job.n_own())) {
            job.plan(rows, n_batch_);
        }
    }
    admit(rows, n_batch_, on_answer);
    plan_long(rows);
}

// Half for the one that came first, so that none is overtaken without end; the rest for what is soon done.
void Scheduler::plan_long(BatchRows & rows) {
    std::vector<Job *> jobs;
    for (Job & job : jobs_) {
        if (job.n_prompt_left() > 0 && is_long(job.n_own())) {
            jobs.push_back(&job);
        }
    }
    if (jobs.empty()) {
        return;
    }
    std::size_t n_left = rows.size() == 0 ? n_chunk_ : std::max<std::size_t>(n_chunk_ / kBesideOthers, 1);
    Job * const oldest = jobs.front();
    oldest->plan(rows, (n_left + 1) / 2);
    n_left -= oldest->n_planned();
    std::stable_sort(jobs.begin(), jobs.end(),
                     [](const Job * a, const Job * b) { return a->n_prompt_left() < b->n_prompt_left(); });
    for (Job * const job : jobs) {
        const std::size_t n_before = job->n_planned();
        job->plan(rows, n_before + n_left);
        n_left -= job->n_planned() - n_before;
    }
}

bool Scheduler::is_long(const std::vector<Token> & prompt) const {
    return is_long(prompt.size()) && is_long(prompt.size() - find_source(prompt).second);
}

// Whether so many cells may be taken: by a long prompt, as long as it leaves short ones what is reserved for them; and
// while such a one waits, by short ones of no others.
bool Scheduler::has_reserve(std::size_t n_needed, bool for_long, bool has_long_waiting) const noexcept {
    std::size_t n_short = 0;
    std::size_t n_long = 0;
    for (const Job & job : jobs_) {
        (is_long(job.n_own()) ? n_long : n_short) += job.n_own() + job.n_cells();
    }
    if (for_long) {
        return n_long + n_needed <= n_ctx_max_;
    }
    return !has_long_waiting || n_short + n_needed <= n_reserved_;
}

}  // namespace token_trie
