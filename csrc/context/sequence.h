#pragma once

#include "context/cell_table.h"
#include "context/contexts.h"
#include "context/device_head.h"
#include "cursor/reserve_more.h"

#include <llama.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// A copy of what a context's memory holds of one sequence.
class SavedState {
   public:
    // Reads the context and changes nothing in it. The sequence may not be empty there: llama.cpp may end the process
    // when that is put back.
    SavedState(llama_context * context, llama_seq_id id) : bytes_(llama_state_seq_get_size(context, id)) {
        if (llama_state_seq_get_data(context, bytes_.data(), bytes_.size(), id) != bytes_.size()) {
            bytes_.clear();
        }
    }

    // Whether it could be copied.
    explicit operator bool() const noexcept { return !bytes_.empty(); }

    // Puts it in the place of what a sequence holds, which is lost also where that fails: where it does not fit, or
    // the contexts differ in what their memory is made of.
    bool restore(llama_context * context, llama_seq_id id) const noexcept {
        llama_memory_seq_rm(llama_get_memory(context), id, -1, -1);
        try {
            return !bytes_.empty() &&
                   llama_state_seq_set_data(context, bytes_.data(), bytes_.size(), id) == bytes_.size();
        } catch (...) {  // memory that ran out in llama.cpp
            return false;
        }
    }

   private:
    std::vector<std::uint8_t> bytes_;
};

// The logits after the last token that a context has cached of a sequence: in the context until that computes anything
// else, or a copy of them.
class LastLogits {
   public:
    bool are_there() const noexcept { return are_there_; }
    // A pass begins, after which they may be there.
    void begin_pass() noexcept {
        are_there_ = false;
        copy_.clear();
    }
    void end_pass() noexcept { are_there_ = true; }
    void forget() noexcept { are_there_ = false; }
    // A copy of all of them; of none where the last pass has computed only few.
    LastLogits copy_of(GrowingContext & context) const {
        LastLogits out;
        if (are_there_ && (!copy_.empty() || !context.head().was_cut())) {
            out = *this;
            out.keep(context);
        }
        return out;
    }

    // Before the context's go.
    void keep(GrowingContext & context) {
        if (are_there_ && copy_.empty()) {
            const float * logits = get(context, {true, {}, {}});
            copy_.assign(logits, logits + context.n_vocab());
        }
    }
    // Whether they are the context's, as its last pass left them.
    bool are_of_last_pass() const noexcept { return are_there_ && copy_.empty(); }
    // The logits of the tokens wanted, valid until the next call. Throws Error (context).
    const float * get(GrowingContext & context, const AllowedSet & wanted) {
        if (!copy_.empty()) {
            return copy_.data();
        }
        return context.wait_for([&] {
            float * row = row_of(context, -1);
            if (context.head().was_cut()) {
                context.head().multiply(wanted, llama_n_threads(context.get()), row);
            }
            return row;
        });
    }
    // The logits of a pass's row. Throws Error (context).
    static float * row_of(const GrowingContext & context, std::int32_t i) {
        float * row = llama_get_logits_ith(context.get(), i);  // waits for the pass to end
        throw_if(row == nullptr, Status::context, "the context gives no logits (was it made for embeddings?)");
        return row;
    }

   private:
    bool are_there_ = false;
    std::vector<float> copy_;
};

// One sequence of tokens and the KV cache behind it. The cache lags behind: it holds a prefix of the sequence and
// catches up, in one batch, when the logits after the last token are wanted.
//
//     tokens     The weather in Oslo : GET _ WEATHER
//                |--- n_cached ---|  |-- lag ---|
//
// A sequence may go on in several ways: of its branches one is at work, under the context's sequence id 0, and the
// others are suspended, each under an id of its own. A cell belongs to all branches that hold it:
//
//     tokens     The weather in Oslo : GET _ WEATHER        at work    ids 0
//                                    : SET _ TIMER          suspended      1
//                |--- one cell each, ids 0 1 -|
//
// Where no id is left, a branch that is suspended is a copy of its state.
//
// A model with states cannot drop the tokens that come last. The sequence then keeps snapshots, forks of itself under
// ids of their own, and goes on from the longest that it begins with: of where a text ended, where two texts part, and
// shortly before the end of a long one, where the next may part from it.
//
//     tokens     The weather in Oslo : GET _ WEATHER        at work    id  0
//                |---------- prompt -|                      snapshots      1
//                |--- other prompts -|                                     2
//
// Whatever fails here leaves the tokens as they were; the cache may be shorter, which costs time and nothing else.
// Logits or a state that are not finite fail (NotFinite), and then all of the cache is forgotten.
class Sequence {
   public:
    // On contexts of its own: at first a small one, in whose place a larger one comes, with what it held, when that is
    // needed. Throws Error (argument) where none can be made.
    explicit Sequence(ContextMaker maker) : context_(std::move(maker)) {}

