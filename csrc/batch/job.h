#pragma once

#include "batch/prefix_cache.h"
#include "batch/tasks.h"

#include <chrono>
#include <exception>
#include <memory>
#include <utility>

namespace [[gnu::visibility("default")]] token_trie {

// A row of a pass that has logits.
struct WantedRow {
    NodeId node;
    std::size_t row;
};

// Where the evaluation of a prompt stops for a pass, as others begin with it until there, and a state cannot be cut
// back:
//
//     Classify : Great ! ->
//     Classify : Awful ! ->       stops after ":"
class Stops {
   public:
    struct Stop {
        std::size_t n;   // tokens before it
        bool is_shared;  // whether other prompts are known to begin with these
    };

    // After the first n tokens nothing more is worth a stop where fewer than Policy::kMinShared were evaluated.
    explicit Stops(std::size_t n) : last_(n) { stops_.reserve(Policy::kMaxStops); }

    // Stops after n tokens, of which n_planned are evaluated or on their way, or shortly before. Returns where; 0:
    // nowhere.
    std::size_t add(std::size_t n, std::size_t n_planned, bool is_shared) noexcept;
    // The next one; nullptr: there is none.
    const Stop * next() const noexcept { return stops_.empty() ? nullptr : &stops_.front(); }
    // The last one, or where the evaluation began.
    std::size_t last() const noexcept { return stops_.empty() ? last_ : stops_.back().n; }
    // Goes on after the next one.
    Stop pass() noexcept;

   private:
    std::size_t last_;  // that was passed
    std::vector<Stop> stops_;
};

// A request under way in a context that it shares with others: its prompt, as many tokens a pass as fit,
// and the rows of its task after it.
//
//     prompt   Classify : Great ! ->  READ _
//              |- shared -|-- rows -----------|
class Job {
   public:
    // The origin's id holds the first n_shared tokens of the prompt. What comes after the prompt is on it too or, where
    // path_id is not -1, on that, which is lent. Throws Error.
    Job(Ticket ticket,
        Request request,
        const llama_vocab * vocab,
        const Task::Origin & origin,
        llama_seq_id path_id,
        std::size_t n_shared,
        std::size_t n_paths);

    Ticket ticket() const noexcept { return ticket_; }
    llama_seq_id id() const noexcept { return ids_.front(); }
    const Request & request() const noexcept { return request_; }
    const std::vector<Token> & prompt() const noexcept { return request_.prompt; }
    std::size_t n_prompt_left() const noexcept { return prompt().size() - n_prompt_; }
    // Tokens of the prompt that nobody else has evaluated.
    std::size_t n_own() const noexcept { return prompt().size() - n_shared(); }
    std::size_t n_shared() const noexcept { return static_cast<std::size_t>(n_shared_); }
    // Cells after the prompt: those that it has a right to, or that it uses where these are more.
    std::size_t n_cells() const noexcept { return std::max(request_.max_tokens(), task_->n_cells()); }

    // Whether it needs cells and ids for the rows that come next, and how many ids it could use.
    bool needs_cells() const noexcept { return task_->needs_cells() && n_prompt_left() == 0 && !has_rows(); }
    std::size_t n_ids_wanted() const noexcept { return needs_cells() ? task_->n_ids_wanted() : 0; }
    void lend(llama_seq_id id);
    const std::vector<llama_seq_id> & lent() const noexcept { return lent_; }
    bool has(llama_seq_id id) const noexcept {
        return id == this->id() || std::find(lent_.begin(), lent_.end(), id) != lent_.end();
    }
    // max_nodes: 1 at least, and as many as fit the pass, as the rest would keep ids from others. max_cells:
    // n_cells at least.
    void place_rows(std::size_t max_nodes, std::size_t max_cells);
    // Gives back an id lent that its rows do without; -1: there is none.
    llama_seq_id return_id() noexcept;

