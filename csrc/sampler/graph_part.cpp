#include "sampler/graph_part.h"

#include "llama/runs_in_graph.h"

#include <algorithm>
#include <limits>
#include <new>

namespace token_trie {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// What is allowed stays above -inf, whatever the model or the samplers before made of it.
constexpr float kLargest = 1e30F;
// Whole numbers up to this are floats.
constexpr std::int32_t kMaxVocab = 1 << 24;

// As many tokens as any set that the cursor comes to can hold.
std::size_t widest(const Cursor & cursor) {
    const Trie & trie = cursor.trie();
    std::size_t children = 0;
    for (NodeId node = 0; node < trie.n_nodes(); ++node) {
        children = std::max<std::size_t>(children, trie.children(node).size);
    }
    const FollowSet & follow = cursor.follow();
    const std::size_t behind = follow.end_tokens().size + follow.separator().size() + trie.children(kRoot).size;
    return std::max<std::size_t>(children + behind, 1);
}

}  // namespace

bool GraphPart::init(const Cursor & cursor,
                     Mode mode,
                     ggml_backend_buffer_type_t buffers,
                     std::uint32_t n_outputs) noexcept {
    if (was_initialized_ || n_outputs != 1 || n_vocab_ <= 0 || n_vocab_ > kMaxVocab ||
        !cursor.follow().marker().empty()) {
        return false;
    }
    was_initialized_ = true;
    mode_ = mode;
    width_ = widest(cursor);
    try {
        staging_.resize(width_ + 3);
    } catch (const std::bad_alloc &) {
        return false;
    }
    const bool is_part = is_supported(buffers);
    reset();
    return is_part;
}

// Tried with all of them, which takes a sampler before it that has left some.
bool GraphPart::is_supported(ggml_backend_buffer_type_t buffers) {
    return has_operations(buffers, [&](ggml_context * context) {
        ggml_tensor * logits = ggml_new_tensor_1d(context, GGML_TYPE_F32, n_vocab_);
        ggml_tensor * candidates = ggml_new_tensor_1d(context, GGML_TYPE_I32, n_vocab_);
        ggml_tensor * probs = nullptr;
        ggml_tensor * sampled = nullptr;
        apply(context, {logits, probs, sampled, candidates});
        apply_end(context, {logits, probs, sampled, candidates});
    });
}

void GraphPart::apply(ggml_context * context, const Tensors & tensors) {
    const auto width = static_cast<std::int64_t>(width_);
    ggml_tensor * logits = as_row(context, tensors.logits);
    if (tensors.candidates != nullptr) {
        // Samplers before have left some: these go back to their places.
        ggml_tensor * none =
            ggml_scale_bias(context, ggml_arange(context, 0, static_cast<float>(n_vocab_), 1), 0, kMinusInfinity);
        logits = as_row(context, ggml_set_rows(context, as_rows(context, none), as_rows(context, logits),
                                               as_row(context, tensors.candidates)));
    }
    n_logits_ = logits->ne[0];
    context_ = context;
    numbers_ = ggml_new_tensor_1d(context, GGML_TYPE_F32, width + 3);
    ggml_set_name(numbers_, "token_trie");
    ggml_set_input(numbers_);
    ggml_tensor * numbers = ggml_cont(context, numbers_);  // one copy to the device, of which the others are parts
    const auto part = [&](std::int64_t from, std::int64_t n) {
        return ggml_view_1d(context, numbers, n, static_cast<std::size_t>(from) * sizeof(float));
    };
    ggml_tensor * ids_row = as_rows(context, part(0, width));
    ggml_tensor * ids = ggml_cast(context, part(0, width), GGML_TYPE_I32);
    ggml_tensor * free = part(width, 1);
    ggml_tensor * own = part(width + 1, 1);
    ggml_tensor * other = part(width + 2, 1);

    const auto keep = [&](ggml_tensor * from, ggml_tensor * rows) {
        ggml_tensor * kept = ggml_get_rows(context, as_rows(context, from), rows);
        kept = ggml_clamp(context, kept, -kLargest, kLargest);
        ggml_tensor * others = as_rows(context, ggml_add(context, from, free));
        return as_row(context, ggml_set_rows(context, others, kept, rows));
    };
    logits = keep(logits, ids);
    ggml_tensor * all = ggml_arange(context, 0, static_cast<float>(n_logits_), 1);
    all = ggml_add(context, ggml_mul(context, all, own), other);
    table_ = ggml_set_rows(context, as_rows(context, all), ids_row, ids);
    if (mode_ == Mode::greedy) {
        tensors.sampled = ggml_argmax(context, logits);
        logits = keep(logits, tensors.sampled);
    }
    tensors.logits = logits;
    tensors.candidates = nullptr;  // each at its own index
}

void GraphPart::apply_end(ggml_context * context, const Tensors & tensors) const {
    if (context != context_) {
        return;
    }
    ggml_tensor * selected = tensors.sampled;
    if (selected == nullptr) {
        selected = ggml_argmax(context, as_row(context, tensors.logits));
        if (tensors.candidates != nullptr) {
            selected = ggml_get_rows(context, as_rows(context, tensors.candidates), selected);
        }
    }
    ggml_tensor * token = ggml_get_rows(context, table_, as_row(context, selected));
    tensors.sampled = ggml_cast(context, token, GGML_TYPE_I32);
    tensors.logits = tensors.probs = tensors.candidates = nullptr;
}

void GraphPart::set_input(const Cursor & cursor) noexcept {
    if (context_ == nullptr || numbers_->buffer == nullptr) {
        return;
    }
    const AllowedSet allowed = cursor.allowed();
    float * ids = staging_.data();
    std::size_t n = 0;
    if (!allowed.everything) {
        allowed.for_each([&](Token token) {
            if (token < n_logits_) {
                ids[n++] = static_cast<float>(token);
            }
            return n < width_;
        });
    }
    const float first = n > 0 ? ids[0] : 0;
    std::fill(ids + n, ids + width_, first);  // again, which changes nothing
    ids[width_] = allowed.everything ? 0 : kMinusInfinity;
    ids[width_ + 1] = allowed.everything ? 1 : 0;
    ids[width_ + 2] = allowed.everything ? 0 : first;
    ggml_backend_tensor_set(numbers_, staging_.data(), 0, staging_.size() * sizeof(float));
}

}  // namespace token_trie
