#pragma once

#include "batch/task.h"

namespace token_trie {

// What wants nothing behind the prompt: the hidden state there, which the job takes itself, is all.
class StateTask final : public Task {
   public:
    bool wants_root() const noexcept override { return false; }
    AllowedSet wanted() const override { return {false, {}, {}}; }
    std::vector<Row> next_rows(std::size_t /*max_nodes*/, std::size_t /*max_cells*/) override { return {}; }
    std::size_t n_cells() const noexcept override { return 0; }
    void observe(NodeId /*node*/, const float * /*logits*/) override {}
    void advance() override { is_done_ = true; }
    bool is_done() const noexcept override { return is_done_; }
    void answer(Answer & /*answer*/) const override {}

   private:
    bool is_done_ = false;
};

}  // namespace token_trie
