#include "stream/stream.h"

#include "llama/log.h"
#include "stream/finish_span.h"

#include <llama.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace token_trie {

Stream::Stream(std::unique_ptr<Sequence> sequence, const Options & options)
    : sequence_(std::move(sequence)),
      branch_(sequence_->branch()),
      facts_(std::make_shared<const Vocab>(sequence_->vocab())),
      picker_(sequence_->vocab(), options.picker),
      jump_forward_(options.jump_forward) {
    sequence_->set_device(options.device);
}

Stream::Stream(Stream & other, Forked)
    : sequence_(other.sequence_),
      branch_(other.branch_),
      facts_(other.facts_),
      picker_(other.picker_),
      text_(other.text_),
      sets_(other.sets_),
      cursor_(other.cursor_),
      mode_(other.mode_),
      jump_forward_(other.jump_forward_),
      items_(other.items_),
      n_span_(other.n_span_) {
    stats_.span_logprob = other.stats_.span_logprob;
    branch_ = sequence_->fork();  // last, as what is dropped is a whole stream's
}

Stream::~Stream() { sequence_->drop(branch_); }

std::unique_ptr<Stream> Stream::fork() { return std::unique_ptr<Stream>(new Stream(*this, Forked{})); }

void Stream::prefill(std::vector<Token> tokens) {
    if (tokens.empty()) {
        throw Error(Status::argument, "tokens: none; a prompt needs at least one");
    }
    check_tokens(tokens, "tokens");
    sequence_->replace(std::move(tokens), cancelled_);
    picker_.restart();
    text_.reset();
    begin_span();
}

void Stream::append(std::size_t n_kept, const std::vector<Token> & tokens) {
    check_tokens(tokens, "tokens");
    if (n_kept > sequence_->tokens().size()) {
        throw Error(Status::argument, "n_kept: " + std::to_string(n_kept) + " of a sequence of " +
                                          std::to_string(sequence_->tokens().size()) + " tokens");
    }
    if (n_kept + tokens.size() > sequence_->capacity()) {
        throw Error(Status::context, std::to_string(n_kept + tokens.size()) + " tokens do not fit the context of " +
                                         std::to_string(sequence_->capacity()));
    }
    put(n_kept, tokens);
}

void Stream::put(std::size_t n_kept, const std::vector<Token> & tokens) {
    sequence_->reserve(tokens.size());
    sequence_->cut(n_kept);
    for (const Token token : tokens) {
        sequence_->append(token);
    }
    picker_.restart();
    text_.reset();
    begin_span();
}

void Stream::take_over(llama_context * from, std::int32_t id, const std::vector<Token> & tokens) {
    check_tokens(tokens, "tokens");
    sequence_->take_over(from, id, tokens);
}

void Stream::set_grammar(const char * gbnf, const char * root) { picker_.set_grammar(gbnf, root); }

void Stream::set_trie(Cursor cursor, Mode mode) {
    cursor_ = std::move(cursor);
    mode_ = mode;
    begin_span();
}

void Stream::clear_trie() {
    cursor_.reset();
    items_.clear();
}

void Stream::set_seed(std::uint32_t seed) { picker_.set_seed(seed); }

Stop Stream::generate(std::int32_t max_tokens, float temperature, float top_p, const OnStep & on_step) {
    return generate(max_tokens, temperature, top_p, on_step, nullptr);
}

Stop Stream::generate(
    std::int32_t max_tokens, float temperature, float top_p, const OnStep & on_step, const Joins & joins) {
    if (max_tokens < 0) {
        throw Error(Status::argument, "max_tokens: " + std::to_string(max_tokens) + " is negative");
    }
    if (sequence_->tokens().empty()) {
        throw Error(Status::argument, "nothing to go on from: prefill first");
    }
    picker_.set_temperature(temperature, top_p);
    // A span that has ended begins again; but text that was released stays free.
    if (cursor_ && !cursor_->is_active() && cursor_->follow().on_complete() != OnComplete::release) {
        begin_span();
    }
    const auto started = std::chrono::steady_clock::now();
    const std::uint64_t passes = sequence_->n_passes();
    const std::uint64_t decode_ns = sequence_->decode_ns();
    const auto account = [&] {
        stats_.n_passes += sequence_->n_passes() - passes;
        stats_.decode_ns += sequence_->decode_ns() - decode_ns;
        stats_.generate_ns +=
            static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - started).count());
    };
    stats_.stop = Stop::none;
    try {
        std::optional<Stop> stop;
        for (std::int32_t n = 0; !stop; ++n) {
            stop = cancelled_ ? Stop::cancelled : n == max_tokens ? Stop::max_tokens : step(on_step, joins);
        }
        stats_.stop = *stop;
    } catch (const Error & error) {
        account();
        if (error.status() != Status::cancelled) {
            throw;
        }
        return stats_.stop = Stop::cancelled;
    } catch (...) {
        account();
        throw;
    }
    account();
    return stats_.stop;
}

Stream::Next Stream::next(float temperature, float top_p) {
    Next out{nullptr, Stop::none};
    out.stop = generate(1, temperature, top_p, [&](const Step & step) {
        out.step = &step;
        return true;
    });
    return out;
}

