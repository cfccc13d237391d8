#pragma once

#include "oracle.h"

namespace token_trie::fuzz {

// A set of members as a stream was given it.
struct SetModel {
    std::set<test::Tokens> members;
    FollowSet::Options options;
    std::size_t n_leaves = 0;
    std::size_t n_nodes = 0;
    std::size_t max_length = 0;  // tokens of the longest member

    // Whether each member has a probability of its own.
    bool is_scorable() const { return !members.empty() && !options.unique && options.min_items <= 1; }
};

// A stream in plain C++: its tokens, and where it stands in its set.
class StreamModel {
   public:
    explicit StreamModel(std::size_t capacity, std::set<Token> ends) : capacity_(capacity), ends_(std::move(ends)) {}

    std::size_t capacity() const { return capacity_; }
    const test::Tokens & tokens() const { return tokens_; }
    bool is_full() const { return tokens_.size() == capacity_; }
    const SetModel * set() const { return set_ ? &*set_ : nullptr; }
    bool has_grammar = false;

    void prefill(test::Tokens tokens);
    void put(SetModel set);
    void clear();
    // Another that goes on from here, with counts of its own.
    StreamModel fork() const;

    // A generate that was not refused begins: a span that has ended begins again.
    void begin_generate();
    // It passes on a token.
    void emit(const token_trie_token & token);
    // It returns.
    void end_generate(std::int32_t stop);
    // It found a text to stop at, in a token that it did not pass on, and the sequence is this from then on.
    void end_at_string(test::Tokens tokens, const token_trie_stream_state & state);
    // Whether the span ended with the token passed on last.
    bool is_over() const { return is_over_; }

    // The state that get_state has to tell.
    void check(const token_trie_stream_state & state) const;

   private:
    void begin_span();
    bool is_released() const { return set_->options.on_complete == OnComplete::release; }
    bool is_constrained() const { return set_ && oracle_->state() == State::constrained; }
    // Whether token is an end of generation and would end the span, rather than go on with it.
    bool ends_span(Token token) const;

    std::size_t capacity_;
    std::set<Token> ends_;  // end-of-generation tokens
    test::Tokens tokens_;
    std::optional<SetModel> set_;
    std::optional<test::Oracle> oracle_;
    bool is_over_ = false;
    std::uint64_t n_forced_ = 0;
    std::uint64_t n_chosen_ = 0;
    std::uint64_t n_free_ = 0;
    std::uint64_t n_ends_ = 0;
};

}  // namespace token_trie::fuzz
