#include "batch/prefix_cache.h"

#include <algorithm>
#include <utility>

namespace token_trie {

PrefixCache::PrefixCache(const llama_memory_t & memory,
                         const llama_model * model,
                         std::size_t n_ids,
                         std::size_t n_cells_max,
                         double max_unused)
    : n_cells_max_(n_cells_max),
      n_swa_(llama_model_n_swa(model)),
      max_unused_(max_unused),
      cells_(memory, model, n_ids),
      entries_(n_ids) {
    free_.reserve(n_ids);
    retained_.reserve(n_ids);
    clear();
}

void PrefixCache::clear() noexcept {
    cells_.clear();
    std::fill(entries_.begin(), entries_.end(), Entry());
    retained_.clear();
    n_top_ = n_unused_ = 0;
    reclaim([](llama_seq_id) { return false; });
}

PrefixCache::Source PrefixCache::find_source(const std::vector<Token> & prompt) const noexcept {
    Source best;
    const auto look_at = [&](llama_seq_id id) {
        const std::size_t n = std::min(cells_.n_common(id, prompt), prompt.size() - 1);
        if (n > best.n && cells_.can_continue(id, n)) {
            best = {id, n};
        }
    };
    std::for_each(retained_.begin(), retained_.end(), look_at);
    for (llama_seq_id id = 0; static_cast<std::size_t>(id) < entries_.size(); ++id) {
        if (!entry(id).is_retained) {
            look_at(id);
        }
    }
    return best;
}

std::size_t PrefixCache::n_known(const std::vector<Token> & prompt) const noexcept {
    std::size_t n = 0;
    for (llama_seq_id id = 0; static_cast<std::size_t>(id) < entries_.size(); ++id) {
        n = std::max(n, cells_.n_common(id, prompt));
    }
    return std::min(n, prompt.size() - 1);
}

bool PrefixCache::await(Ticket ticket, const std::vector<Token> & prompt) noexcept {
    std::pair<Entry *, std::size_t> best{nullptr, 0};
    for (const llama_seq_id id : retained_) {
        const Continuation & continuation = entry(id).continuation;
        const std::size_t n = continuation.end > 0 ? cells_.n_common(id, prompt) : 0;
        if (n > best.second && n > continuation.begin && n + Policy::kSeam >= continuation.end &&
            cells_.can_continue(id, n)) {
            best = {&entry(id), n};
        }
    }
    if (best.first != nullptr) {
        best.first->awaited_by = ticket;
    }
    return best.first != nullptr;
}

void PrefixCache::stop_awaiting(Ticket ticket) noexcept {
    for (Entry & each : entries_) {
        if (each.awaited_by == ticket) {
            each.awaited_by = 0;
            each.continuation = {};
        }
    }
}

std::size_t PrefixCache::n_live() const noexcept {
    return static_cast<std::size_t>(
        std::count_if(retained_.begin(), retained_.end(), [this](llama_seq_id id) { return is_live(entry(id)); }));
}

llama_seq_id PrefixCache::take(Eviction max, llama_seq_id but) noexcept {
    if (free_.empty() && !evict(max, but)) {
        return -1;
    }
    const llama_seq_id id = free_.back();
    free_.pop_back();
    return id;
}

llama_seq_id PrefixCache::take_with(const Source & source, std::size_t n_cells, Eviction max, bool can_wait) {
    const bool is_retained = this->is_retained(source.id);
    const bool is_copied = !is_retained || (!is_for_one(entry(source.id)) && n_free_cells() >= n_cells);
    const bool stays = can_wait && is_retained && cells_.has_states() && entry(source.id).n_shared > 0;
    llama_seq_id id = is_copied ? take(max, source.id) : -1;
    if (id >= 0 && source.id >= 0) {
        cells_.share(source.id, id, source.n);
    } else if (id < 0 && is_retained && !stays) {
        cells_.cut(source.id, source.n);
        if (n_free_cells() >= n_cells) {
            id = source.id;
            entry(id).is_retained = false;
            retained_.erase(std::find(retained_.begin(), retained_.end(), id));
        }
    }
    if (id >= 0) {
        count_use(source, id);
    }
    return id;
}

// Whether a prompt that begins with it may take it over: nobody else has begun with it, and whoever does later shares
// the same with that prompt or, as its state is gone then, is not expected.
bool PrefixCache::is_for_one(const Entry & one) const noexcept {
    return one.n_shared == 0 && (!cells_.has_states() || one.continuation.end > 0);
}

void PrefixCache::count_use(const Source & source, llama_seq_id id) noexcept {
    if (source.id >= 0) {
        Entry & from = entry(source.id);
        from.used = n_rows_;
        from.n_shared = source.id == id ? std::min(from.n_shared, source.n) : from.n_shared;
        // A text is continued by one prompt.
        if (source.n >= Policy::kMinShared && !from.is_text()) {
            from.n_shared = std::max(from.n_shared, source.n);
        }
        if (from.is_retained) {
            cut_to_shared(source.id);
        }
    }
    entry(id).continuation = {};
    entry(id).awaited_by = 0;
}

// Longer than that, it would lose the window before what others shared.
void PrefixCache::cut_to_shared(llama_seq_id id) noexcept {
    const std::size_t n = entry(id).n_shared;
    if (n_swa_ > 0 && n > 0 && cells_.n_held(id) >= static_cast<std::size_t>(n_swa_) && cells_.can_continue(id, n)) {
        cells_.cut(id, n);
    }
}

void PrefixCache::retain(llama_seq_id id, const Continuation & continuation) noexcept {
    cut_to_shared(id);
    const std::size_t n_held = cells_.n_held(id);
    if (n_held == 0 || !cells_.can_continue(id, n_held)) {
        release(id);
        return;
    }
    entry(id).n_shared = cells_.can_continue(id, entry(id).n_shared) ? entry(id).n_shared : 0;
    const bool is_shared = entry(id).n_shared > 0;
    keep(id, continuation,
         continuation.is_certain             ? 0
         : is_shared || continuation.end > 0 ? Policy::kMinShared
                                             : n_held / 2);
}

void PrefixCache::keep_copy(llama_seq_id from, bool is_shared) {
    const llama_seq_id id = take(is_shared ? Eviction::text : Eviction::fresh, from);
    if (id < 0) {
        return;
    }
    const std::size_t n = cells_.n_held(from);
    cells_.share(from, id, n);
    entry(id).n_shared = is_shared ? n : 0;
    keep(id, {}, Policy::kMinShared);
}

// Unless another one holds all of it but n_may_go tokens.
void PrefixCache::keep(llama_seq_id id, const Continuation & continuation, std::size_t n_may_go) noexcept {
    const std::size_t n_held = cells_.n_held(id);
    const auto like = std::find_if(retained_.begin(), retained_.end(), [&](llama_seq_id each) {
        const std::size_t n = cells_.n_common(each, id);
        return n + n_may_go >= n_held && cells_.can_continue(each, n);
    });
    if (like != retained_.end()) {
        entry(*like).used = n_rows_;
        release(id);
        return;
    }
    retained_.push_back(id);
    entry(id) = {true, continuation, 0, n_passes_, entry(id).n_shared, n_rows_};
    keep_few(id);
}

// Evicts one where more are kept than is good.
void PrefixCache::keep_few(llama_seq_id but) noexcept {
    std::size_t n_prompts = 0;
    std::size_t n_fresh = 0;
    for (const llama_seq_id each : retained_) {
        const bool is_prompt = entry(each).continuation.end == 0;
        n_prompts += is_prompt ? 1 : 0;
        n_fresh += is_prompt && entry(each).n_shared == 0 ? 1 : 0;
    }
    const std::size_t max_prompts = std::max<std::size_t>(entries_.size() / Policy::kRetainedIds, 1);
    if (entry(but).continuation.end == 0 && (n_fresh > Policy::kMaxFresh || n_prompts > max_prompts)) {
        evict(Eviction::shared, but, /* texts_too = */ false);
    } else if (cells_.has_states() && retained_.size() > n_live() + 2 * max_prompts) {
        evict(Eviction::shared, but);
    }
}

Eviction PrefixCache::rank(llama_seq_id id) const noexcept {
    const Entry & one = entry(id);
    return is_live(one)       ? Eviction::live
           : one.n_shared > 0 ? Eviction::shared
           : one.is_text()    ? Eviction::text
                              : Eviction::fresh;
}

bool PrefixCache::evict(Eviction max, llama_seq_id but, bool texts_too) noexcept {
    const auto cost = [&](llama_seq_id id) {
        const Eviction rank = id == but || (!texts_too && entry(id).is_text()) ? Eviction::pinned : this->rank(id);
        return std::pair(rank, rank == Eviction::live ? static_cast<double>(cells_.n_held(id)) : entry(id).used);
    };
    const auto at = std::min_element(retained_.begin(), retained_.end(),
                                     [&](llama_seq_id a, llama_seq_id b) { return cost(a) < cost(b); });
    if (at == retained_.end() || cost(*at).first > max) {
        return false;
    }
    release(*at);
    retained_.erase(at);
    return true;
}

bool PrefixCache::make_room(std::size_t n_cells, Eviction max, llama_seq_id but) noexcept {
    while (n_free_cells() < n_cells && evict(max, but)) {
    }
    return n_free_cells() >= n_cells;
}

void PrefixCache::release(llama_seq_id id) noexcept {
    cells_.cut(id, 0);
    entry(id) = {};
    free_.push_back(id);
}

void PrefixCache::begin_pass(bool has_jobs) noexcept {
    ++n_passes_;
    if (!has_jobs && n_live() == 0 && n_unused_ > max_unused_ * static_cast<double>(cells_.n_cells())) {
        while (evict(Eviction::live)) {
        }
        n_top_ = n_unused_ = 0;
    }
}

void PrefixCache::end_pass(const BatchRows & rows, std::size_t n_used_cells) noexcept {
    const auto n_wanted = static_cast<double>(rows.n_wanted());
    const double n_rows = n_wanted + (static_cast<double>(rows.size()) - n_wanted) * Policy::kPromptAttention;
    n_rows_ += n_rows;
    n_top_ = std::max(n_top_, static_cast<double>(n_used_cells));
    n_unused_ += n_rows * (n_top_ - static_cast<double>(n_used_cells));
    for (auto at = retained_.begin(); at != retained_.end();) {
        if (is_live(entry(*at)) || n_rows_ - entry(*at).used <= max_unused_) {
            ++at;
        } else {
            release(*at);
            at = retained_.erase(at);
        }
    }
}

}  // namespace token_trie
