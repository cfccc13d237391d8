#pragma once

#include "batch/policy.h"
#include "context/batch_rows.h"
#include "context/cell_table.h"

#include <algorithm>
#include <vector>

namespace token_trie {

using Ticket = std::int64_t;

// How a later prompt may continue what an id holds: it shares more than `begin` tokens, and nearly `end`.
struct Continuation {
    std::size_t begin = 0;
    std::size_t end = 0;      // 0: none is expected
    bool is_certain = false;  // such a prompt will come, and each token counts for it
};

// The sequence ids of a batch's context, and the prompts that they hold for later ones to begin with:
//
//     free --take--> a job's --retain--> retained --evict--> free
//
// The first ones of many prompts that begin alike are retained, and the last few of others. With a window of sliding
// attention, a retained prompt is cut back to what others shared: llama.cpp keeps the window before a sequence's end.
// With states, copies are kept of what prompts begin with, as each is of use at its full length alone.
class PrefixCache {
   public:
    // max_unused: rows of passes after which a prompt that nobody uses is dropped, infinite with flash attention.
    // Without it, each row attends to all cells up to the last one in use.
    PrefixCache(const llama_memory_t & memory,
                const llama_model * model,
                std::size_t n_ids,
                std::size_t n_cells_max,
                double max_unused);

    CellTable & cells() noexcept { return cells_; }
    const CellTable & cells() const noexcept { return cells_; }
    std::size_t n_free_cells() const noexcept { return n_cells_max_ - std::min(n_cells_max_, cells_.n_cells()); }
    void clear() noexcept;

    // The id that holds the most of a prompt, and how much: all but the last token at most, as its logits are needed.
    struct Source {
        llama_seq_id id = -1;  // -1: none holds any
        std::size_t n = 0;
    };
    Source find_source(const std::vector<Token> & prompt) const noexcept;
    // How much of a prompt any id holds, as a part of more.
    std::size_t n_known(const std::vector<Token> & prompt) const noexcept;
    bool is_retained(llama_seq_id id) const noexcept { return id >= 0 && entry(id).is_retained; }

    // Notes that a request waits whose prompt continues what is retained. False: it continues nothing.
    bool await(Ticket ticket, const std::vector<Token> & prompt) noexcept;
    // The request waits no longer.
    void stop_awaiting(Ticket ticket) noexcept;
    // Prompts retained that a request continues, or is expected to.
    std::size_t n_live() const noexcept;

    const std::vector<llama_seq_id> & free_ids() const noexcept { return free_; }
    // An id that holds nothing, for which one up to a rank is evicted if need be, but not `but`; -1: there is none.
    llama_seq_id take(Eviction max, llama_seq_id but = -1) noexcept;
    // An id that holds the source's tokens: a free one, or the source itself where it is retained and no other prompt
    // began with it (nor will, where its state goes on from there), or no id is free. can_wait: ids will be freed, so
    // that a state which others share stays. -1: there is none, or fewer free cells. Throws std::bad_alloc; call
    // reclaim then.
    llama_seq_id take_with(const Source & source, std::size_t n_cells, Eviction max, bool can_wait);
    void give_back(llama_seq_id id) noexcept { free_.push_back(id); }
    // Frees all ids that are not retained and not in_use(id).
    template <typename InUse>
    void reclaim(const InUse & in_use) noexcept {
        free_.clear();
        for (auto id = static_cast<llama_seq_id>(entries_.size()); id-- > 0;) {
            if (!entry(id).is_retained && !in_use(id)) {
                release(id);
            }
        }
    }

    // Keeps a copy of what a job's id holds, where that has room. is_shared: other prompts are known to begin with it.
    // Throws std::bad_alloc.
    void keep_copy(llama_seq_id from, bool is_shared);
    // Keeps what a job's id holds; frees it where another one holds most of it, or nothing can begin with it.
    void retain(llama_seq_id id, const Continuation & continuation) noexcept;
    // Evicts until so many cells are free. False: there are fewer.
    bool make_room(std::size_t n_cells, Eviction max, llama_seq_id but = -1) noexcept;
    // Frees one retained id of the lowest rank, max at most, but not `but`. False: there is none.
    bool evict(Eviction max, llama_seq_id but = -1, bool texts_too = true) noexcept;

    // Begins a pass, with an empty cache where no job is under way and prompts may be scattered over many unused cells.
    void begin_pass(bool has_jobs) noexcept;
    // Notes a pass that has ended with so many cells in use, and drops what was not used for long.
    void end_pass(const BatchRows & rows, std::size_t n_used_cells) noexcept;

   private:
    struct Entry {
        bool is_retained = false;
        Continuation continuation;
        Ticket awaited_by = 0;     // the request that continues it; 0: none
        std::size_t since = 0;     // the pass in which it was retained
        std::size_t n_shared = 0;  // tokens that other prompts began with
        double used = 0;           // n_rows_ at its last use
        bool is_text() const noexcept { return continuation.end > 0 && !continuation.is_certain; }
    };
    using Ids = std::vector<llama_seq_id>;
    Entry & entry(llama_seq_id id) noexcept { return entries_[static_cast<std::size_t>(id)]; }
    const Entry & entry(llama_seq_id id) const noexcept { return entries_[static_cast<std::size_t>(id)]; }
    bool is_live(const Entry & one) const noexcept {
        return one.continuation.is_certain && (one.awaited_by != 0 || n_passes_ - one.since <= Policy::kPatience);
    }
    Eviction rank(llama_seq_id id) const noexcept;
    bool is_for_one(const Entry & one) const noexcept;
    void keep(llama_seq_id id, const Continuation & continuation, std::size_t n_may_go) noexcept;
    void keep_few(llama_seq_id but) noexcept;
    void count_use(const Source & source, llama_seq_id id) noexcept;
    void cut_to_shared(llama_seq_id id) noexcept;
    void release(llama_seq_id id) noexcept;

    const std::size_t n_cells_max_;
    const std::int32_t n_swa_;  // the window of sliding attention; 0: none
    const double max_unused_;
    CellTable cells_;
    std::vector<Entry> entries_;  // by id
    Ids free_;
    Ids retained_;
    std::size_t n_passes_ = 0;
    double n_rows_ = 0;    // all passes', by the time that they take to attend to a cell
    double n_top_ = 0;     // cells that were in use at once since the cache was empty
    double n_unused_ = 0;  // rows times cells below the top that nothing used
};

}  // namespace token_trie
