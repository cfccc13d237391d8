#pragma once

#include "decode/decoder.h"
#include "llama/vocab.h"
#include "stream/query.h"
#include "trie/non_copyable.h"

#include <atomic>
#include <functional>
#include <optional>

namespace [[gnu::visibility("default")]] token_trie {

// Generates text token by token on a context of its own, under a trie, a grammar, or nothing.
//
// Forced tokens are neither sampled nor evaluated alone: they join the lag of the sequence behind its cache, and the
// next branch point evaluates them all in one pass. After the last branch point the rest of a leaf costs no pass at
// all.
//
//     [prefill] -> GET   _   WEATHER  | SET   _   -> TIMER  |         -> chosen at a branch point
//                  pass: none         |       one pass, of SET and _
//
// One call at a time, which SharedStream sees to; cancel may come from any thread.
class Stream : NonCopyable {
   public:
    struct Options {
        Sampling sampling{};
        bool jump_forward = true;
        Sequence::Device device = Sequence::Device::automatic;
    };

    using Step = Decoder::Step;
    // Returns whether to go on.
    using OnStep = std::function<bool(const Step &)>;

    Stream(std::unique_ptr<Sequence> sequence, const Options & options);
    ~Stream() { sequence_->drop(branch_); }

    // Makes a stream that goes on as this one would, on the same context: span, grammar, draws and all. Calls of the
    // two are to take turns.
    std::unique_ptr<Stream> fork() { return std::unique_ptr<Stream>(new Stream(*this, Forked{})); }
    // Puts the stream's branch of the sequence to work, before any other call. Throws Error (context, memory).
    void take_turn() { sequence_->switch_to(branch_); }

    const Vocab & facts() const noexcept { return *facts_; }
    const llama_vocab * vocab() const noexcept { return facts_->get(); }
    std::size_t n_ctx_max() const noexcept { return sequence_->n_ctx_max(); }

    // Where these throw Error, things are as they were.
    void prefill(std::vector<Token> tokens);
    // Puts these tokens in the place of all after the first n_kept, unevaluated until what follows is.
    void splice(std::size_t n_kept, const std::vector<Token> & tokens);
    const std::vector<Token> & tokens() const noexcept { return sequence_->tokens(); }
    const std::optional<Cursor> & cursor() const noexcept { return decoder_.cursor(); }
    // Copies tokens that a prefill which begins with them need not evaluate; see Sequence.
    void import_prefix(llama_context * from, std::int32_t id, const std::vector<Token> & tokens);
    void set_grammar(const char * gbnf, const char * root) { decoder_.set_grammar(gbnf, root); }
    void set_trie(Cursor cursor, Mode mode) { decoder_.set_trie(std::move(cursor), mode); }
    void clear_trie() noexcept { decoder_.clear_trie(); }
    void set_sampling(const Sampling & sampling) { decoder_.set_sampling(sampling); }
    // written: what looks for stop strings, if anything does.
    Stop generate(std::int32_t max_tokens, const OnStep & on_step, WrittenText * written = nullptr);

    // generate, until one of some texts has been written, and that without it: the tokens in which it lies are taken
    // back, and what is before it in the first of them is put in their place, in no more tokens than max_tokens and
    // the context leave: where that is less than all of it, the stop is max_tokens. stop_string: which; only where it
    // was one. The step that completes it is neither passed on nor part of the sequence.
    Stop generate_until(std::int32_t max_tokens,
                        const std::vector<std::string> & stop_strings,
                        const OnStep & on_step,
                        std::size_t & stop_string);

    // generate for one token, which is handed out.
    struct Next {
        const Step * step;  // null: none; valid until the next call
        Stop stop;          // max_tokens: more may follow
    };
    Next next();

    // Answers a query after the sequence or, for whole answers, after the search's prefix. The tokens of a decoding
    // become part of the sequence, and the stream's own trie and grammar start again. Any other query leaves the stream
    // as it was, and so does an error.
    Answer answer(const Query & query);

    // Ends a prefill, answer or generate under way within one pass, and all that follow until resume.
    void cancel() noexcept { cancelled_ = true; }
    void resume() noexcept { cancelled_ = false; }

    token_trie_stream_state state() const;

   private:
    class Host;
    class Meter;
    struct Forked {};
    Stream(Stream & other, Forked);
    Stop end_with(Stop stop) noexcept;
    void put(std::size_t n_kept, const std::vector<Token> & tokens);
    void check_cancelled() const { throw_if(cancelled_, Status::cancelled, "cancelled"); }
    Answer decode(const Query & query);

    std::atomic<bool> cancelled_{false};
    std::shared_ptr<Sequence> sequence_;
    Sequence::Branch branch_;
    std::shared_ptr<const Vocab> facts_;
    Decoder decoder_;
    bool jump_forward_;
    token_trie_stream_state totals_{};  // how generate ended, its passes and times
};

}  // namespace token_trie
