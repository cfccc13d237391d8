#include "stream/stream.h"

#include <llama.h>

#include <algorithm>
#include <chrono>

namespace token_trie {

// The sequence, for as long as a step takes.
class Stream::Host final : public Decoder::Host {
   public:
    explicit Host(const Stream & stream) : stream_(stream), sequence_(*stream.sequence_) {}

    void reserve() override { sequence_.reserve(1); }
    const float * logits(const AllowedSet & wanted) override {
        return sequence_.logits(wanted, !stream_.jump_forward_, stream_.cancelled_);
    }
    std::optional<Picker::Pick> best(const AllowedSet & wanted) override {
        const auto best = sequence_.best(wanted, !stream_.jump_forward_, stream_.cancelled_);
        return best ? std::optional<Picker::Pick>({best->token, best->logprob}) : std::nullopt;
    }
    void before_forced(const AllowedSet & allowed) override {
        if (!stream_.jump_forward_) {
            static_cast<void>(logits(allowed));
        }
    }
    void check_not_full() const override { sequence_.check_not_full(); }
    std::size_t n_tokens() const noexcept override { return sequence_.tokens().size(); }
    void append(Token token) noexcept override { sequence_.append(token); }

   private:
    const Stream & stream_;
    Sequence & sequence_;
};

// Measures the passes and time of a sequence from here on.
class Stream::Meter {
   public:
    explicit Meter(const Sequence & sequence) : sequence_(sequence) {}
    void add_to(token_trie_stream_state & totals) const {
        totals.n_passes += sequence_.n_passes() - n_passes_;
        totals.decode_ns += sequence_.decode_ns() - decode_ns_;
        totals.generate_ns += ns_between(started_, std::chrono::steady_clock::now());
    }

