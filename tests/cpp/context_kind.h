#pragma once

#include "tiny_model.h"

#include <cmath>
#include <ostream>

// Every kind of memory that a tiny model's context may have.
namespace token_trie::test {

struct ContextKind {
    TinyKind model;
    ggml_type cache;
    bool flash;

    llama_context_params params(std::uint32_t n_ctx) const {
        llama_context_params params = tiny_context_params(n_ctx);
        params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        params.type_k = params.type_v = cache;
        return params;
    }
    bool is_attention_alone() const { return model != TinyKind::recurrent && model != TinyKind::hybrid; }
    // llama.cpp copies a window without what is before it, to other cells, in whose order some kernels add up.
    bool has_window() const { return tiny_window(model) > 0; }
};

// Bit for bit where the cells stay where they were. Those of a hybrid are shared and moved with its snapshots.
template <typename Number>
void expect_same(const ContextKind & kind, const std::vector<Number> & a, const std::vector<Number> & b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (kind.has_window() || kind.model == TinyKind::hybrid) {
            ASSERT_NEAR(a[i], b[i], 2e-3) << i;
        } else {
            ASSERT_EQ(a[i], b[i]) << i;
        }
    }
}

inline std::string name_of(const ContextKind & kind) {
    const char * model = kind.model == TinyKind::attention        ? "Attention"
                         : kind.model == TinyKind::sliding_window ? "SlidingWindow"
                         : kind.model == TinyKind::window_of_16   ? "WindowOf16"
                         : kind.model == TinyKind::recurrent      ? "Recurrent"
                         : kind.model == TinyKind::hybrid         ? "Hybrid"
                         : kind.model == TinyKind::quantized      ? "Quantized"
                                                                  : "Capped";
    return model + (std::string("_") + ggml_type_name(kind.cache)) + (kind.flash ? "_flash" : "");
}
inline std::ostream & operator<<(std::ostream & out, const ContextKind & kind) { return out << name_of(kind); }

// llama.cpp wants flash attention and a head of 32 for a quantized cache.
inline std::vector<ContextKind> context_kinds() {
    std::vector<ContextKind> out;
    for (const TinyKind model : {TinyKind::attention, TinyKind::sliding_window, TinyKind::window_of_16,
                                 TinyKind::recurrent, TinyKind::hybrid, TinyKind::quantized, TinyKind::capped}) {
        for (const bool flash : {false, true}) {
            out.push_back({model, GGML_TYPE_F32, flash});
            out.push_back({model, GGML_TYPE_F16, flash});
        }
        if (model == TinyKind::quantized || model == TinyKind::hybrid) {
            out.push_back({model, GGML_TYPE_Q8_0, true});
        }
    }
    return out;
}

}  // namespace token_trie::test
