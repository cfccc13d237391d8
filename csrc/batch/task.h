#pragma once

#include "batch/request.h"
#include "stream/batch_rows.h"

#include <memory>

namespace [[gnu::visibility("default")]] token_trie {

// What decides an answer behind a prompt, whoever evaluates it: it has rows that come next, observes the logits behind
// those that want them, and has more, until it is done.
//
//     prompt   Classify : Great ! ->         on the job's id
//     text                         READ _    on it too, as far as the logits have come
//     tree                         READ _    a wave of nodes, on it or the ids lent; then the next
//                                  SEND
class Task {
   public:
    // Where its rows go: behind so many tokens on an id.
    struct Origin {
        llama_memory_t memory;
        llama_seq_id id;
        std::size_t n_before;
    };

    Task() = default;
    virtual ~Task() = default;
    Task(const Task &) = delete;
    Task & operator=(const Task &) = delete;

    // Whether the logits behind the prompt are the first that it observes, as those of the root.
    virtual bool wants_root() const noexcept = 0;
    // The tokens whose logits the next rows want.
    virtual AllowedSet wanted() const { return {true, {}, {}}; }

    // Whether the next rows need cells beside those of its own id, which is then to hold the whole prompt; and ids that
    // it could use beside those lent.
    virtual bool needs_cells() const noexcept { return false; }
    virtual std::size_t n_ids_wanted() const noexcept { return 0; }
    virtual void lend(llama_seq_id /*id*/) {}
    // One of those lent that it does without; -1: there is none.
    virtual llama_seq_id return_id() noexcept { return -1; }

    // The rows that come next, where all before have been observed: of as many nodes and cells at most, one at least.
    virtual std::vector<Row> next_rows(std::size_t max_nodes, std::size_t max_cells) = 0;
    // That these take, in all.
    virtual std::size_t n_cells() const noexcept = 0;
    // The logits behind one of them. Throws Error.
    virtual void observe(NodeId node, const float * logits) = 0;
    // All of them are observed. Throws Error.
    virtual void advance() = 0;

    virtual bool is_done() const noexcept = 0;
    // Once it is done.
    virtual void answer(Answer & answer) const = 0;
    // Of what it writes, all tokens until now.
    virtual TokenSpan text() const noexcept { return {}; }
    // Of the tokens that it has evaluated those that others may go on from, of which n_answered are part of the answer.
    struct Written {
        TokenSpan tokens;
        std::size_t n_answered = 0;
    };
    virtual Written written() const noexcept { return {}; }
    // Takes out of the cache what it has there on ids that were lent.
    virtual void clear() noexcept {}
};

// n_paths: that a search may query at once. Throws Error.
std::unique_ptr<Task> make_task(const Request & request,
                                const llama_vocab * vocab,
                                const Task::Origin & origin,
                                std::size_t n_paths);

}  // namespace token_trie