    // Until it grows.
    llama_context * context() const noexcept { return context_.get(); }
    const llama_vocab * vocab() const noexcept { return context_.vocab(); }
    const std::vector<Token> & tokens() const noexcept { return tokens_; }
    std::size_t n_cached() const noexcept { return n_cached_; }
    // Tokens that it can hold, or can be, beside what suspended branches hold.
    std::size_t n_ctx_max() const noexcept {
        return context_.n_ctx_max() - std::min(context_.n_ctx_max(), n_suspended());
    }
    // Sequence ids, likewise: 0, and from first_free_id on.
    std::size_t n_ids() const noexcept { return context_.n_ids_max() + 1 - static_cast<std::size_t>(first_free_id()); }
    llama_seq_id first_free_id() const noexcept;
    // Tokens that the present context holds at most.
    std::size_t n_ctx() const noexcept { return context_.n_ctx(); }
    // Bytes of its cache, once it has evaluated something; 0 where it reports its passes elsewhere.
    std::size_t cache_bytes() const noexcept { return context_.head().cache_bytes(); }
    // States that its context has at most, and bytes of each; 0: the model has none.
    std::size_t n_states_max() const noexcept { return cells_.has_states() ? context_.n_ids_max() : 0; }
    std::size_t state_bytes() const noexcept { return context_.state_bytes(); }
    // Tokens whose cache entries came from elsewhere, in all.
    std::uint64_t n_imported() const noexcept { return import_.n_tokens; }
    std::size_t n_batch() const noexcept { return llama_n_batch(context()); }
    std::uint64_t n_passes() const noexcept { return context_.n_passes(); }
    // Time inside forward passes, rows of the output matrix included.
    std::uint64_t decode_ns() const noexcept { return context_.decode_ns(); }

    using Branch = std::size_t;
    // The one at work.
    Branch branch() const noexcept { return branch_; }
    // Makes another that is as this one, suspended. Throws Error (context, memory).
    Branch fork();
    // Puts another to work. Throws Error (context, memory).
    void switch_to(Branch branch);
    // Frees what it alone holds.
    void drop(Branch branch) noexcept;
    const std::vector<Token> & tokens(Branch branch) const;
    std::size_t n_cached(Branch branch) const;

    // Makes the sequence these tokens, evaluated; what it begins with of them already is not evaluated again. A set
    // cancelled stops it between passes. Throws Error (context, cancelled).
    void replace(std::vector<Token> tokens, const std::atomic<bool> & cancelled);

    // Throws Error (context) where the context is full.
    void append(Token token);
    // Throws Error (context) where the context is full, as append does.
    void check_not_full() const;
    // So that so many appends find memory.
    void reserve(std::size_t n) { reserve_more(tokens_, n); }
    // Drops the tokens after the first n.
    void cut(std::size_t n);

    // Logits after the last token, over the vocabulary, valid until the next call; only those of the tokens wanted mean
    // anything. step_by_step evaluates the lag one token a pass, and each to its end. Throws Error (context,
    // cancelled).
    const float * logits(const AllowedSet & wanted, bool step_by_step, const std::atomic<bool> & cancelled);
    // The hidden state of the last token, n_embd of them; where no pass has left it, that token is evaluated again.
    // Throws as logits does, and Error (context) where the model's graph has none that can be read.
    std::vector<float> hidden_state(const std::atomic<bool> & cancelled);

    // The best of the tokens wanted, chosen on the device, from which nothing else is fetched; nothing where that
    // cannot be, or logits are here already. Throws as logits does.
    std::optional<DeviceHead::Best> best(const AllowedSet & wanted,
                                         bool step_by_step,
                                         const std::atomic<bool> & cancelled);

    // Whether the few logits that a step needs are gathered on the device: by itself, where they come to be on one.
    enum class Device { automatic = TOKEN_TRIE_DEVICE_AUTO, on = TOKEN_TRIE_DEVICE_ON, off = TOKEN_TRIE_DEVICE_OFF };
    void set_device(Device device) noexcept { device_use_ = device; }
    // Passes that ended so.
    std::uint64_t n_on_device() const noexcept { return device_.n_passes(); }
    // Whether passes may end before the output matrix, where few logits are wanted; without effect on these.
    void allow_cuts(bool allowed) noexcept { context_.head().allow_cuts(allowed); }
    // Whether a batch may have tokens of one sequence alone.
    bool takes_one_at_a_time() const noexcept { return context_.takes_one_at_a_time(); }
    // Whether all layers are on devices, where a batch of some tens of tokens takes about as long as one of one. Told
    // by the first pass of a context that reports its passes here; until then, and of others: no.
    bool has_layers_on_device() const noexcept { return context_.head().has_layers_on_device(); }