// Emits a token, or finds that there is none; returns the reason to stop, if any. First what may fail: a token that is
// part of the sequence is passed on; and of that first what needs no token, so that it costs no draw.
std::optional<Stop> Stream::step(const OnStep & on_step, const Joins & joins) {
    items_.make_room();
    picker_.make_room();
    sequence_->reserve(1);
    const bool under_trie = cursor_ && cursor_->is_active();
    const AllowedSet allowed = under_trie ? cursor_->allowed() : AllowedSet{true, {}, {}};
    const auto logits = [&] { return sequence_->logits(allowed, !jump_forward_, cancelled_); };
    Step & step = last_;
    step = {-1, false, 0, {}};
    if (allowed.everything) {
        step.token = picker_.pick_any(logits(), /* under_grammar = */ !cursor_, allowed.except);
        step.logprob = std::numeric_limits<float>::quiet_NaN();
    } else if (const Token only = allowed.only(); only >= 0) {
        step.token = only;
        step.forced = true;
        if (!jump_forward_) {
            static_cast<void>(logits());
        }
    } else {
        const bool greedy = mode_ == Mode::greedy;
        const auto best =
            picker_.takes_the_best(greedy) ? sequence_->best(allowed, !jump_forward_, cancelled_) : std::nullopt;
        const Picker::Pick pick =
            best ? Picker::Pick{best->token, best->logprob} : picker_.pick_allowed(allowed, logits(), greedy);
        step.token = pick.token;
        step.logprob = pick.logprob;
    }
    const double span_logprob = stats_.span_logprob + (allowed.everything ? 0 : static_cast<double>(step.logprob));
    if (llama_vocab_is_eog(vocab(), step.token) && (!under_trie || cursor_->ends_with(step.token))) {
        // An end is not part of the text: neither passed on nor put into the sequence.
        stats_.n_branches += !allowed.everything && !step.forced ? 1 : 0;
        stats_.span_logprob = span_logprob;
        if (under_trie) {
            cursor_->accept(step.token);
        }
        return allowed.everything ? Stop::end : Stop::complete;
    }
    Utf8Stream text = text_;
    step.text = text.feed(detokenize(vocab(), step.token, /* special = */ false));
    std::uint64_t & count = allowed.everything ? stats_.n_free : step.forced ? stats_.n_forced : stats_.n_branches;
    if (joins && !joins(step, text.is_whole())) {
        ++count;
        return Stop::string;
    }
    sequence_->check_not_full();
    if (under_trie) {
        const bool thought = cursor_->state() == State::thinking;
        const ItemLog::Place before = ItemLog::place_of(*cursor_);
        cursor_->accept(step.token);
        n_span_ += thought ? 0 : 1;
        items_.add(before, *cursor_, sequence_->tokens().size() + 1, stats_.span_logprob, span_logprob);
    }
    sequence_->append(step.token);
    text_ = std::move(text);
    stats_.span_logprob = span_logprob;
    picker_.accept(step.token);
    ++count;
    if (under_trie && cursor_) {
        close_if_long(*cursor_);
    }
    const bool over = under_trie && cursor_ && finish_span(*cursor_, vocab());
    if (!on_step(step)) {
        return Stop::callback;
    }
    return over ? std::optional<Stop>(Stop::complete) : std::nullopt;
}

Scores Stream::score(const Cursor & cursor, const ScoreOptions & options) {
    check_scoring(cursor, options);
    check_cancelled();
    return score_all(*sequence_, cursor, options, cancelled_);
}

SearchResult Stream::search(const Cursor & cursor, const SearchOptions & options) {
    check_scoring(cursor, options);
    if (options.n_best == 0) {
        throw Error(Status::argument, "n_best: 0");
    }
    check_cancelled();
    return token_trie::search(*sequence_, cursor, options, cancelled_);
}

void Stream::check_cancelled() const {
    if (cancelled_) {
        throw Error(Status::cancelled, "cancelled");
    }
}

void Stream::check_scoring(const Cursor & cursor, const ScoreOptions & options) const {
    if (!cursor.trie().is_tree()) {
        throw Error(Status::argument, "a set of texts in any tokenization cannot be scored; give the members' tokens");
    }
    if (cursor.follow().left() != nullptr || !cursor.follow().may_end_after(1)) {
        throw Error(Status::argument, "a list with unique, exclude or min_items cannot be scored member by member");
    }
    check_tokens(options.prefix, "prefix");
    if (options.prefix.empty() && sequence_->tokens().empty()) {
        throw Error(Status::argument, "nothing to score behind: prefill first");
    }
}

void Stream::check_tokens(const std::vector<Token> & tokens, const char * what) const {
    const std::int32_t n_vocab = facts_->size();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab) {
            throw Error(Status::vocab, std::string(what) + "[" + std::to_string(i) + "]: " + std::to_string(tokens[i]) +
                                           " is outside the vocabulary (" + std::to_string(n_vocab) + " tokens)");
        }
    }
}

void Stream::begin_span() {
    stats_.span_logprob = 0;
    items_.clear();
    n_span_ = 0;
    if (cursor_) {
        cursor_->reset();
    }
}

void Stream::close_if_long(Cursor & cursor) {
    if (cursor.follow().is_long(n_span_) && cursor.close()) {
        ++stats_.n_closed;
        log_warning(kSpanClosed);
    }
}

Stream::Snapshot Stream::snapshot() const {
    return {stats_,
            sequence_->tokens(branch_).size(),
            sequence_->n_cached(branch_),
            sequence_->room(),
            sequence_->capacity(),
            sequence_->cache_bytes(),
            sequence_->n_taken_over(),
            sequence_->n_on_device(),
            cursor_};
}

}  // namespace token_trie
