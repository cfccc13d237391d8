#pragma once

#include "context/batch_rows.h"
#include "cursor/cursor.h"
#include "trie/non_copyable.h"

#include <llama.h>

#include <memory>
#include <vector>

namespace token_trie {

// The end of a model's graph, where its logits stay on the device: for a few tokens it gives their logits alone, or of
// any set the best token and its share, by gathering them inside the graph.
//
//     layers -> logits [V] -> those of ids [width] + bias -> these                        4 * width bytes
//                                                         '-> best, its share among them  8 bytes
//
// It is a sampler of llama.cpp's, set for the last sequence of a context. What sequence 0 evaluates is whole, as if
// there were none; a pass through here is one of the last, which for that long shares what sequence 0 has cached, and
// hands over what comes to it. To set a sampler makes llama.cpp plan its graphs anew, so that it stays set.
class DeviceHead : NonCopyable {
   public:
    enum class Want { logits, best };

    struct Best {
        Token token;
        float logprob;  // natural logarithm of its share among the tokens wanted
    };

    // Whether a pass of this context can end here: its sequences share one cache of attention alone, the last of them
    // is none of the first n_taken, and its backend has the operations.
    bool prepare(llama_context * context, std::size_t n_taken, const AllowedSet & wanted, Want want);
    // Evaluates tokens of sequence 0 after the first n_cached; the tokens wanted are those after the last of them.
    // Returns what llama_decode returns, and where that is not 0, sequence 0 is as it was. After prepare.
    std::int32_t decode(const Token * tokens, std::size_t n, std::size_t n_cached, const AllowedSet & wanted);

    // The last pass's logits, each at its token's index, valid until the next call; the others mean nothing. Throws
    // Error (context) where there are none.
    const float * fetch(const AllowedSet & wanted);
    Best best() const;
    // Passes that ended so.
    std::uint64_t n_passes() const noexcept { return n_passes_; }

    // Before the context evaluates something that its last sequence is part of, or is freed.
    void detach() noexcept;

   private:
    struct Part;
    struct [[gnu::visibility("default")]] Free {
        void operator()(llama_sampler * sampler) const noexcept { llama_sampler_free(sampler); }
    };

    void attach(std::size_t width, Want want);

    llama_context * context_ = nullptr;
    std::int32_t here_ = 0;          // the last sequence
    std::vector<std::int32_t> ids_;  // it alone
    BatchRows rows_;
    std::unique_ptr<llama_sampler, Free> chain_;
    Part * part_ = nullptr;  // in the chain
    bool is_refused_ = false;
    std::vector<float> logits_;  // as fetched
    std::uint64_t n_passes_ = 0;
};

}  // namespace token_trie
