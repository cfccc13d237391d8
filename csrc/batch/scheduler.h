#pragma once

#include "batch/job.h"
#include "batch/policy.h"
#include "batch/prefix_cache.h"
#include "context/contexts.h"
#include "context/output_head.h"

#include <functional>
#include <list>
#include <map>

namespace token_trie {

// Requests in one context, each in sequences of its own, all of them in the same passes; policy.h says in which order:
//
//     waiting ----> under way: ids, cells -----> answered; its id is retained, or holds nothing
//                      |  pass: rows of all of them, one llama_decode
//                      '--- observe, advance
//
// Logits that are not finite may come from another request's cells. All requests under way are then quarantined: each
// is decided again, alone in an empty cache, and what is not finite even so is the error of that one. One thread at a
// time.
class [[gnu::visibility("default")]] Scheduler {
   public:
    struct Options {
        std::size_t n_ids = 0;    // 0: as many as the model may have; states take twice as many
        std::size_t n_batch = 0;  // rows of a pass at most; 0: Policy::kRows
        std::size_t n_chunk = 0;  // 0: no chunks, which takes the least time for all together
        std::size_t n_first = 0;  // tokens of the context at first; 0: all that there may be
    };
    // Throws nothing.
    using OnAnswer = std::function<void(Ticket, Answer)>;
    // on_answer gets the answer of each request, once. Throws Error: argument where the context holds less than two
    // sequences; memory where there is none for the context.
    Scheduler(ContextMaker maker, const Options & options, OnAnswer on_answer);

    const llama_vocab * vocab() const noexcept { return vocab_; }
    // Tokens of a prompt and its longest answer.
    std::size_t n_ctx_max() const noexcept { return n_ctx_max_; }

    using Requests = std::map<Ticket, Request>;
    // Takes all of them.
    void add(Requests & requests) noexcept;
    // Answers a request that it was cancelled. Does nothing for one that is not here.
    void cancel(Ticket ticket) noexcept;
    // Makes one pass for as many requests as fit, and answers those that it decides. A failure is the answer of the
    // requests that it concerns: of one, or of all under way.
    void pass() noexcept;
    // Calls with the ticket and the tokens of each text under way.
    template <typename OnText>
    void for_each_text(OnText && on_text) const {
        for (const Job & job : jobs_) {
            if (const TokenSpan text = job.text(); text.size > 0) {
                on_text(job.ticket(), text);
            }
        }
    }

   private:
    using Jobs = std::list<Job>;

    void plan();
    void plan_prompts(std::size_t max_rows);
    void plan_long();
    void place_rows(Job & job);
    void decode();
    void take_answers() noexcept;
    void answer(Jobs::iterator job) noexcept;
    void end(Jobs::iterator job) noexcept;
    void fail_all() noexcept;
    void quarantine() noexcept;

    void admit();
    void admit_quarantined();
    bool admit_one(Requests & from, Requests::iterator at);
    bool try_begin(Requests::value_type & waiting, Eviction max);
    bool begin(Ticket ticket, Request & request, Eviction max);
    Requests & oldest() noexcept;
    bool has_room_to_go_on() noexcept;
    bool is_worth_waiting(const std::vector<Token> & prompt);
    void go_on_from_stops();
    void stop_where_others_part(Job & job);
    bool is_long(const std::vector<Token> & prompt) const;
    bool is_long(const Job & job) const noexcept { return job.n_own() > policy_.max_short; }
    bool respects_reserve(std::size_t n_needed, bool for_long) const noexcept;
    bool outgrows_window(const Request & request) const noexcept;
    std::size_t n_ids_for(const Request & request) const noexcept;
    bool leaves_ids(const Request & request) const noexcept;
    std::size_t n_promised() const noexcept;
    std::size_t n_cells_left() const noexcept;
    std::size_t n_taken() const noexcept { return cache_.cells().n_cells() + n_promised(); }
    bool grow(std::size_t n_cells);
    bool find_cells(std::size_t n, Eviction max, llama_seq_id source);

    void decode(BatchRows & part, bool cut, const BatchRows::Indices & indices);
    const float * logits_of(const BatchRows & part, std::size_t row, const Task & task);
    std::vector<float> state_of(const BatchRows & part, std::size_t row);

    const OnAnswer on_answer_;
    const std::size_t n_ids_;
    const double depth_;  // cells after which a row takes twice as long as after none
    const double max_unused_;
    const std::size_t n_cells_max_;
    GrowingContext context_;
    const llama_model * const model_;
    const llama_vocab * const vocab_;
    const bool takes_one_at_a_time_;
    const std::size_t n_batch_;
    const Policy policy_;
    const std::size_t n_ctx_max_;
    const std::size_t n_paths_;
    std::vector<float> few_logits_;  // the logits wanted, where passes can be cut
    PrefixCache cache_;
    BatchRows rows_;
    BatchRows part_;                    // with states, a part of them
    std::vector<llama_seq_id> filler_;  // the id of rows that fill up a pass
    Jobs jobs_;                         // in the order in which they came in
    Requests waiting_;
    Requests continuations_;  // wait likewise, and continue what the cache holds
    Requests quarantined_;
    bool is_quarantined_ = false;    // the job under way is, alone
    bool has_long_waiting_ = false;  // a long prompt was not admitted in this pass
    std::size_t n_overtaken_ = 0;    // requests that have passed the oldest
    std::size_t n_quiet_ = 0;        // passes since the last that had a short prompt
};

}  // namespace token_trie
