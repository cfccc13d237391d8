#pragma once

#include "context/growing_context.h"

#include <vector>

namespace token_trie {

// The logits behind the last token that a context has cached of a sequence: in the context until that computes anything
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

    // Before the context's go.
    void keep(GrowingContext & context) {
        if (are_there_ && copy_.empty()) {
            const float * logits = get(context, {true, {}, {}});
            copy_.assign(logits, logits + context.n_vocab());
        }
    }
    // Whether they are the context's, as its last pass left them.
    bool are_of_last_pass() const noexcept { return are_there_ && copy_.empty(); }
    // Those of the tokens wanted, valid until the next call. Throws Error (context).
    const float * get(GrowingContext & context, const AllowedSet & wanted) {
        if (!copy_.empty()) {
            return copy_.data();
        }
        return context.wait_for([&] {
            float * row = row_of(context, -1);
            if (context.head().was_cut()) {
                context.multiply(wanted, row);
            }
            return row;
        });
    }
    // Of a pass's row. Throws Error (context).
    static float * row_of(const GrowingContext & context, std::int32_t i) {
        float * row = llama_get_logits_ith(context.get(), i);  // waits for the pass to end
        if (row == nullptr) {
            throw Error(Status::context, "the context gives no logits (was it made for embeddings?)");
        }
        return row;
    }

   private:
    bool are_there_ = false;
    std::vector<float> copy_;
};

}  // namespace token_trie
