#include "stream/query.h"

namespace token_trie {

std::size_t Query::max_tokens() const noexcept {
    if (mode == Mode::state) {
        return 0;
    }
    if (is_text()) {
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
    if (is_decoded() && follow.on_complete() != OnComplete::end) {
        throw Error(Status::argument, "query.set_params.on_complete: one answer ends; no other than end");
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
    return goes_on ? outcome.stop : Stop::callback;
}

}  // namespace token_trie
