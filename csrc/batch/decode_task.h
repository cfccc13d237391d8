#pragma once

#include "batch/task.h"
#include "stream/decoder.h"

namespace token_trie {

// An answer token by token, as a stream takes it: the best or a drawn one at each branch point and of free text.
// NOLINTNEXTLINE(misc-multiple-inheritance): two interfaces
class DecodeTask final : public Task, private Decoder::Host {
   public:
    // Throws Error: argument on values that llama.cpp does not take; grammar.
    DecodeTask(const Request & request, const llama_vocab * vocab, const Origin & origin);

    bool wants_root() const noexcept override { return tokens_.empty(); }
    AllowedSet wanted() const override { return decoder_.allowed(); }
    std::vector<Row> next_rows(std::size_t max_nodes, std::size_t max_cells) override;
    std::size_t n_cells() const noexcept override { return n_rows_; }
    void observe(NodeId node, const float * logits) override;
    void advance() override;
    bool is_done() const noexcept override { return stop_ != Stop::none; }
    void answer(Answer & answer) const override;
    TokenSpan text() const noexcept override;
    Written written() const noexcept override;

   private:
    void reserve() override;
    const float * logits(const AllowedSet & /*wanted*/) override { return logits_; }
    std::size_t n_tokens() const noexcept override { return tokens_.size(); }
    void append(Token token) noexcept override { tokens_.push_back(token); }
    void step();

    const llama_vocab * vocab_;
    const Origin origin_;
    const bool is_text_;
    const std::size_t max_tokens_;
    Decoder decoder_;
    WrittenText written_;
    std::optional<WrittenText::End> end_;  // where a stop string stands in it
    std::vector<Token> tokens_;
    std::size_t n_rows_ = 0;  // of these
    const float * logits_ = nullptr;
    Stop stop_ = Stop::none;
};

}  // namespace token_trie
