#include "stream/query.h"

namespace token_trie {

std::size_t Query::max_tokens() const noexcept {
    if (mode == Mode::state) {
        return 0;
    }
    if (is_text() || is_list()) {
        return text.max_tokens;
    }
    const FollowSet & follow = cursor->follow();
    const std::size_t n_thought =
        is_thinking() ? static_cast<std::size_t>(follow.max_before()) + follow.marker().size() : 0;
    return n_thought + cursor->trie().max_length();
}

void Query::check() const {
    if (mode == Mode::best && search.n_best == 0) {
        throw Error(Status::argument, "n_best: 0");
    }
    if (cursor == nullptr) {
        if (!is_text() && mode != Mode::state) {
            throw Error(Status::argument, "query.set: null");
        }
        return;
    }
    if (mode == Mode::state) {
        throw Error(Status::argument, "query.set: one, where the hidden state alone is wanted");
    }
    const FollowSet & follow = cursor->follow();
    if (is_decoded() && follow.on_complete() != OnComplete::end && (!is_list() || text.max_tokens == 0)) {
        throw Error(Status::argument,
                    "query.set_params.on_complete: an answer ends: end, or a list, restart, within max_tokens");
    }
    if (is_thinking() && !is_decoded()) {
        throw Error(Status::argument, "start_after: whole answers are found without a text before them");
    }
    if (is_text() && !is_thinking()) {
        throw Error(Status::argument, "start_after: none; text ends there, or has no set");
    }
    if (!is_decoded() && !cursor->trie().is_tree()) {
        throw Error(Status::argument, "a set of texts in any tokenization cannot be scored; give the members' tokens");
    }
    if (!is_decoded() && (follow.left() != nullptr || !follow.may_end_after(1))) {
        throw Error(Status::argument, "a list with unique, exclude or min_items cannot be scored member by member");
    }
}

Decoder Query::decoder(const llama_vocab * vocab) const {
    Decoder out(vocab, sampling, is_text());
    if (cursor != nullptr) {
        out.set_trie(*cursor, mode == Mode::greedy ? token_trie::Mode::greedy : token_trie::Mode::sampled);
    }
    if (text.grammar) {
        out.set_grammar(text.grammar->c_str(), text.grammar_root.c_str());
    }
    out.begin();
    return out;
}

Stop Query::step(Decoder & decoder, Decoder::Host & host, WrittenText & written) const {
    const Decoder::Outcome outcome = decoder.step(host, is_text() ? &written : nullptr);
    const bool goes_on = !outcome.has_token || !text.on_token || text.on_token(decoder.last());
    // With nothing but its end before it, a list needs no pass for that.
    const Ending ending = is_list() ? decoder.cursor()->ending() : Ending::none;
    const bool is_over = ending == Ending::max_items || ending == Ending::none_left;
    return !goes_on ? Stop::callback : outcome.stop == Stop::none && is_over ? Stop::complete : outcome.stop;
}

std::size_t Query::read(const Decoder & decoder, std::size_t n, std::size_t n_tokens, Answer & answer) const {
    if (is_text() || !decoder.cursor()) {
        return n;
    }
    if (!is_list()) {
        answer.found = {{decoder.cursor()->leaf(), decoder.counts().span_logprob}};
        return n;
    }
    const std::size_t n_before = n_tokens - n;
    for (const ItemLog::Item & item : decoder.items().items()) {
        answer.found.push_back({item.leaf, item.logprob});
        answer.places.push_back(item.begin - n_before);
        answer.places.push_back(item.end - n_before);
    }
    answer.ending = decoder.cursor()->ending();
    answer.span_logprob = decoder.counts().span_logprob;
    return answer.places.empty() ? 0 : static_cast<std::size_t>(answer.places.back());
}

}  // namespace token_trie
