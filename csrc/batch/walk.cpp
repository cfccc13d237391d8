#include "batch/walk.h"

#include "stream/finish_span.h"

#include <llama.h>

namespace token_trie {
namespace {

Picker::Options drawing_from(std::uint32_t seed) {
    Picker::Options options;
    options.seed = seed;
    return options;
}

}  // namespace

Walk::Walk(const llama_vocab * vocab, const Question & question)
    : vocab_(vocab),
      greedy_(question.way == Question::Way::greedy),
      cursor_(question.cursor),
      picker_(vocab, drawing_from(question.seed)) {
    picker_.set_temperature(question.temperature, question.top_p);
    go_on();
}

void Walk::see(const float * logits) {
    lag_.clear();
    const Picker::Pick pick = picker_.pick_allowed(cursor_.allowed(), logits, greedy_);
    ++n_branches_;
    logprob_ += static_cast<double>(pick.logprob);
    static_cast<void>(take(pick.token));
    go_on();
}

// As far as no choice is left.
void Walk::go_on() {
    while (!is_over_) {
        const Token only = cursor_.allowed().only();
        if (only < 0) {
            return;
        }
        n_forced_ += take(only) ? 1 : 0;
    }
}

// Returns whether it is part of the answer, which an end-of-generation token is not.
bool Walk::take(Token token) {
    const bool is_end = llama_vocab_is_eog(vocab_, token) && cursor_.ends_with(token);
    cursor_.accept(token);
    if (!is_end) {
        tokens_.push_back(token);
        lag_.push_back(token);
        picker_.accept(token);
    }
    is_over_ = is_end || finish_span(cursor_, vocab_);
    return !is_end;
}

void Walk::write(Answer & answer) const {
    answer.tokens = tokens_;
    answer.found = {{cursor_.leaf(), logprob_}};
    answer.n_branches = n_branches_;
    answer.n_forced = n_forced_;
}

}  // namespace token_trie
