#pragma once

#include "batch/question.h"
#include "stream/picker.h"

namespace token_trie {

// An answer step by step: the best or a drawn token at each branch point, as a stream takes it.
//
//     GET        branch point: it needs the logits behind the prompt
//     _          forced
//     WEATHER    branch point: it needs those behind GET _
class Walk {
   public:
    // Throws Error (argument) on values that llama.cpp does not take.
    Walk(const llama_vocab * vocab, const Question & question);

    // The tokens since the last logits, behind which the next are needed; none, and not over: those behind the prompt.
    const std::vector<Token> & lag() const noexcept { return lag_; }
    bool is_over() const noexcept { return is_over_; }
    // Of which logits are needed next.
    AllowedSet allowed() const { return cursor_.allowed(); }
    void see(const float * logits);

    // Once it is over.
    void write(Answer & answer) const;

   private:
    void go_on();
    bool take(Token token);

    const llama_vocab * vocab_;
    const bool greedy_;
    Cursor cursor_;
    Picker picker_;
    std::vector<Token> tokens_;
    std::vector<Token> lag_;
    bool is_over_ = false;
    double logprob_ = 0;
    std::uint64_t n_branches_ = 0;
    std::uint64_t n_forced_ = 0;
};

}  // namespace token_trie
