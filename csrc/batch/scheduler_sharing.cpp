#include "batch/scheduler.h"
#include "stream/common_prefix.h"

#include <algorithm>

namespace token_trie {

// Whether paths behind its prompt would take the window before them out of the prompt's own id.
bool Scheduler::outgrows_window(const Request & request) const noexcept {
    return n_swa_ > 0 && !request.is_decoded() &&
           request.prompt.size() + request.max_tokens() >= static_cast<std::size_t>(n_swa_);
}

bool Scheduler::is_retained(llama_seq_id id) const noexcept {
    return std::find(retained_.begin(), retained_.end(), id) != retained_.end();
}

void Scheduler::count_shared(llama_seq_id source, llama_seq_id id, std::size_t n) noexcept {
    if (source < 0) {
        return;
    }
    std::size_t & n_shared = n_shared_[static_cast<std::size_t>(source)];
    if (source == id) {
        n_shared = std::min(n_shared, n);
    }
    // Behind a text comes one request.
    if (n >= kMinShared && !holds_text_[static_cast<std::size_t>(source)]) {
        n_shared = std::max(n_shared, n);
    }
    if (is_retained(source)) {
        cut_to_shared(source);
    }
}

// Of one that is retained, or about to be: with more behind it, the window before what was shared would not stay.
void Scheduler::cut_to_shared(llama_seq_id id) noexcept {
    const std::size_t n = n_shared_[static_cast<std::size_t>(id)];
    if (n_swa_ > 0 && n > 0 && cells_.n_held(id) >= static_cast<std::size_t>(n_swa_) && cells_.has_window(id, n)) {
        cells_.cut(id, n);
    }
}

// Whether a prompt under way is about to evaluate much of this one.
bool Scheduler::is_worth_waiting(const std::vector<Token> & prompt) const {
    std::size_t n_soon = 0;
    for (const Job & job : jobs_) {
        if (job.n_prompt_left() > 0) {
            const std::size_t n = common_prefix(job.prompt(), prompt);
            n_soon = std::max(n_soon, cells_.n_held(job.id()) < n ? n : 0);
        }
    }
    return n_soon >= kMinShared && n_soon >= find_source(prompt).second + kMinShared;
}

// The id that holds most of a prompt, save its last token, behind which the logits are needed; -1: none holds any.
std::pair<llama_seq_id, std::size_t> Scheduler::find_source(const std::vector<Token> & prompt) const {
    std::pair<llama_seq_id, std::size_t> best{-1, 0};
    const auto look_at = [&](llama_seq_id id) {
        const std::size_t n = std::min(cells_.n_common(id, prompt), prompt.size() - 1);
        if (n > best.second && cells_.has_window(id, n)) {
            best = {id, n};
        }
    };
    for (const llama_seq_id id : retained_) {
        look_at(id);
    }
    for (const Job & job : jobs_) {
        look_at(job.id());
    }
    return best;
}

}  // namespace token_trie