    // Stops for a pass after n tokens of the prompt, or shortly before, once the id holds these. Returns where; 0:
    // nowhere.
    std::size_t stop_at(std::size_t n, bool is_shared = true) noexcept {
        return stops_.add(n, n_prompt_ + n_planned_, is_shared);
    }
    std::size_t last_stop() const noexcept { return stops_.last(); }
    // Whether it has stopped. Then it goes on only after `go_on`.
    bool has_stopped() const noexcept { return stops_.next() != nullptr && stops_.next()->n == n_prompt_; }
    Stops::Stop go_on() noexcept { return stops_.pass(); }

    // Adds the rows that come next: all that fit, of the prompt max_prompt at most.
    void plan(BatchRows & rows, std::size_t max_prompt);
    // Whether the rows planned want logits of few tokens alone.
    bool wants_few() const;
    // Tokens of the prompt in the pass planned.
    std::size_t n_planned() const noexcept { return n_planned_; }
    // Observes what a part of the pass has given, in which the pass's rows are at these indices, or not at all:
    // logits_of(index, task) of each of its rows that are wanted, of the tokens that the task wants; state_of(index) of
    // the prompt's last, where that is. What they throw is for `advance` to throw.
    template <typename LogitsOf, typename StateOf>
    void observe(const BatchRows::Indices & indices, LogitsOf && logits_of, StateOf && state_of) noexcept {
        try {
            if (const auto index = state_row_ ? indices[*state_row_] : std::nullopt) {
                state_ = state_of(*index);
            }
            for (const WantedRow & row : wanted_) {
                if (const auto index = indices[row.row]) {
                    task_->observe(row.node, logits_of(*index, *task_));
                }
            }
        } catch (...) {
            error_ = std::current_exception();
        }
    }
    // Goes on after the pass. Throws Error.
    void advance();

    bool is_done() const noexcept { return task_->is_done() && (!request_.with_hidden_state || n_prompt_left() == 0); }
    Answer answer() const;
    // Gives the request away, to be decided again, as the last call of the job.
    Request take_request() noexcept { return std::move(request_); }
    TokenSpan text() const noexcept { return task_->text(); }
    // Notes in the table what the task has written, for prompts that continue it.
    void keep(CellTable & cells);
    // The id that holds it after the prompt: its own, or one lent, which it then keeps.
    llama_seq_id kept_id() const noexcept { return kept_id_; }
    const Continuation & continuation() const noexcept { return continuation_; }
    bool goes_on() const noexcept { return request_.goes_on; }
    // Leaves the prompt and what was kept on the ids that hold them, and nothing on those lent.
    void clear_cache(CellTable & cells) noexcept;

   private:
    void want(const BatchRows & rows, NodeId node);
    void end_pass();
    bool has_rows() const noexcept { return n_rows_done_ < rows_.size(); }

    const Ticket ticket_;
    Request request_;
    const std::size_t n_vocab_;
    std::vector<llama_seq_id> ids_;  // the job's own alone
    std::vector<llama_seq_id> lent_;
    std::size_t n_prompt_;  // tokens in the cache
    std::size_t n_planned_ = 0;
    std::unique_ptr<Task> task_;
    const bool wants_root_;
    std::vector<Row> rows_;        // after the prompt
    std::size_t n_rows_done_ = 0;  // rows that have been in a pass
    std::size_t n_kept_ = 0;       // tokens that the task has written, in the table,
    llama_seq_id kept_id_;         // on this id
    Continuation continuation_;
    std::vector<WantedRow> wanted_;
    std::optional<std::size_t> state_row_;  // the prompt's last row, in the pass planned
    std::vector<float> state_;
    std::exception_ptr error_;
    bool is_in_pass_ = false;  // the pass planned has rows after the prompt
    std::uint64_t n_shared_;
    Stops stops_;
    std::uint64_t n_passes_ = 0;
    std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
    std::chrono::steady_clock::time_point prompt_ended_ = started_;
};

}  // namespace token_trie
