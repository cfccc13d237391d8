#pragma once

#include "decode/decoder.h"
#include "search/scorer.h"
#include "search/search.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// A query of the model after a prompt, with one answer, whoever finds it. A stream answers one, a batch many.
struct Query {
    enum class Mode {
        greedy = TOKEN_TRIE_QUERY_GREEDY,
        sampled = TOKEN_TRIE_QUERY_SAMPLED,
        best = TOKEN_TRIE_QUERY_BEST,      // a search for whole answers
        scores = TOKEN_TRIE_QUERY_SCORES,  // every leaf's
        text = TOKEN_TRIE_QUERY_TEXT       // free
    };
    struct Text {
        std::size_t max_tokens = 0;
        std::vector<std::string> stop_strings;
        std::optional<std::string> grammar;
        std::string grammar_root = "root";
        std::function<bool(const Decoder::Step &)> on_token = nullptr;  // false ends the text after it
    };

    // At its root or, in a decoding, thinking. In a text: null, or the thought is the answer.
    std::shared_ptr<const Cursor> cursor;
    Mode mode = Mode::greedy;
    Sampling sampling{};   // sampled, and free text
    SearchOptions search;  // best; of scores those of ScoreOptions
    Text text;
    bool with_hidden_state = false;  // whether that after the prompt is part of the answer
    bool goes_on = false;            // whether another prompt will begin with this one, which a batch then keeps

    bool is_text() const noexcept { return mode == Mode::text; }
    // Several members, one after the other.
    bool is_list() const noexcept {
        return (mode == Mode::greedy || mode == Mode::sampled) && cursor != nullptr &&
               cursor->follow().on_complete() == OnComplete::restart;
    }
    bool is_decoded() const noexcept { return mode == Mode::greedy || mode == Mode::sampled || is_text(); }
    bool is_thinking() const noexcept { return cursor != nullptr && cursor->state() == State::thinking; }
    // Tokens that an answer has at most.
    std::size_t max_tokens() const noexcept;
    // Throws Error (argument) where its parts do not fit each other.
    void check() const;
};

// An answer that is generated token by token, after the first n_before tokens of a host.
class Decoding {
   public:
    // The query must outlive it. A text or a list has n_left tokens at most. Throws Error: argument, grammar.
    Decoding(const Query & query, const llama_vocab * vocab, std::size_t n_before, std::size_t n_left = SIZE_MAX);

    // The tokens that may come next.
    AllowedSet allowed() const { return decoder_.allowed(); }
    bool is_done() const noexcept { return stop_ != Stop::none; }
    // Throws as Decoder::step does.
    void step(Decoder::Host & host);
    // How many of the host's n tokens belong to the answer: all before the one in which a stop string began.
    std::size_t n_kept(std::size_t n) const noexcept { return end_ ? end_->n_kept : n; }
    // Writes what n tokens have come to.
    void write(const Token * tokens, std::size_t n, Answer & answer) const;
    Decoder & decoder() noexcept { return decoder_; }

   private:
    // A member of a list, from one position of the host's tokens to another.
    struct Item {
        LeafId leaf = kNoLeaf;
        std::size_t begin = 0;
        std::size_t end = 0;
        double logprob = 0;  // over its branch points
    };
    void follow_list(const Cursor & cursor, std::size_t n_tokens, double logprob_before);

    const Query & query_;
    const llama_vocab * vocab_;
    const std::size_t n_before_;
    const std::size_t max_tokens_;
    Decoder decoder_;
    WrittenText written_;
    std::optional<WrittenText::End> end_;  // where a stop string is in it
    Stop stop_;
    std::vector<Item> items_;  // the last one may go on, to be a longer one
    Item item_;                // the one under way, with the span's logprob before it
    NodeId node_ = kRoot;      // the cursor's, before the next step
    std::int32_t n_items_before_ = 0;
};

}  // namespace token_trie
