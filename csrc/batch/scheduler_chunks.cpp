#include "batch/scheduler.h"

#include <algorithm>
#include <cmath>

namespace token_trie {
namespace {

// Of as many rows as make a prompt a long one, those that long ones have in a pass.
constexpr double kChunk = 0.5;
// Of these, the part that they have beside others.
constexpr double kBesideOthers = 0.25;
// Passes without a short prompt after which none is expected.
constexpr std::size_t kQuiet = 32;

}  // namespace

// A row behind so many cells takes twice as long as one behind none: attention is then as much work as the weights, of
// which it makes half as good use.
double Scheduler::depth_of(const llama_model * model) {
    const double n_multiplied = 4.0 * llama_model_n_embd(model) * llama_model_n_layer(model);
    return std::max(static_cast<double>(llama_model_n_params(model)) / std::max(n_multiplied, 1.0), 1.0);
}

void Scheduler::plan_by_chunks(BatchRows & rows, const OnAnswer & on_answer) {
    for (Job & job : jobs_) {
        if (!is_long(job.n_own())) {
            job.plan(rows, n_batch_);
        }
    }
    admit(rows, n_batch_, on_answer);
    const bool has_short =
        std::any_of(jobs_.begin(), jobs_.end(), [&](const Job & job) { return !is_long(job.n_own()); });
    n_quiet_ = has_short ? 0 : n_quiet_ + 1;
    const double chunk = n_quiet_ > kQuiet ? static_cast<double>(n_batch_) : kChunk * static_cast<double>(n_chunk_);
    plan_long(rows, rows.size() == 0 ? chunk : chunk * kBesideOthers);
}

// As many rows as take the time of so many behind nothing: half for the one that came first, so that none is overtaken
// without end; the rest for what is soon done.
void Scheduler::plan_long(BatchRows & rows, double chunk) {
    std::vector<Job *> jobs;
    for (Job & job : jobs_) {
        if (job.n_prompt_left() > 0 && is_long(job.n_own())) {
            jobs.push_back(&job);
        }
    }
    if (jobs.empty()) {
        return;
    }
    const auto plan = [&](Job & job, double share) {
        const std::size_t n_before = job.n_planned();
        const auto at = static_cast<double>(job.prompt().size() - job.n_prompt_left() + n_before);
        const double each = 1 + at / depth_;
        job.plan(rows, n_before + static_cast<std::size_t>(std::ceil(std::max(share, 0.0) / each)));
        chunk -= each * static_cast<double>(job.n_planned() - n_before);
    };
    plan(*jobs.front(), chunk / 2);
    std::stable_sort(jobs.begin(), jobs.end(),
                     [](const Job * a, const Job * b) { return a->n_prompt_left() < b->n_prompt_left(); });
    for (Job * const job : jobs) {
        plan(*job, chunk);
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
