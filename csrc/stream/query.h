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

struct Answer;

// What is asked of the model after a prompt: one answer, whoever finds it. A stream answers one, a batch many.
struct Query {
    // The values of enum token_trie_query_mode, which csrc/abi checks against these.
    enum class Mode {
        greedy = 0,
        sampled = 1,
        best = 2,    // a search for whole answers
        scores = 3,  // of every leaf
        text = 4,    // free
        state = 5    // nothing but the hidden state
    };
    struct Text {
        std::size_t max_tokens = 0;
        std::vector<std::string> stop_strings;
        std::optional<std::string> grammar;
        std::string grammar_root = "root";
        std::function<bool(const Decoder::Step &)> on_token = nullptr;  // false ends the text after it
    };

    // At its root or, of a decoding, thinking. Of text: null, or the thought is the answer. Of state: null.
    std::shared_ptr<const Cursor> cursor;
    Mode mode = Mode::greedy;
    Sampling sampling;     // sampled, and free text
    SearchOptions search;  // best; of scores those of ScoreOptions
    Text text;
    bool with_state = false;  // whether the hidden state after the prompt is part of the answer
    bool goes_on = false;     // whether another prompt will begin with this one, which a batch then keeps

    bool wants_state() const noexcept { return with_state || mode == Mode::state; }
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
    // What generates the answer of a decoding. Throws Error: argument, grammar.
    Decoder decoder(const llama_vocab * vocab) const;
    // A step of it. Throws as Decoder::step does.
    Stop step(Decoder & decoder, Decoder::Host & host, WrittenText & written) const;
    // The members that it has found. Returns how many of n tokens are part of the answer, the last of which is the last
    // of a sequence of n_tokens.
    std::size_t read(const Decoder & decoder, std::size_t n, std::size_t n_tokens, Answer & answer) const;
};

// found: also of a decoding.
struct Answer : Ranking {
    Status status = Status::ok;
    std::string message;                // of a failure
    std::vector<Token> tokens;          // of a decoding
    std::vector<std::uint64_t> places;  // of a list: for each member where it begins and ends among the tokens
    Ending ending = Ending::none;       // of a list
    double span_logprob = 0;            // likewise, over its branch points
    Stop stop = Stop::none;             // of a decoding
    std::int32_t stop_string = -1;
    std::vector<double> scores;  // of all leaves
    std::vector<float> state;    // where it was wanted
    std::uint64_t n_shared = 0;  // tokens of the prompt that were evaluated for another one
    std::uint64_t n_branches = 0;
    std::uint64_t n_forced = 0;
    std::uint64_t n_free = 0;
    std::uint64_t n_evaluated = 0;  // nodes, or tokens of a decoding
    std::uint64_t n_passes = 0;     // after the prompt; of a batch, shared with others
    std::uint64_t prompt_ns = 0;    // of a batch: from the prompt's first token in the cache to its last
    std::uint64_t decide_ns = 0;    // from there on
    std::uint64_t decode_ns = 0;    // of a stream: inside forward passes
};

}  // namespace token_trie
