#pragma once

#include "context/sequence.h"
#include "search/tree_paths.h"
#include "search/tree_query.h"
#include "trie/non_copyable.h"

#include <functional>
#include <limits>
#include <memory>
#include <optional>

namespace [[gnu::visibility("default")]] token_trie {

// Evaluates nodes of a trie after a sequence, as many in one batch as the context holds, each node once. The
// sequence and its cache are as before when this goes away.
//
// With a single sequence id, nodes are evaluated one after the other, and what is after their common path is dropped in
// between or, after what is longer than a window of sliding attention, restored from a copy: one of the whole for each
// node of the path under way.
class TreeEvaluator : NonCopyable {
   public:
    // After the whole sequence; or, where prefix is not empty, after these tokens instead. All must outlive this.
    // Nodes are at most so deep. Each path takes memory for logits: where all will be queried about, or after a
    // sequence whose layers are on devices, as many are evaluated at once as the context may have ids for, and
    // otherwise fewer, where the vocabulary is large. Throws Error (context) if these do not fit the context.
    TreeEvaluator(Sequence & sequence,
                  const Trie & trie,
                  std::size_t depth,
                  std::vector<Token> prefix,
                  const std::atomic<bool> & cancelled,
                  bool all = false);
    ~TreeEvaluator() { end(); }

    using Visit = std::function<void(NodeId node, const float * logits)>;

    // Visits the logits after each of the nodes, a node before those below it. The nodes come in depth-first order,
    // over all calls each once and before those below it. The root may be the first. Throws Error (context, cancelled).
    void evaluate(const std::vector<NodeId> & nodes, const Visit & visit);

    // Until it queries no more; with what that took, and what the sequence's own cache took to catch up. Throws as
    // evaluate does.
    Answer answer(TreeQuery & query);

    // How a search is to query nodes.
    Batches batches() const noexcept { return {n_ids_, sequence_.has_layers_on_device(), has_states_}; }
    // Rows of one batch. From 64 on llama.cpp's flash attention takes another way than below, and scores would depend
    // on how many there are. A multiple of what is multiplied at a time.
    static constexpr std::size_t kMaxRows = 60;

    // So far.
    std::uint64_t n_evaluated() const noexcept { return n_evaluated_; }

   private:
    static constexpr NodeId kFiller = std::numeric_limits<NodeId>::max();

    void begin();
    void end() noexcept;
    void fill_up(Paths::Wave & wave) const;
    void evaluate_singly(NodeId node, const Visit & visit);
    void go_back_to(std::size_t depth);
    void keep_state();
    SavedState state() const;
    bool restore(const SavedState & state) noexcept;
    void decode(std::vector<Row> rows, std::size_t max_rows, const Visit & visit);
    void check_cancelled() const { throw_if(cancelled_, Status::cancelled, "cancelled"); }

    // Sequence ids: 0 is the sequence's, then come those of its other branches, the paths', and the prefix has the
    // last.
    llama_seq_id id_of(std::size_t path) const noexcept { return first_id_ + static_cast<llama_seq_id>(path); }
    llama_seq_id base_id() const noexcept { return prefix_.empty() || n_ids_ == 0 ? 0 : id_of(n_ids_); }

    Sequence & sequence_;
    const std::uint64_t n_passes_before_ = sequence_.n_passes();
    llama_seq_id first_id_ = 0;
    const Trie & trie_;
    const std::vector<Token> prefix_;
    const std::atomic<bool> & cancelled_;
    llama_memory_t memory_ = nullptr;
    llama_pos base_ = 0;         // position of what follows the root
    std::size_t max_cells_ = 0;  // cells for nodes
    std::int32_t n_swa_ = 0;
    bool has_states_ = false;
    bool loses_window_ = false;         // whether the cache may not be as before once its newest cells are dropped
    std::size_t n_ids_ = 0;             // for paths; 0: one node after the other, on the sequence's own id
    std::unique_ptr<Paths> paths_;      // where there are ids for them,
    TreePath here_;                     // and otherwise the only one
    std::vector<float> root_logits_;    // after the prefix
    std::optional<SavedState> before_;  // the sequence's, where it has to be copied back
    std::vector<SavedState> states_;    // after each node of the path, where they are kept
    std::uint64_t n_evaluated_ = 0;

    BatchRows batch_;
};

}  // namespace token_trie
