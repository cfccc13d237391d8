#pragma once

#include "batch/job.h"
#include "context/contexts.h"
#include "context/output_head.h"

#include <functional>
#include <list>
#include <map>
#include <utility>

namespace token_trie {

// Requests in one context, each in sequences of its own, all of them in the same passes:
//
//     waiting ----> under way: ids, cells -----> answered; its id is retained, or holds nothing
//                      |  pass: rows of all of them, one llama_decode
//                      '--- observe, advance
//
// A prompt begins with the cells of the sequence that shares most of it, under way or retained, and one that is about
// to be evaluated is waited for where much is shared. An id that is retained keeps its prompt as long as that may be of
// use: the first ones of many that begin alike, and the last few of others; without flash attention, for a number of
// rows since its last use. With a window of sliding attention, what is retained after a beginning that was shared goes:
// llama.cpp keeps the window before a sequence's end.
//
// A request after a text that has ended comes first, as long as it is there; but nobody is overtaken without end. What
// is sure to go on keeps its id until then, and others of that kind begin where there is room beside it.
//
// A request is admitted when the cells for its prompt and one answer are there, so that it always comes to its end; a
// tree takes what more there is. One thread at a time.
//
// Where logits are not finite, that may come of the cells of another. So all under way are then decided again, each
// alone in a cache that was emptied; what is not finite even so is the error of that one.
//
// With chunks, short prompts need not wait for long ones, which take more than two of them:
//
//     pass   rows of answers | short prompts, all of them | long ones: a chunk together, and beside others a part of it
//     cells  long ones                                                       | reserved, for short ones
//
// A chunk is so much work; the farther back a prompt reaches, the fewer rows that are. Where no short prompts come, it
// is a whole pass.
class [[gnu::visibility("default")]] Scheduler {
   public:
    struct Options {
        std::size_t n_ids = 0;    // 0: as many as the model may have
        std::size_t n_batch = 0;  // rows of a pass at most; 0: kRows
        std::size_t n_chunk = 0;  // 0: no chunks, which takes the least time for all together
    };
    // Throws Error (argument) where the model's sequences cannot share cells, or the context holds less than two; of
    // memory, where there is none for the context.
    Scheduler(const ContextMaker & maker, const Options & options);

    const llama_vocab * vocab() const noexcept { return vocab_; }
    // Tokens of a prompt and its longest answer.
    std::size_t n_ctx_max() const noexcept { return n_ctx_max_; }

    using Requests = std::map<Ticket, Request>;
    // Takes all of them.
    void add(Requests & requests) noexcept;

    // Throws nothing.
    using OnAnswer = std::function<void(Ticket, Answer)>;
    // Forgets a request, whose answer is that it was cancelled. One that is not here has none.
    void cancel(Ticket ticket, const OnAnswer & on_answer) noexcept;
    // One pass for as many as fit, and the answers to what is decided then. What fails is the answer of
    // those whom it concerns: of one request, or of all under way.
    void pass(const OnAnswer & on_answer) noexcept;
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
    // Tokens that are worth a pass's delay to have them evaluated once.
    static constexpr std::size_t kMinShared = 16;