   private:
    const Sequence & sequence_;
    const std::uint64_t n_passes_ = sequence_.n_passes();
    const std::uint64_t decode_ns_ = sequence_.decode_ns();
    const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

Stream::Stream(std::unique_ptr<Sequence> sequence, const Options & options)
    : sequence_(std::move(sequence)),
      branch_(sequence_->branch()),
      facts_(std::make_shared<const Vocab>(sequence_->vocab())),
      decoder_(sequence_->vocab(), options.sampling),
      jump_forward_(options.jump_forward) {
    sequence_->set_device(options.device);
}

Stream::Stream(Stream & other, Forked)
    : sequence_(other.sequence_),
      branch_(other.branch_),
      facts_(other.facts_),
      decoder_(other.decoder_),
      jump_forward_(other.jump_forward_) {
    decoder_.forget_counts();
    branch_ = sequence_->fork();  // last, as what is dropped is a whole stream's
}

void Stream::prefill(std::vector<Token> tokens) {
    throw_if(tokens.empty(), Status::argument, "tokens: none; a prompt needs at least one");
    check_tokens(tokens, facts_->size(), "tokens");
    sequence_->replace(std::move(tokens), cancelled_);
    decoder_.restart();
}

void Stream::splice(std::size_t n_kept, const std::vector<Token> & tokens) {
    check_tokens(tokens, facts_->size(), "tokens");
    throw_if(n_kept > this->tokens().size(), Status::argument, "n_kept: ", n_kept, " of a sequence of ",
             this->tokens().size(), " tokens");
    check_fits(n_kept + tokens.size(), n_ctx_max());
    put(n_kept, tokens);
}

void Stream::put(std::size_t n_kept, const std::vector<Token> & tokens) {
    sequence_->reserve(tokens.size());
    sequence_->cut(n_kept);
    for (const Token token : tokens) {
        sequence_->append(token);
    }
    decoder_.restart();
}

void Stream::import_prefix(llama_context * from, std::int32_t id, const std::vector<Token> & tokens) {
    check_tokens(tokens, facts_->size(), "tokens");
    sequence_->import_prefix(from, id, tokens);
}

Stop Stream::generate_until(std::int32_t max_tokens,
                            const std::vector<std::string> & stop_strings,
                            const OnStep & on_step,
                            std::size_t & stop_string) {
    const std::size_t n_start = tokens().size();
    const std::size_t n_left = n_ctx_max() - std::min(n_ctx_max(), n_start);
    WrittenText written(stop_strings);
    const Stop stop = generate(max_tokens, on_step, &written);
    if (stop != Stop::string) {
        return stop;
    }
    stop_string = written.stop_string();
    const WrittenText::End end = written.end(vocab(), std::min(static_cast<std::size_t>(max_tokens), n_left));
    put(n_start + end.n_kept, end.rest);
    return end_with(end.is_cut ? Stop::max_tokens : Stop::string);
}

Stop Stream::generate(std::int32_t max_tokens, const OnStep & on_step, WrittenText * written) {
    throw_if(max_tokens < 0, Status::argument, "max_tokens: ", max_tokens, " is negative");
    throw_if(sequence_->tokens().empty(), Status::argument, "nothing to go on from: prefill first");
    decoder_.begin();
    Host host(*this);
    const Meter meter(*sequence_);
    Stop stop = end_with(Stop::none);
    try {
        for (std::int32_t n = 0; stop == Stop::none; ++n) {
            if (cancelled_ || n == max_tokens) {
                stop = cancelled_ ? Stop::cancelled : Stop::max_tokens;
                break;
            }
            const Decoder::Outcome outcome = decoder_.step(host, written);
            stop = outcome.has_token && !on_step(decoder_.last()) ? Stop::callback : outcome.stop;
        }
    } catch (const Error & error) {
        meter.add_to(totals_);
        if (error.status() != Status::cancelled) {
            throw;
        }
        return end_with(Stop::cancelled);
    } catch (...) {
        meter.add_to(totals_);
        throw;
    }
    meter.add_to(totals_);
    return end_with(stop);
}

Stop Stream::end_with(Stop stop) noexcept {
    totals_.stop = static_cast<std::int32_t>(stop);
    return stop;
}

Stream::Next Stream::next() {
    Next out{nullptr, Stop::none};
    out.stop = generate(1, [&](const Step & step) {
        out.step = &step;
        return true;
    });
    return out;
}

Answer Stream::answer(const Query & query) {
    query.check();
    throw_if(!query.search.prefix.empty() && (query.is_decoded() || query.with_hidden_state), Status::argument,
             "tokens: only whole answers are found after other tokens than the sequence");
    check_tokens(query.search.prefix, facts_->size(), "prefix");
    throw_if(query.search.prefix.empty() && sequence_->tokens().empty(), Status::argument,
             "nothing to go on from: prefill first");
    check_cancelled();
    const Meter meter(*sequence_);
    std::vector<float> state;
    if (query.with_hidden_state) {
        state = sequence_->hidden_state(cancelled_);
    }
    Answer out = query.is_decoded()                ? decode(query)
                 : query.mode == Query::Mode::best ? search(*sequence_, *query.cursor, query.search, cancelled_)
                                                   : score_all(*sequence_, *query.cursor, query.search, cancelled_);
    out.hidden_state = std::move(state);
    token_trie_stream_state taken{};
    meter.add_to(taken);
    out.info.n_passes = taken.n_passes;
    out.info.decode_ns = taken.decode_ns;
    out.info.decide_ns = taken.generate_ns;
    if (query.is_decoded()) {
        meter.add_to(totals_);
    }
    return out;
}

// By a decoder of its own, so that the stream's stays as it is where this fails.
Answer Stream::decode(const Query & query) {
    const std::size_t n_start = tokens().size();
    Decoding decoding(query, vocab(), n_start, n_ctx_max() - std::min(n_ctx_max(), n_start));
    Host host(*this);
    const auto exchange_draws = [&] {
        if (query.sampling.seed == TOKEN_TRIE_SEED_KEEP) {
            decoding.decoder().swap_draws(decoder_);
        }
    };
    Answer answer;
    exchange_draws();
    try {
        while (!decoding.is_done()) {
            check_cancelled();
            decoding.step(host);
        }
        const Token * const written = tokens().data() + n_start;
        const std::size_t n_written = tokens().size() - n_start;
        decoding.write(written, n_written, answer);
        const auto [kept, end] =
            std::mismatch(answer.tokens.begin(), answer.tokens.end(), written, written + n_written);
        put(n_start + static_cast<std::size_t>(end - written), {kept, answer.tokens.end()});
    } catch (...) {
        exchange_draws();
        sequence_->cut(n_start);
        throw;
    }
    exchange_draws();
    decoder_.add_counts(decoding.decoder().counts());
    answer.info.n_evaluated = answer.tokens.size();
    return answer;
}

token_trie_stream_state Stream::state() const {
    token_trie_stream_state out = totals_;
    out.span = -1;
    out.leaf = -1;
    if (const std::optional<Cursor> & at = cursor()) {
        out.span = static_cast<std::int32_t>(at->state());
        out.n_items = at->n_items();
        out.ending = static_cast<std::int32_t>(at->ending());
        out.leaf = at->leaf() == kNoLeaf ? -1 : static_cast<std::int64_t>(at->leaf());
        out.leaf_name = at->leaf() == kNoLeaf ? nullptr : at->trie().stored_name(at->leaf());
    }
    const Decoder::Counts & counts = decoder_.counts();
    out.logprob = counts.span_logprob;
    out.n_forced = counts.n_forced;
    out.n_branches = counts.n_branches;
    out.n_free = counts.n_free;
    out.n_closed = counts.n_closed;
    out.n_tokens = sequence_->tokens(branch_).size();
    out.n_cached = sequence_->n_cached(branch_);
    out.n_context = sequence_->n_ctx();
    out.n_context_max = sequence_->n_ctx_max();
    out.cache_bytes = sequence_->cache_bytes();
    out.n_imported = sequence_->n_imported();
    out.n_on_device = sequence_->n_on_device();
    out.n_states_max = sequence_->n_states_max();
    out.state_bytes = sequence_->state_bytes();
    return out;
}

}  // namespace token_trie
