#include "stream/sequence.h"

#include <algorithm>
#include <new>

namespace [[gnu::visibility("default")]] token_trie {

llama_seq_id Sequence::first_free_id() const noexcept {
    llama_seq_id last = 0;
    for (const auto & [branch, suspended] : suspended_) {
        last = std::max(last, suspended.id);
    }
    return last + 1;
}

// Half of the ids are left for what evaluates many nodes at a time.
bool Sequence::shares_cells() const noexcept {
    return context_.shares_cells() && static_cast<std::size_t>(first_free_id()) <= context_.n_ids_max() / 2;
}

Sequence::Suspended Sequence::copy_at_work() {
    context_.take();
    keep_logits();
    trim_cache();
    Suspended out;
    out.tokens = tokens_;
    const bool shares = n_cached_ > 0 && shares_cells();
    if (shares) {
        grow(tokens_.size(), 2);
        cells_.forget(0, n_cached_);
        const std::size_t n_named = cells_.n_held(0);
        cells_.append(0, tokens_.data() + n_named, n_cached_ - n_named);
        out.id = first_free_id();
    } else if (n_cached_ > 0) {
        out.state.emplace(context(), 0);
    }
    out.n_cached = n_cached_;
    out.logits = logits_;
    if (shares) {
        try {
            cells_.share(0, out.id, n_cached_);  // last, as nothing else takes them away again
        } catch (...) {
            if (!cells_.has_count()) {
                forget_all_branches();
            }
            throw;
        }
    }
    return out;
}

// In the place of what was at work, which is lost.
void Sequence::put_to_work(Suspended & branch) noexcept {
    cells_.cut(0, 0);
    bool is_there = true;
    if (branch.id != 0) {
        try {
            cells_.move(branch.id, 0);
        } catch (...) {
            forget_all_branches();
            is_there = false;
        }
    } else if (branch.state) {
        is_there = branch.state->restore(context(), 0);
    }
    tokens_ = std::move(branch.tokens);
    import_.held.clear();
    n_cached_ = branch.n_cached;
    cache_is_longer_ = false;
    logits_ = std::move(branch.logits);
    if (!is_there) {
        forget_cache();
    }
    check_window();
}

Sequence::Branch Sequence::fork() {
    Suspended & suspended = suspended_[n_branches_];  // first what may fail
    try {
        suspended = copy_at_work();
    } catch (...) {
        suspended_.erase(n_branches_);
        throw;
    }
    return n_branches_++;
}

void Sequence::switch_to(Branch branch) {
    if (branch == branch_) {
        return;
    }
    if (branch_ != kNone) {
        Suspended & suspended = suspended_[branch_];
        try {
            suspended = copy_at_work();
        } catch (...) {
            suspended_.erase(branch_);
            throw;
        }
    }
    const auto next = suspended_.find(branch);
    put_to_work(next->second);
    suspended_.erase(next);
    branch_ = branch;
}

void Sequence::drop(Branch branch) noexcept {
    if (branch != branch_) {
        const auto at = suspended_.find(branch);
        if (at->second.id != 0) {
            cells_.cut(at->second.id, 0);
        }
        suspended_.erase(at);
    } else if (!suspended_.empty()) {
        tokens_.clear();
        forget_cache();
        cells_.cut(0, 0);
        branch_ = kNone;
    }
}

const std::vector<Token> & Sequence::tokens(Branch branch) const {
    return branch == branch_ ? tokens_ : suspended_.at(branch).tokens;
}

std::size_t Sequence::n_cached(Branch branch) const {
    return branch == branch_ ? n_cached_ : suspended_.at(branch).n_cached;
}

void Sequence::forget_all_branches() noexcept {
    cells_.clear();
    forget_cache();
    for (auto & [branch, suspended] : suspended_) {
        if (suspended.id != 0) {
            suspended.keep(0);
        }
    }
}

// What a suspended branch has in common with the one at work comes along; the rest is evaluated again when it is
// needed.
void Sequence::move_cells(llama_memory_t to) noexcept {
    try {
        cells_.move_to(to);
    } catch (...) {
        forget_all_branches();
        return;
    }
    for (auto & [branch, suspended] : suspended_) {
        if (suspended.id != 0) {
            suspended.keep(cells_.n_held(suspended.id));
        }
    }
}

void Sequence::Suspended::keep(std::size_t n) noexcept {
    if (n < n_cached) {
        n_cached = n;
        logits = {};
    }
}

}  // namespace token_trie
