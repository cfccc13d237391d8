#pragma once

#include "cursor/cursor.h"
#include "decode/picker.h"
#include "decode/text.h"
#include "sampler/sampler.h"
#include "trie/non_copyable.h"

#include <optional>

namespace [[gnu::visibility("default")]] token_trie {

// Generates text token by token, under a trie, a grammar, or nothing, on tokens that a host holds and evaluates:
//
//     GET        branch point: chosen by the logits after what is before it
//     _          forced: needs none
//     WEATHER    branch point: by those after GET _
//
// A stream and a batch are hosts.
class Decoder {
   public:
    class Host : NonCopyable {
       public:
        virtual ~Host() = default;

        // So that an append finds memory.
        virtual void reserve() = 0;
        // Logits after the last token, of which those of the tokens wanted mean something. Throws Error.
        virtual const float * logits(const AllowedSet & wanted) = 0;
        // The best of the tokens wanted by its logit, where no logits are needed for that. Throws Error.
        virtual std::optional<Picker::Pick> best(const AllowedSet & /*wanted*/) { return std::nullopt; }
        // A token comes that needs no logits, the only one allowed. Throws Error.
        virtual void before_forced(const AllowedSet & /*allowed*/) {}
        // Throws Error (context) where one more token does not fit.
        virtual void check_not_full() const {}
        virtual std::size_t n_tokens() const noexcept = 0;
        // After reserve and check_not_full.
        virtual void append(Token token) noexcept = 0;
    };

    struct Step {
        Token token;
        bool forced;
        float logprob;  // among the allowed tokens; 0 if forced, NaN in free text
        std::string text;
    };

    struct Counts {
        double span_logprob = 0;  // summed over the branch points of this span, ends among them
        std::uint64_t n_forced = 0;
        std::uint64_t n_branches = 0;
        std::uint64_t n_free = 0;
        std::uint64_t n_closed = 0;  // spans that were to begin no further item, as they had become too long
    };

    // has_text: steps come with their text. Throws Error (argument) on values that llama.cpp does not take.
    explicit Decoder(const llama_vocab * vocab, const Sampling & sampling = {}, bool has_text = true);

    void set_trie(Cursor cursor, Mode mode);
    void clear_trie() noexcept { cursor_.reset(); }
    // As Picker has them.
    void set_grammar(const char * gbnf, const char * root) { picker_.set_grammar(gbnf, root); }
    void set_sampling(const Sampling & sampling) { picker_.set_sampling(sampling); }
    void swap_draws(Decoder & other) noexcept { picker_.swap_draws(other.picker_); }

    // Begins to generate: in a new span where the last one has ended, but text that was released stays free.
    void begin() noexcept;
    // The next token follows a new text.
    void restart() noexcept;

    // The tokens that may come next.
    AllowedSet allowed() const { return cursor_ && is_constrained() ? cursor_->allowed() : AllowedSet{true, {}, {}}; }

    struct Outcome {
        bool has_token;  // last() was appended; an end and what completes a stop string are no part of the text
        Stop stop;       // none: more may follow
    };
    // One token, or none where the text ends. With stop strings, the text so far is looked through for these, and what
    // is before a span is text up to there. Where it throws, things are as they were: work that may fail comes first,
    // and before that work which costs no draw.
    Outcome step(Host & host, WrittenText * written = nullptr);
    const Step & last() const noexcept { return last_; }

    const std::optional<Cursor> & cursor() const noexcept { return cursor_; }
    const Counts & counts() const noexcept { return counts_; }
    // Adds what another has counted.
    void add_counts(const Counts & other) noexcept;
    // Begins them anew, but for the span's.
    void forget_counts() noexcept { counts_ = {counts_.span_logprob}; }

   private:
    bool is_constrained() const noexcept { return cursor_ && cursor_->is_active(); }
    Step pick(Host & host, const AllowedSet & allowed);
    void begin_span() noexcept;

    const llama_vocab * vocab_;
    bool has_text_;
    Picker picker_;
    Utf8Stream text_;
    std::optional<Cursor> cursor_;
    Mode mode_ = Mode::greedy;
    Counts counts_;
    Step last_{};  // appended, or under way
};

}  // namespace token_trie