    // Makes the cache hold these tokens, as far as a sequence of another context on the same model does: where that is
    // more of them than it holds itself. They count when the sequence begins with them, and are then not evaluated.
    // The other context is only read, and nobody may compute in it meanwhile. Throws Error (argument, context) where
    // that cannot be; the cache is then as it was.
    void import_prefix(llama_context * from, std::int32_t id, const std::vector<Token> & tokens);

    // Sees to it that the context is large enough for so many tokens, and sequence ids. At most n_ctx_max and n_ids.
    // Throws Error (memory).
    void grow(std::size_t n_tokens, std::size_t n_ids = 1);

    // Evaluates a batch that is no part of the sequence, whose logits are kept. Throws Error (context).
    void evaluate_beside(const llama_batch & batch);
    // Logits after token i of that batch, valid until the next call.
    const float * row(std::int32_t i);
    // Drops what the cache holds after the tokens that are cached: of a sequence given up, or of a batch that failed.
    void trim_cache();
    // Says that the cache was lost; it begins anew when it is needed.
    void forget_cache() noexcept;
    // Says that its cells are no longer those of other branches.
    void forget_sharing() noexcept { cells_.forget(0); }
    // Forgets it if the window of sliding attention before its end is gone.
    void check_window() noexcept;

   private:
    // A branch suspended.
    struct Suspended {
        std::vector<Token> tokens;
        std::size_t n_cached = 0;
        LastLogits logits;
        llama_seq_id id = 0;              // that its cells have; 0: none,
        std::optional<SavedState> state;  // but a copy

        // Takes note that it has no more than n tokens of the cache.
        void keep(std::size_t n) noexcept {
            if (n < n_cached) {
                n_cached = n;
                logits = {};
            }
        }
    };
    // A beginning of this or another text, under an id of its own.
    struct Snapshot {
        llama_seq_id id = 0;
        LastLogits logits;
        std::size_t due = 0;  // the lowest goes first
    };
    // Tokens that came from another context's cache.
    struct Import {
        std::vector<Token> held;  // by the cache here, if not tokens of the sequence, or more than these
        std::uint64_t n_tokens = 0;
        const llama_context * like_this = nullptr;  // from where it has worked; maybe no longer there
    };

    bool shares_cells() const noexcept;
    void name_cells();
    std::size_t n_begun(const Snapshot & snapshot, const std::vector<Token> & tokens) const noexcept;
    void go_back(bool needs_pass) noexcept;
    std::vector<std::size_t> stops() const;
    void count_use(Snapshot & snapshot) noexcept;
    void keep_snapshot() noexcept;
    bool make_room_for_snapshot() noexcept;
    void drop_snapshot() noexcept;
    Suspended copy_at_work();
    void suspend_as(Branch branch);
    void put_to_work(Suspended & branch) noexcept;
    std::size_t n_elsewhere() const noexcept { return cells_.n_cells() - cells_.n_held(0); }
    std::size_t n_suspended() const noexcept;
    void forget_all_branches() noexcept;
    template <typename Check>
    void or_forget(const Check & check);
    void count_cached(std::size_t n);
    void count_imported();
    bool has_logits() const noexcept { return logits_.are_there() && n_cached_ == tokens_.size(); }
    bool is_on_device() const noexcept {
        return device_use_ == Device::on || (device_use_ == Device::automatic && context_.head().is_on_device());
    }
    bool catch_up(bool needs_pass);
    bool evaluate(bool step_by_step,
                  bool cut,
                  const AllowedSet * wanted,
                  DeviceHead::Want want,
                  const std::atomic<bool> & cancelled,
                  bool needs_pass = false);
    void keep_logits();
    void check_pass(std::int32_t result);

    DeviceHead device_;  // goes after the context, which borrows it
    Device device_use_ = Device::automatic;
    GrowingContext context_;
    CellTable cells_{context_.memory(), context_.model(), context_.n_ids_max()};  // for branches that share some
    std::vector<Token> tokens_;
    std::size_t n_cached_ = 0;      // tokens whose cache entries are right
    bool cache_is_longer_ = false;  // entries of dropped tokens follow them
    LastLogits logits_;
    Import import_;
    static constexpr Branch kNone = static_cast<Branch>(-1);
    Branch branch_ = 0;      // kNone once it is dropped
    Branch n_branches_ = 1;  // made so far
    std::map<Branch, Suspended> suspended_;
    std::vector<Snapshot> snapshots_;
    std::size_t n_given_up_ = 0;  // the last one given up was due so early
};

}  // namespace token_trie
