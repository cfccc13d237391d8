#pragma once

#include "context/batch_rows.h"
#include "cursor/reserve_more.h"
#include "decode/decoder.h"
#include "search/tree_paths.h"
#include "stream/query.h"
#include "trie/non_copyable.h"

#include <memory>

namespace [[gnu::visibility("default")]] token_trie {

// A query after a prompt.
struct Request : Query {
    std::vector<Token> prompt;
};

// The answer of a query that failed.
inline Answer failure(Status status, const char * message) noexcept {
    Answer answer;
    answer.info.status = static_cast<std::int32_t>(status);
    try {
        answer.message = message;
    } catch (const std::exception &) {
        answer.message = "out of memory";  // which takes none
        answer.info.status = TOKEN_TRIE_ERROR_MEMORY;
    }
    return answer;
}

// The same, from the exception that is being handled.
inline Answer failure() noexcept {
    return with_failure([](Status status, const char * message) { return failure(status, message); });
}

// Decides an answer after a prompt, whoever evaluates it: it has rows that come next, observes the logits after those
// that want them, and has more, until it is done.
//
//     prompt   Classify : Great ! ->         on the job's id
//     text                         READ _    on it too or on an id lent, as far as the logits have come
//     tree                         READ _    a wave of nodes, on it or the ids lent; then the next
//                                  SEND
class Task : NonCopyable {
   public:
    // Where its rows go: after so many tokens on an id.
    struct Origin {
        const llama_model * model;
        const llama_memory_t & memory;  // which may change with all that it holds
        llama_seq_id id;
        std::size_t n_before;
    };

    virtual ~Task() = default;

    // Whether the logits after the prompt are the first that it observes, as those of the root.
    virtual bool wants_root() const noexcept = 0;
    // The tokens whose logits the next rows want.
    virtual AllowedSet wanted() const { return {true, {}, {}}; }

    // Whether the next rows need cells beside those of its own id, which is then to hold the whole prompt; and ids that
    // it could use beside those lent.
    virtual bool needs_cells() const noexcept { return false; }
    virtual std::size_t n_ids_wanted() const noexcept { return 0; }
    virtual void lend(llama_seq_id /*id*/) {}
    // Gives back an id lent that it does without; -1: there is none.
    virtual llama_seq_id return_id() noexcept { return -1; }

    // The rows that come next, where all before have been observed: of as many nodes and cells at most, one at least.
    virtual std::vector<Row> next_rows(std::size_t max_nodes, std::size_t max_cells) = 0;
    // The cells that these take, in all.
    virtual std::size_t n_cells() const noexcept = 0;
    // The logits after one of them. Throws Error.
    virtual void observe(NodeId node, const float * logits) = 0;
    // Called when all of them are observed. Throws Error.
    virtual void advance() = 0;

    virtual bool is_done() const noexcept = 0;
    // Writes the answer, once it is done.
    virtual void write(Answer & answer) const = 0;
    // The tokens of a text until now.
    virtual TokenSpan text() const noexcept { return {}; }
    // The tokens evaluated after the prompt that others may continue, the first n_answered of them part of the answer.
    struct Written {
        llama_seq_id id = -1;
        TokenSpan tokens{};
        std::size_t n_answered = 0;
    };
    virtual Written written() const noexcept { return {}; }
    // Removes from the cache what it has there on ids that were lent.
    virtual void clear() noexcept {}
};

// n_paths: that a search may query at once. Throws Error.
std::unique_ptr<Task> make_task(const Request & request,
                                const llama_vocab * vocab,
                                const Task::Origin & origin,
                                std::size_t n_paths);

// Queries nodes of a trie, in waves of as many paths as there are ids.
class TreeTask final : public Task {
   public:
    // The trie must outlive it.
    TreeTask(std::unique_ptr<TreeQuery> query, const Trie & trie, const Origin & origin);

    bool wants_root() const noexcept override { return wants_root_; }
    bool needs_cells() const noexcept override { return n_placed_ < nodes_.size() || paths_->has_more_rows(); }
    std::size_t n_ids_wanted() const noexcept override;
    void lend(llama_seq_id id) override { paths_->add_id(id); }
    llama_seq_id return_id() noexcept override { return paths_->take_idle_id(); }
    std::vector<Row> next_rows(std::size_t max_nodes, std::size_t max_cells) override;
    std::size_t n_cells() const noexcept override { return n_cells_; }
    void observe(NodeId node, const float * logits) override { query_->observe(node, logits); }
    void advance() override;
    bool is_done() const noexcept override { return nodes_.empty(); }
    void write(Answer & answer) const override;
    void clear() noexcept override { paths_->clear(); }

   private:
    const std::unique_ptr<TreeQuery> query_;
    const Trie & trie_;
    const std::unique_ptr<Paths> paths_;
    std::vector<NodeId> nodes_;  // queried, of which the first n_placed_ have had rows
    std::size_t n_placed_ = 0;
    std::uint64_t n_evaluated_ = 0;
    std::size_t n_cells_ = 0;
    bool wants_root_;
};

// An answer token by token, as a stream takes it: the best or a drawn one at each branch point and of free text. On an
// id lent, it leaves the prompt's own as it is after the prompt.
// NOLINTNEXTLINE(misc-multiple-inheritance): two interfaces
class DecodeTask final : public Task, private Decoder::Host {
   public:
    // The request must outlive it. Throws Error: argument on values that llama.cpp does not take; grammar.
    DecodeTask(const Request & request, const llama_vocab * vocab, const Origin & origin);

    bool wants_root() const noexcept override { return tokens_.empty() && !is_done(); }
    AllowedSet wanted() const override { return decoding_.allowed(); }
    bool needs_cells() const noexcept override { return id_ != origin_.id && n_rows_ == 0 && !tokens_.empty(); }
    void lend(llama_seq_id id) override { id_ = id; }
    std::vector<Row> next_rows(std::size_t max_nodes, std::size_t max_cells) override;
    std::size_t n_cells() const noexcept override { return n_rows_; }
    void observe(NodeId node, const float * logits) override;
    void advance() override;
    bool is_done() const noexcept override { return decoding_.is_done(); }
    void write(Answer & answer) const override;
    TokenSpan text() const noexcept override;
    Written written() const noexcept override;
    void clear() noexcept override;

   private:
    void reserve() override { reserve_more(tokens_); }
    const float * logits(const AllowedSet & /*wanted*/) override { return logits_; }
    std::size_t n_tokens() const noexcept override { return tokens_.size(); }
    void append(Token token) noexcept override { tokens_.push_back(token); }

    const Request & request_;
    const Origin origin_;
    llama_seq_id id_ = origin_.id;  // which its rows are on
    Decoding decoding_;
    std::vector<Token> tokens_;
    std::size_t n_rows_ = 0;  // tokens that have had rows
    const float * logits_ = nullptr;
};

}  // namespace token_trie
