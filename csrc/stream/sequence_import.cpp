#include "stream/common_prefix.h"
#include "stream/saved_state.h"
#include "stream/sequence.h"

#include <algorithm>
#include <optional>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

std::size_t n_held_by(llama_context * context, std::int32_t id) {
    const std::int64_t last = llama_memory_seq_pos_max(llama_get_memory(context), id);  // -1: none
    return static_cast<std::size_t>(last + 1);
}

// Throws Error (context) where a sequence of this kind of model, of which a context holds positions, does not hold n
// tokens, or not so that it can be cut off behind them.
void check_holds(llama_context * from, std::int32_t id, std::size_t n) {
    const llama_model * model = llama_get_model(from);
    llama_memory_t memory = llama_get_memory(from);
    const llama_pos first = llama_memory_seq_pos_min(memory, id);
    const std::size_t n_held = n_held_by(from, id);
    if (n_held < n) {
        throw Error(Status::context,
                    "from: its sequence holds " + std::to_string(n_held) + " tokens, not " + std::to_string(n));
    }
    if (!can_drop_newest(model)) {
        if (n_held > n) {
            throw Error(Status::context, "from: its sequence holds " + std::to_string(n_held) +
                                             " tokens, of which the model's state cannot be cut to " +
                                             std::to_string(n));
        }
        return;
    }
    // Of a window of sliding attention, llama.cpp copies what is before the end.
    const auto n_swa = static_cast<llama_pos>(llama_model_n_swa(model));
    const llama_pos first_copied = n_swa == 0 ? first : std::max(first, static_cast<llama_pos>(n_held) - n_swa);
    const llama_pos first_needed = n_swa == 0 ? 0 : std::max(0, static_cast<llama_pos>(n) - n_swa + 1);
    if (first_copied > first_needed) {
        throw Error(Status::context,
                    "from: its sequence does not hold what comes before " + std::to_string(n) + " tokens");
    }
}

}  // namespace

void Sequence::import_prefix(llama_context * from, std::int32_t id, const std::vector<Token> & tokens) {
    const std::size_t n = tokens.size();
    const std::size_t n_here = import_.held.empty() ? std::min(n_cached_, common_prefix(tokens_, tokens))
                                                    : common_prefix(import_.held, tokens);
    if (n <= n_here) {
        return;
    }
    const llama_model * model = context_.model();
    if (from == context() || llama_get_model(from) != model || llama_get_memory(from) == nullptr) {
        throw Error(Status::argument, "from: not another context on the stream's model, with a memory");
    }
    if (id < 0 || static_cast<std::uint32_t>(id) >= llama_n_seq_max(from)) {
        throw Error(Status::argument, "sequence: " + std::to_string(id) + " is none of from's");
    }
    check_holds(from, id, n);
    const std::size_t n_held = n_held_by(from, id);
    if (n_held > n_ctx_max()) {
        throw Error(Status::context, "from: its sequence's " + std::to_string(n_held) +
                                         " tokens do not fit the context of " + std::to_string(n_ctx_max()));
    }
    const std::size_t turn = turning_point(model);
    if (turn > 0 && (llama_n_ctx_seq(from) > turn) != (context_.n_ctx_max() > turn)) {
        throw Error(Status::argument, "from: the model turns tokens by other angles in a context of its size");
    }
    const SavedState state(from, id);
    std::vector<Token> held = tokens;  // before anything is changed, as there may be no memory
    context_.take();
    grow(n_held);
    llama_memory_t memory = context_.memory();
    // Contexts from which it has worked once are made as this one is.
    std::optional<SavedState> before;
    if (from != import_.like_this && llama_memory_seq_pos_max(memory, 0) >= 0) {
        before.emplace(context(), 0);
    }
    if (!state.restore(context(), 0) ||
        (n_held > n && !llama_memory_seq_rm(memory, 0, static_cast<llama_pos>(n), -1))) {
        if (!before || !before->restore(context(), 0)) {
            forget_cache();
        }
        throw Error(Status::context, "from: its memory is not made as the stream's is");
    }
    import_.like_this = from;
    forget_sharing();
    const bool had_logits = has_logits();
    import_.held = std::move(held);
    count_imported();
    if (!had_logits || n_cached_ != tokens_.size()) {
        logits_.forget();
    }
    import_.n_tokens += n;
}

}  // namespace token_trie
