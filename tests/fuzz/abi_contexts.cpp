#include "abi_contexts.h"

#include "fuzz.h"

#include <array>

namespace token_trie::fuzz {
namespace {

using test::TinyKind;

struct Make {
    TinyKind kind;
    std::uint32_t n_batch;
    std::uint32_t n_ubatch;
    std::uint32_t n_seq_max;
    bool is_unified;
    bool is_prepared;  // by token_trie_stream_context_params
    bool is_odd;       // gives embeddings, or looks ahead
};

// Those that a stream is best on come first.
constexpr std::array<Make, kContexts> kMakes = {{
    {TinyKind::attention, 64, 64, 1, true, true, false},
    {TinyKind::sliding_window, 64, 64, 1, true, true, false},
    {TinyKind::recurrent, 64, 64, 1, true, true, false},
    {TinyKind::quantized, 64, 64, 1, true, true, false},
    {TinyKind::capped, 64, 64, 1, true, true, false},
    {TinyKind::hybrid, 64, 64, 1, true, true, false},
    {TinyKind::other_end, 64, 64, 1, true, true, false},
    {TinyKind::attention, 16, 8, 1, true, false, false},
    {TinyKind::attention, 32, 8, 4, true, false, false},
    {TinyKind::attention, 32, 32, 4, false, false, false},
    {TinyKind::sliding_window, 32, 8, 3, true, false, false},
    {TinyKind::recurrent, 16, 8, 2, false, false, false},
    {TinyKind::attention, 32, 8, 2, true, false, true},
    {TinyKind::hybrid, 32, 16, 2, true, false, false},
}};

TinyContext make(const Make & how) {
    llama_context_params params = test::tiny_context_params(256);
    params.n_batch = how.n_batch;
    params.n_ubatch = how.n_ubatch;
    params.n_seq_max = how.n_seq_max;
    params.kv_unified = how.is_unified;
    params.swa_full = false;
    params.embeddings = how.is_odd;
    params.attention_type = how.is_odd ? LLAMA_ATTENTION_TYPE_NON_CAUSAL : LLAMA_ATTENTION_TYPE_UNSPECIFIED;
    if (how.is_prepared) {
        require(token_trie_stream_context_params(test::tiny_model(how.kind), &params) == TOKEN_TRIE_OK,
                "a model's context can be prepared");
    }
    llama_context * context = test::tiny_context_of(params, how.kind).release();
    require(context != nullptr, "a context can be made");
    return {context, test::tiny_adapter(how.kind, "output.weight").release(), llama_n_ctx_seq(context)};
}

}  // namespace

const TinyContext & tiny_context_at(std::uint32_t make_index) {
    // Not freed: models end first, as the process does.
    static auto & made = *new std::array<TinyContext, kContexts>{};
    TinyContext & out = made[make_index];
    if (out.context == nullptr) {
        out = make(kMakes[make_index]);
    }
    return out;
}

}  // namespace token_trie::fuzz
