#include "batch/walk.h"

#include "llama/vocab.h"
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
      way_(question.way),
      max_tokens_(question.max_tokens()),
      cursor_(question.cursor == nullptr ? nullptr : std::make_unique<Cursor>(*question.cursor)),
      picker_(vocab, drawing_from(question.seed)),
      written_(question.text.stop_strings) {
    picker_.set_temperature(question.temperature, question.top_p);
    if (question.text.grammar) {
        picker_.set_grammar(question.text.grammar->c_str(), question.text.grammar_root.c_str());
    }
    stop_ = max_tokens_ == 0 ? Stop::max_tokens : Stop::none;
    go_on();
}

void Walk::see(const float * logits) {
    lag_.clear();
    const AllowedSet allowed = this->allowed();
    if (allowed.everything) {
        const Token token = picker_.pick_any(logits, /* under_grammar = */ cursor_ == nullptr, allowed.except);
        n_free_ += take(token) ? 1 : 0;
    } else {
        const Picker::Pick pick = picker_.pick_allowed(allowed, logits, way_ == Question::Way::greedy);
        ++n_branches_;
        logprob_ += static_cast<double>(pick.logprob);
        static_cast<void>(take(pick.token));
    }
    go_on();
}

// As far as no choice is left.
void Walk::go_on() {
    while (!is_over()) {
        const Token only = allowed().only();
        if (only < 0) {
            return;
        }
        n_forced_ += take(only) ? 1 : 0;
    }
}

// Returns whether it is part of the answer, which an end-of-generation token is not.
bool Walk::take(Token token) {
    if (llama_vocab_is_eog(vocab_, token) && (cursor_ == nullptr || cursor_->ends_with(token))) {
        if (cursor_ != nullptr) {
            cursor_->accept(token);
        }
        stop_ = cursor_ != nullptr ? Stop::complete : Stop::end;
        return false;
    }
    if (cursor_ != nullptr) {
        cursor_->accept(token);
    }
    tokens_.push_back(token);
    lag_.push_back(token);
    picker_.accept(token);
    stop_ = stop_behind(token);
    return true;
}

Stop Walk::stop_behind(Token token) {
    if (way_ != Question::Way::text) {
        return finish_span(*cursor_, vocab_) ? Stop::complete : Stop::none;
    }
    if (cursor_ != nullptr && cursor_->state() != State::thinking) {
        return Stop::complete;
    }
    const std::string more = text_.feed(detokenize(vocab_, token, /* special = */ false));
    if (written_.add(more, text_.is_whole())) {
        end_ = written_.end(vocab_, max_tokens_);
        return end_->is_cut ? Stop::max_tokens : Stop::string;
    }
    return tokens_.size() == max_tokens_ ? Stop::max_tokens : Stop::none;
}

void Walk::write(Answer & answer) const {
    answer.tokens = tokens_;
    answer.stop = stop_;
    if (stop_ == Stop::string) {
        answer.stop_string = static_cast<std::int32_t>(written_.stop_string());
    }
    if (end_) {
        answer.tokens.resize(end_->n_kept);
        answer.tokens.insert(answer.tokens.end(), end_->rest.begin(), end_->rest.end());
    }
    if (way_ != Question::Way::text) {
        answer.found = {{cursor_->leaf(), logprob_}};
    }
    answer.n_branches = n_branches_;
    answer.n_forced = n_forced_;
    answer.n_free = n_free_;
}

}  // namespace token_trie
