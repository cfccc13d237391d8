#pragma once

#include "stream/scorer.h"
#include "stream/search.h"
#include "stream/stop.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// A prompt, what may answer it, and how that is decided.
struct Request {
    // The values of enum token_trie_batch_mode, which csrc/abi checks against these.
    enum class Way {
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
    };

    std::vector<Token> prompt;
    // On completion end, at its root or, of a decoding, thinking. Of text: null, or what is thought is the answer.
    std::shared_ptr<const Cursor> cursor;
    Way way = Way::greedy;
    // sampled, and of what is free:
    std::uint32_t seed = 0;
    float temperature = 1;
    float top_p = 1;
    // best, and of these scores those of ScoreOptions:
    SearchOptions search;
    Text text;
    bool with_state = false;  // whether the hidden state behind the prompt is part of the answer

    bool wants_state() const noexcept { return with_state || way == Way::state; }
    bool is_decoded() const noexcept { return way == Way::greedy || way == Way::sampled || way == Way::text; }
    bool is_thinking() const noexcept { return cursor != nullptr && cursor->state() == State::thinking; }
    // Of an answer at most.
    std::size_t max_tokens() const noexcept;
};

// found: of a decoding too.
struct Answer : Ranking {
    Status status = Status::ok;
    std::string message;        // of what is not ok
    std::vector<Token> tokens;  // of a decoding
    Stop stop = Stop::none;     // likewise
    std::int32_t stop_string = -1;
    std::vector<double> scores;  // of all leaves
    std::vector<float> state;    // where it was wanted
    std::uint64_t n_shared = 0;  // tokens of the prompt that were evaluated for another one
    std::uint64_t n_branches = 0;
    std::uint64_t n_forced = 0;
    std::uint64_t n_free = 0;
    std::uint64_t n_evaluated = 0;  // nodes, or tokens of a decoding
    std::uint64_t n_passes = 0;     // behind the prompt, shared with others
    std::uint64_t prompt_ns = 0;    // from the prompt's first token in the cache to its last
    std::uint64_t decide_ns = 0;    // from there on
};

inline std::size_t Request::max_tokens() const noexcept {
    if (way == Way::state) {
        return 0;
    }
    if (way == Way::text) {
        return text.max_tokens;
    }
    const FollowSet & follow = cursor->follow();
    const std::size_t n_thought =
        is_thinking() ? static_cast<std::size_t>(follow.max_before()) + follow.marker().size() : 0;
    return n_thought + cursor->trie().max_length();
}

}  // namespace token_trie
