#include "stream/query.h"

#include <algorithm>

namespace token_trie {

std::size_t Query::max_tokens() const noexcept {
    if (is_text() || is_list()) {
        return text.max_tokens;
    }
    const FollowSet & follow = cursor->follow();
    const std::size_t n_thought =
        is_thinking() ? static_cast<std::size_t>(follow.max_before()) + follow.marker().size() : 0;
    return n_thought + cursor->trie().max_length();
}

void Query::check() const {
    check_rules({
        {mode == Mode::best && search.n_best == 0, "n_best: 0"},
        {cursor == nullptr && !is_text(), "query.set: null"},
    });
    if (cursor == nullptr) {
        return;
    }
    const FollowSet & follow = cursor->follow();
    check_rules({
        {is_decoded() && follow.on_complete() != OnComplete::end && (!is_list() || text.max_tokens == 0),
         "query.set_params.on_complete: an answer ends: end, or a list, restart, within max_tokens"},
        {is_thinking() && !is_decoded(), "start_after: whole answers are found without a text before them"},
        {is_text() && !is_thinking(), "start_after: none; text ends there, or has no set"},
        {!is_decoded() && (follow.left() != nullptr || !follow.may_end_after(1)),
         "a list with unique, exclude or min_items cannot be scored member by member"},
    });
}

Decoding::Decoding(const Query & query, const llama_vocab * vocab, std::size_t n_before, std::size_t n_left)
    : query_(query),
      vocab_(vocab),
      n_before_(n_before),
      max_tokens_(query.is_text() || query.is_list() ? std::min(query.text.max_tokens, n_left) : SIZE_MAX),
      decoder_(vocab, query.sampling, query.is_text()),
      written_(query.text.stop_strings),
      stop_(max_tokens_ == 0 ? Stop::max_tokens : Stop::none) {
    if (query.cursor != nullptr) {
        decoder_.set_trie(*query.cursor, query.mode == Query::Mode::greedy ? Mode::greedy : Mode::sampled);
    }
    if (query.text.grammar) {
        decoder_.set_grammar(query.text.grammar->c_str(), query.text.grammar_root.c_str());
    }
    decoder_.begin();
}

void Decoding::step(Decoder::Host & host) {
    const double logprob_before = decoder_.counts().span_logprob;
    const Decoder::Outcome outcome = decoder_.step(host, query_.is_text() ? &written_ : nullptr);
    const auto & on_token = query_.text.on_token;
    // With nothing but its end before it, a list needs no pass for that.
    Ending ending = Ending::none;
    if (const auto & cursor = decoder_.cursor(); query_.is_list() && cursor) {
        follow_list(*cursor, host.n_tokens(), logprob_before);
        ending = cursor->ending();
    }
    if (outcome.has_token && on_token && !on_token(decoder_.last())) {
        stop_ = Stop::callback;
    } else if (outcome.stop == Stop::string) {
        stop_ = end_.emplace(written_.end(vocab_, max_tokens_)).is_cut ? Stop::max_tokens : Stop::string;
    } else if (outcome.stop != Stop::none) {
        stop_ = outcome.stop;
    } else if (ending == Ending::max_items || ending == Ending::none_left) {
        stop_ = Stop::complete;
    } else if (host.n_tokens() - n_before_ == max_tokens_) {
        stop_ = Stop::max_tokens;
    }
}

// Notes the member that a step has begun, continued or finished; a separator or an end is none.
void Decoding::follow_list(const Cursor & cursor, std::size_t n_tokens, double logprob_before) {
    const bool is_next = cursor.n_before() != n_items_before_;
    if (cursor.node() != kRoot && (is_next || cursor.node() != node_)) {
        if (is_next || node_ == kRoot) {
            item_ = {kNoLeaf, n_tokens - 1, n_tokens, logprob_before};
        }
        items_.resize(static_cast<std::size_t>(cursor.n_items()));
        if (cursor.leaf() != kNoLeaf) {
            items_.back() = {cursor.leaf(), item_.begin, n_tokens, decoder_.counts().span_logprob - item_.logprob};
        }
    }
    node_ = cursor.node();
    n_items_before_ = cursor.n_before();
}

void Decoding::write(const Token * tokens, std::size_t n, Answer & answer) const {
    const Decoder::Counts & counts = decoder_.counts();
    const std::optional<Cursor> & cursor = decoder_.cursor();
    if (cursor && query_.is_list()) {
        for (const Item & item : items_) {
            answer.add(item.leaf, item.logprob);
            answer.ranges.push_back(item.begin - n_before_);
            answer.ranges.push_back(item.end - n_before_);
        }
        answer.info.ending = static_cast<std::int32_t>(cursor->ending());
        answer.info.logprob = counts.span_logprob;
        n = answer.ranges.empty() ? 0 : static_cast<std::size_t>(answer.ranges.back());
    } else if (cursor && !query_.is_text()) {
        answer.add(cursor->leaf(), counts.span_logprob);
    }
    answer.tokens.assign(tokens, tokens + n_kept(n));
    if (end_) {
        answer.tokens.insert(answer.tokens.end(), end_->rest.begin(), end_->rest.end());
    }
    answer.info.stop = static_cast<std::int32_t>(stop_);
    answer.info.stop_string = stop_ == Stop::string ? static_cast<std::int32_t>(written_.stop_string()) : -1;
    answer.info.n_branches = counts.n_branches;
    answer.info.n_forced = counts.n_forced;
    answer.info.n_free = counts.n_free;
}

}  // namespace token_trie
