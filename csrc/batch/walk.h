#pragma once

#include "batch/question.h"
#include "stream/picker.h"
#include "stream/utf8.h"
#include "stream/written_text.h"

#include <memory>

namespace token_trie {

// An answer step by step: the best or a drawn token at each branch point and of free text, as a stream takes it.
//
//     GET        branch point: it needs the logits behind the prompt
//     _          forced
//     WEATHER    branch point: it needs those behind GET _
class Walk {
   public:
    // Throws Error: argument on values that llama.cpp does not take; grammar.
    Walk(const llama_vocab * vocab, const Question & question);

    // The tokens since the last logits, behind which the next are needed; none, and not over: those behind the prompt.
    const std::vector<Token> & lag() const noexcept { return lag_; }
    // What was taken so far, a stop string included.
    const std::vector<Token> & tokens() const noexcept { return tokens_; }
    // Of these so many at least are part of the answer.
    std::size_t n_answered() const noexcept { return end_ ? end_->n_kept : tokens_.size(); }
    bool is_over() const noexcept { return stop_ != Stop::none; }
    // Of which logits are needed next.
    AllowedSet allowed() const { return cursor_ != nullptr ? cursor_->allowed() : AllowedSet{true, {}, {}}; }
    // Throws Error (grammar).
    void see(const float * logits);

    // Once it is over.
    void write(Answer & answer) const;

   private:
    void go_on();
    bool take(Token token);
    Stop stop_behind(Token token);

    const llama_vocab * vocab_;
    const Question::Way way_;
    std::size_t max_tokens_;
    std::unique_ptr<Cursor> cursor_;  // null: free text
    Picker picker_;
    Utf8Stream text_;
    WrittenText written_;
    std::optional<WrittenText::End> end_;  // where a stop string stands in it
    std::vector<Token> tokens_;
    std::vector<Token> lag_;
    Stop stop_ = Stop::none;
    double logprob_ = 0;
    std::uint64_t n_branches_ = 0;
    std::uint64_t n_forced_ = 0;
    std::uint64_t n_free_ = 0;
};

}  // namespace token_trie
