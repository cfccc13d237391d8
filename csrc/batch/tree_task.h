#pragma once

#include "batch/task.h"
#include "stream/tree_paths.h"

namespace token_trie {

// What queries nodes of a trie, in waves that have as many paths as there are ids for.
class TreeTask : public Task {
   public:
    bool wants_root() const noexcept override { return wants_root_; }
    bool needs_cells() const noexcept override { return n_placed_ < nodes_.size(); }
    std::size_t n_ids_wanted() const noexcept override;
    void lend(llama_seq_id id) override { paths_.add_id(id); }
    llama_seq_id return_id() noexcept override { return paths_.take_idle_id(); }
    std::vector<Row> next_rows(std::size_t max_nodes, std::size_t max_cells) override;
    std::size_t n_cells() const noexcept override { return n_cells_; }
    void observe(NodeId node, const float * logits) override { query_.observe(node, logits); }
    void advance() override;
    bool is_done() const noexcept override { return nodes_.empty(); }
    void clear() noexcept override { paths_.clear(); }

   protected:
    // The query and the trie must outlive this.
    TreeTask(TreeQuery & query, const Trie & trie, const Origin & origin);
    std::uint64_t n_evaluated() const noexcept { return n_evaluated_; }

   private:
    TreeQuery & query_;
    const Trie & trie_;
    TreePaths paths_;
    std::vector<NodeId> nodes_;  // queried
    std::size_t n_placed_ = 0;   // of these
    std::uint64_t n_evaluated_ = 0;
    std::size_t n_cells_ = 0;
    bool wants_root_;
};

void write(Ranking result, Answer & answer);
void write(LeafScores result, Answer & answer);

template <typename Query>
class TreeTaskOf final : public TreeTask {
   public:
    TreeTaskOf(std::unique_ptr<Query> query, const Trie & trie, const Origin & origin)
        : TreeTask(*query, trie, origin), query_(std::move(query)) {}

    void answer(Answer & answer) const override {
        write(query_->result(), answer);
        answer.n_evaluated = n_evaluated();
    }

   private:
    const std::unique_ptr<const Query> query_;
};
using SearchTask = TreeTaskOf<Search>;
using ScoreTask = TreeTaskOf<Scoring>;

}  // namespace token_trie
