#include "stream/sequence.h"
#include "stream/window.h"

#include <algorithm>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

// How many cells two branches share: those they had in common when they parted, as names that once differ stay
// different.
std::size_t n_shared(const std::vector<std::uint64_t> & a, const std::vector<std::uint64_t> & b) {
    std::size_t low = 0;
    std::size_t high = std::min(a.size(), b.size());
    while (low < high) {
        const std::size_t middle = low + (high - low) / 2;
        if (a[middle] == b[middle]) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

}  // namespace

llama_seq_id Sequence::first_free_id() const noexcept {
    llama_seq_id last = 0;
    for (const auto & [branch, resting] : resting_) {
        last = std::max(last, resting.id);
    }
    return last + 1;
}

// Half of the ids are left for what evaluates many nodes at a time.
bool Sequence::shares_cells() const noexcept {
    return can_drop_newest(llama_get_model(context_)) && llama_n_ctx_seq(context_) == llama_n_ctx(context_) &&
           static_cast<std::size_t>(first_free_id()) <= n_ids_ / 2;
}

std::size_t Sequence::n_elsewhere() const noexcept {
    std::size_t n = 0;
    for (auto at = resting_.begin(); at != resting_.end(); ++at) {
        std::size_t n_known = n_shared(at->second.cells, cells_);
        for (auto before = resting_.begin(); before != at; ++before) {
            n_known = std::max(n_known, n_shared(at->second.cells, before->second.cells));
        }
        n += at->second.cells.size() - n_known;
    }
    return n;
}

void Sequence::name_cells() {
    cells_.resize(std::min(cells_.size(), n_cached_));
    while (cells_.size() < n_cached_) {
        cells_.push_back(n_cells_named_++);
    }
}

// Of the first n positions; -1: all. Where memory runs out halfway, llama.cpp has lost count, and the cache begins anew
// for all branches.
bool Sequence::copy_cells(llama_context * context, llama_seq_id from, llama_seq_id to, llama_pos n) noexcept {
    llama_memory_t memory = llama_get_memory(context);
    try {
        llama_memory_seq_cp(memory, from, to, -1, n);
        return true;
    } catch (...) {
        llama_memory_clear(memory, true);
        forget_all_branches();
        return false;
    }
}

Sequence::Resting Sequence::copy_at_work() {
    if (!is_own_) {
        make_own();
    }
    keep_logits();
    trim_cache();
    Resting out;
    out.tokens = tokens_;
    const bool shares = n_cached_ > 0 && shares_cells();
    if (shares) {
        if (maker_) {
            make_room(tokens_.size(), 2);
        }
        name_cells();
        out.cells = cells_;
        out.id = first_free_id();
    } else if (n_cached_ > 0) {
        out.state.emplace(context_, 0);
    }
    out.n_cached = n_cached_;
    out.has_logits = has_logits_;
    out.logits = kept_logits_;
    if (shares && !copy_cells(context_, 0, out.id, -1)) {  // last, as nothing else takes them away again
        throw std::bad_alloc();
    }
    return out;
}

// In the place of what was at work, which is lost.
void Sequence::put_to_work(Resting & branch) noexcept {
    llama_memory_t memory = llama_get_memory(context_);
    llama_memory_seq_rm(memory, 0, -1, -1);
    bool is_there = true;
    if (branch.id != 0) {
        is_there = copy_cells(context_, branch.id, 0, -1);
        llama_memory_seq_rm(memory, branch.id, -1, -1);
    } else if (branch.state) {
        is_there = branch.state->restore(context_, 0);
    }
    tokens_ = std::move(branch.tokens);
    taken_over_.clear();
    cells_ = std::move(branch.cells);
    n_cached_ = branch.n_cached;
    cache_is_longer_ = false;
    has_logits_ = branch.has_logits;
    kept_logits_ = std::move(branch.logits);
    if (!is_there) {
        forget_cache();
    }
    check_window();
}

Sequence::Branch Sequence::fork() {
    Resting & resting = resting_[n_branches_];  // first what may fail
    try {
        resting = copy_at_work();
    } catch (...) {
        resting_.erase(n_branches_);
        throw;
    }
    return n_branches_++;
}

void Sequence::switch_to(Branch branch) {
    if (branch == branch_) {
        return;
    }
    if (branch_ != kNone) {
        Resting & resting = resting_[branch_];
        try {
            resting = copy_at_work();
        } catch (...) {
            resting_.erase(branch_);
            throw;
        }
    }
    const auto next = resting_.find(branch);
    put_to_work(next->second);
    resting_.erase(next);
    branch_ = branch;
}

void Sequence::drop(Branch branch) noexcept {
    llama_memory_t memory = llama_get_memory(context_);
    if (branch != branch_) {
        const auto at = resting_.find(branch);
        if (at->second.id != 0) {
            llama_memory_seq_rm(memory, at->second.id, -1, -1);
        }
        resting_.erase(at);
    } else if (!resting_.empty()) {
        tokens_.clear();
        forget_cache();
        cells_.clear();
        llama_memory_seq_rm(memory, 0, -1, -1);
        branch_ = kNone;
    }
}

const std::vector<Token> & Sequence::tokens(Branch branch) const {
    return branch == branch_ ? tokens_ : resting_.at(branch).tokens;
}

std::size_t Sequence::n_cached(Branch branch) const {
    return branch == branch_ ? n_cached_ : resting_.at(branch).n_cached;
}

void Sequence::forget_all_branches() noexcept {
    llama_memory_clear(llama_get_memory(context_), false);
    forget_cache();
    cells_.clear();
    for (auto & [branch, resting] : resting_) {
        if (resting.id != 0) {
            resting.keep(0);
        }
    }
}

// What a resting branch has in common with the one at work comes along; the rest is evaluated again when it is needed.
void Sequence::move_resting(llama_context * to) noexcept {
    for (auto & [branch, resting] : resting_) {
        if (resting.id == 0) {
            continue;
        }
        const std::size_t n_same = std::min(n_shared(resting.cells, cells_), n_cached_);
        const std::size_t n = has_window(llama_get_memory(to), 0, n_same, n_swa_) ? n_same : 0;
        if (n > 0 && !copy_cells(to, 0, resting.id, static_cast<llama_pos>(n))) {
            return;
        }
        resting.keep(n);
    }
}

void Sequence::Resting::keep(std::size_t n) noexcept {
    if (n < n_cached) {
        n_cached = n;
        has_logits = false;
        logits.clear();
    }
    cells.resize(std::min(cells.size(), n));
}

}  // namespace token_trie
