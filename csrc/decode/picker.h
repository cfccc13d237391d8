#pragma once

#include "cursor/cursor.h"
#include "cursor/reserve_more.h"

#include <llama.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace token_trie {

// Why generated text ends.
enum class Stop {
    none = TOKEN_TRIE_STOP_NONE,
    max_tokens = TOKEN_TRIE_STOP_MAX_TOKENS,
    complete = TOKEN_TRIE_STOP_COMPLETE,
    end = TOKEN_TRIE_STOP_END,
    callback = TOKEN_TRIE_STOP_CALLBACK,
    cancelled = TOKEN_TRIE_STOP_CANCELLED,
    string = TOKEN_TRIE_STOP_STRING
};

// How tokens are drawn, as the C ABI has it; what is 0 is off.
using Sampling = token_trie_sampling;
// Throws Error (argument) on values that llama.cpp does not take.
void check(const Sampling & sampling);

// Draws tokens from logits: penalties, top-k, top-p, min-p, temperature and a seeded draw, all of them llama.cpp's own,
// applied to the candidates alone, be they five or a whole vocabulary.
class Picker {
   public:
    struct Pick {
        Token token;
        // Natural logarithm of the token's share among the candidates, before penalties and temperature.
        float logprob;
    };

    // Throws Error (argument) as check does.
    Picker(const llama_vocab * vocab, const Sampling & sampling);
    // Draws what the other would.
    Picker(const Picker & other);
    ~Picker() = default;
    Picker & operator=(const Picker &) = delete;
    Picker(Picker &&) = delete;
    Picker & operator=(Picker &&) = delete;

    // Begins the draws anew from its seed, unless that keeps them. Throws Error (argument), and then changes nothing.
    void set_sampling(const Sampling & sampling);
    // Exchanges the random draws of two pickers.
    void swap_draws(Picker & other) noexcept { draw_.swap(other.draw_); }

    // From the allowed tokens alone. greedy takes the best whatever the temperature.
    Pick pick_allowed(const AllowedSet & allowed, const float * logits, bool greedy);

    // Whether pick_allowed takes the best by the logits alone.
    bool takes_the_best(bool greedy) const noexcept {
        return penalties_ == nullptr && (greedy || sampling_.temperature == 0);
    }

    // From the whole vocabulary save some, or what the grammar leaves of it. Throws Error (grammar) if that is nothing,
    // or if the tokens accepted so far do not fit it.
    Token pick_any(const float * logits, bool under_grammar, const TokenSpan & except = {});

    // Takes note of a token that now is part of the text. The penalties and the grammar, which need memory for it, take
    // it when they are applied next.
    void accept(Token token) { text_.push_back(token); }
    // So that the next accept throws nothing.
    void reserve() { reserve_more(text_); }
    // Tokens accepted from here on, and the grammar's beginning, are those of a new text.
    void restart() noexcept;

    // nullptr takes the grammar away. Throws Error (grammar) if it does not parse, and then keeps the one before.
    void set_grammar(const char * gbnf, const char * root);

   private:
    struct Free {
        void operator()(llama_sampler * sampler) const noexcept { llama_sampler_free(sampler); }
    };
    using Sampler = std::unique_ptr<llama_sampler, Free>;
    static Sampler copy(const Sampler & sampler);
    Sampler make_penalties(const Sampling & sampling) const;

    Token draw(std::size_t n, bool greedy);
    void fill(const float * logits, const TokenSpan & except);
    const Sampler & grammar() const noexcept { return parsed_ != nullptr ? parsed_ : grammar_; }
    bool grammar_takes(Token token, float logit);
    void catch_up_penalties();
    void catch_up_grammar();

    const llama_vocab * vocab_;
    std::size_t n_vocab_;
    Sampling sampling_{};
    Sampler penalties_;           // null: off
    std::vector<Sampler> chain_;  // top-k, top-p, min-p and temperature, where they are on
    Sampler draw_;
    // At its beginning, and after what is parsed; null: none, and nothing yet.
    Sampler grammar_, parsed_;
    std::vector<Token> text_;      // as accepted
    std::size_t n_penalized_ = 0;  // tokens of it that the penalties have accepted
    std::size_t n_parsed_ = 0;     // likewise the grammar, or that came before it
    std::vector<llama_token_data> candidates_;
};

}  // namespace token_trie