    void plan(BatchRows & rows, const OnAnswer & on_answer);
    void place_rows(Job & job, BatchRows & rows);
    void plan_by_chunks(BatchRows & rows, const OnAnswer & on_answer);
    void plan_long(BatchRows & rows, double chunk);
    bool is_long(std::size_t n_own) const noexcept { return n_chunk_ > 0 && n_own > n_chunk_; }
    bool is_long(const std::vector<Token> & prompt) const;
    bool has_reserve(std::size_t n_needed, bool for_long, bool has_long_waiting) const noexcept;
    void admit(BatchRows & rows, std::size_t part, const OnAnswer & on_answer);
    bool try_begin(Requests::value_type & waiting, bool has_long_waiting, int max_rank, const OnAnswer & on_answer);
    bool begin(Ticket ticket, Request & request, bool has_long_waiting, int max_rank, const OnAnswer & on_answer);
    bool outgrows_window(const Request & request) const noexcept;
    bool was_shared(llama_seq_id id) const noexcept { return n_shared_[static_cast<std::size_t>(id)] > 0; }
    bool is_retained(llama_seq_id id) const noexcept;
    void count_shared(llama_seq_id source, llama_seq_id id, std::size_t n) noexcept;
    void cut_to_shared(llama_seq_id id) noexcept;
    Requests & oldest() noexcept;
    // What an id is retained for, since a pass; is_awaited: the prompt that goes on has come, and waits.
    struct Kept : Job::Kept {
        std::size_t since = 0;
        bool is_awaited = false;
    };
    Kept * find_kept(const std::vector<Token> & prompt) noexcept;
    bool is_live(llama_seq_id id) const noexcept;
    bool has_room_to_go_on() noexcept;
    void reclaim_ids() noexcept;
    bool is_worth_waiting(const std::vector<Token> & prompt) const;
    std::pair<llama_seq_id, std::size_t> find_source(const std::vector<Token> & prompt) const;
    llama_seq_id free_id(llama_seq_id but, int max_rank);
    bool evict_one(llama_seq_id but, int max_rank, bool texts_too = true) noexcept;
    void release(llama_seq_id id) noexcept;
    void lend_ids(Job & job);
    std::size_t n_cells_left() const noexcept;
    void decode(BatchRows & rows);
    void drop_unused() noexcept;
    void drop_scattered() noexcept;
    const float * logits_of(const WantedRow & row, const Task & task);
    std::vector<float> state_of(std::size_t row);
    void answer(Jobs::iterator job, const OnAnswer & on_answer) noexcept;
    void end(Jobs::iterator job) noexcept;
    void retain(llama_seq_id id, const Job::Kept & kept) noexcept;
    void fail_all(const OnAnswer & on_answer) noexcept;
    void set_apart(const OnAnswer & on_answer) noexcept;
    void admit_apart(BatchRows & rows, const OnAnswer & on_answer);
    void clear_cache() noexcept;

    const std::size_t n_ids_;
    const OwnedContext context_;
    const std::int32_t n_swa_;  // the window of sliding attention; 0: none
    llama_memory_t memory_;
    const llama_vocab * const vocab_;
    const std::size_t n_batch_;
    const std::size_t n_chunk_;
    const double depth_;
    const double n_rows_anew_;  // that take as long to attend to a cell as it takes to evaluate it anew
    const bool has_flash_attention_;
    const std::size_t n_cells_max_;
    const std::size_t n_reserved_;  // of these
    const std::size_t n_ctx_max_;
    const std::size_t n_paths_;
    OutputHead head_;
    std::vector<float> few_logits_;  // of what is wanted, where passes can be cut
    CellTable cells_;
    BatchRows rows_;
    std::vector<llama_seq_id> filler_;    // the id of rows that fill up a pass
    std::vector<llama_seq_id> empty_;     // ids that hold nothing
    std::vector<llama_seq_id> retained_;  // that no job has, the oldest first
    std::vector<std::size_t> n_shared_;   // tokens of an id that other prompts began with
    std::vector<double> used_;            // n_rows_ when a prompt began with what an id holds, or it was retained
    std::vector<Kept> kept_;              // by id
    std::size_t n_passes_ = 0;
    double n_rows_ = 0;  // of all passes, by the time that these take to attend to a cell
    double n_top_ = 0;   // cells that were in use at once, since none was
    double n_idle_ = 0;  // of these that nothing used any more, for each row since
    Jobs jobs_;          // in the order in which they came in
    Requests waiting_;
    Requests behind_texts_;        // who waits likewise, and comes first
    Requests apart_;               // who may have what is not finite, each to be decided alone,
    bool is_apart_ = false;        // as the one under way is
    std::size_t n_overtaken_ = 0;  // so often the one that waits longest
    std::size_t n_quiet_ = 0;      // passes since the last that had a short prompt
};

}  // namespace token_trie
