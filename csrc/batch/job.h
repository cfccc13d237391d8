#pragma once

#include "batch/held_tokens.h"
#include "batch/walk.h"
#include "stream/tree_paths.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace token_trie {

using Ticket = std::int64_t;

// Of a pass: tokens, some of which have logits.
struct PassRows {
    std::vector<Token> tokens;
    std::vector<llama_pos> positions;
    std::vector<std::int32_t> n_ids;
    std::vector<llama_seq_id *> ids;  // their owners' until the pass has ended
    std::vector<std::int8_t> wanted;
    std::size_t n_wanted = 0;
    bool are_few = true;  // tokens whose logits are wanted, behind each
    std::size_t max_rows = 0;
    std::size_t max_wanted = 0;

    bool has_room(bool for_wanted) const noexcept {
        return tokens.size() < max_rows && (!for_wanted || n_wanted < max_wanted);
    }
    std::size_t n_wanted_left() const noexcept { return std::min(max_rows - tokens.size(), max_wanted - n_wanted); }
    void add(Token token, llama_pos position, std::vector<llama_seq_id> & of, bool is_wanted);
    // Wants rows that nobody asks about as well, where the last logits would be multiplied in a group that is not full,
    // which takes longer than a full one. Where there are none and two or three of the group, adds some, of an id that
    // holds nothing, max_more at most.
    void fill_up(llama_seq_id empty, std::size_t max_more);

    std::vector<llama_seq_id> filler;  // the id of rows added; none: no rows
};

// Of a pass: a row with logits, the so-and-so-many-th of these.
struct WantedRow {
    NodeId node;
    std::int32_t row;
    std::size_t output;
};

// A question under way in a context that it shares with others: which rows it needs next, and what their logits say.
//
//     prompt   Classify : Great ! ->         on the job's id, as many a pass as there is room for
//              |- shared -|-- rows --|
//     walk                         READ _    on it too
//     tree                         READ _    a wave of nodes, on it or the ids lent; then the next
//                                  SEND
class Job {
   public:
    // The id holds the first n_shared tokens of the prompt. A tree's paths are on it too, or on another, which is lent
    // with it; n_paths: that a search may ask about at once. Throws Error.
    Job(Ticket ticket,
        Question question,
        const llama_vocab * vocab,
        llama_memory_t memory,
        llama_seq_id id,
        std::optional<llama_seq_id> path_id,
        std::size_t n_shared,
        std::size_t n_paths);

    Ticket ticket() const noexcept { return ticket_; }
    llama_seq_id id() const noexcept { return ids_.front(); }
    const std::vector<Token> & prompt() const noexcept { return question_.prompt; }
    std::size_t n_prompt_left() const noexcept { return prompt().size() - n_prompt_; }
    // Cells behind the prompt: that it has a right to, and what it uses of these or others.
    std::size_t n_cells() const noexcept { return std::max(question_.max_tokens(), n_cells_); }

    // Whether it needs place for nodes before the next pass, and ids that it could use beside those it has.
    bool needs_wave() const noexcept;
    std::size_t n_ids_wanted() const noexcept;
    void lend(llama_seq_id id);
    const std::vector<llama_seq_id> & lent() const noexcept { return lent_; }
    // max_nodes: 1 at least, and as many as the pass has room for, as the rest would keep ids from others. max_cells:
    // n_cells at least.
    void place_wave(std::size_t max_nodes, std::size_t max_cells);
    // Of the ids lent, one that the wave does without; -1: there is none.
    llama_seq_id give_back() noexcept;

    // Adds the rows that come next: all that there is room for, of the prompt max_prompt at most.
    void plan(PassRows & rows, std::size_t max_prompt);
    // Of the prompt, in the pass planned.
    std::size_t n_planned() const noexcept { return n_planned_; }
    // Takes what the pass has given: logits_of(row, walk) of each of its rows that are wanted, of what the walk needs
    // or, without one, of all tokens. Throws Error.
    template <typename LogitsOf>
    void take(LogitsOf && logits_of) {
        end_pass();
        for (const WantedRow & row : std::exchange(wanted_, {})) {
            see(row.node, logits_of(row, walk_.get()));
        }
        go_on();
    }

    bool is_decided() const noexcept { return is_decided_; }
    Answer answer() const;
    // Of text that is over: what is there of it stays on the id, for who asks behind it.
    void keep_text(HeldTokens & held);
    bool has_kept_text() const noexcept { return n_kept_ > 0; }
    struct Kept {
        std::size_t begin = 0;  // behind the prompt
        std::size_t end = 0;    // of what is part of the answer
    };
    Kept kept_text() const noexcept {
        const std::size_t n = walk_ == nullptr ? 0 : std::min(n_kept_, walk_->n_answered());
        return {prompt().size(), prompt().size() + n};
    }
    // Leaves what is there of the prompt on the id, and nothing on those lent.
    void clear_cache(llama_memory_t memory) noexcept;

   private:
    struct Tree {
        std::unique_ptr<Search> search;  // one of the two
        std::unique_ptr<Scoring> scoring;
        TreePaths paths;
        std::vector<NodeId> asked;
        std::size_t n_placed = 0;  // of these

        Inquiry & inquiry() const noexcept {
            return search != nullptr ? static_cast<Inquiry &>(*search) : static_cast<Inquiry &>(*scoring);
        }
    };

    void want(NodeId node, PassRows & rows);
    void end_pass();
    void see(NodeId node, const float * logits);
    void go_on();
    void ask();
    void catch_up_with_walk();
    bool has_rows() const noexcept { return n_rows_done_ < rows_.size(); }

    const Ticket ticket_;
    const Question question_;
    const std::size_t n_vocab_;
    std::vector<llama_seq_id> ids_;  // its own alone
    std::vector<llama_seq_id> lent_;
    std::size_t n_prompt_;  // tokens in the cache
    std::size_t n_planned_ = 0;
    bool wants_root_ = false;
    std::unique_ptr<Walk> walk_;  // one of the two
    std::unique_ptr<Tree> tree_;
    std::vector<TreePaths::Row> rows_;  // behind the prompt
    std::size_t n_rows_done_ = 0;       // of these, in a pass
    std::size_t n_walked_ = 0;          // tokens of the walk that were rows, or are
    std::size_t n_kept_ = 0;            // of these
    std::size_t n_cells_ = 0;
    std::vector<WantedRow> wanted_;
    bool is_in_pass_ = false;  // with what is behind the prompt
    bool is_decided_ = false;
    Answer answer_;
    std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
    std::chrono::steady_clock::time_point prompt_ended_ = started_;
};

}  // namespace token_trie
