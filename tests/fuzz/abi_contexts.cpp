#include "abi_contexts.h"

#include <array>
#include <map>

namespace token_trie::fuzz {
namespace {

using test::TinyKind;

constexpr std::array<TinyMake, kContexts> kMakes = {{
    {TinyKind::attention, 64, 64, false, false},
    {TinyKind::sliding_window, 64, 64, false, false},
    {TinyKind::recurrent, 64, 64, false, false},
    {TinyKind::quantized, 64, 64, false, false},
    {TinyKind::capped, 64, 64, false, false},
    {TinyKind::hybrid, 64, 64, false, false},
    {TinyKind::other_end, 64, 64, false, false},
    {TinyKind::attention, 1, 1, false, false},
    {TinyKind::attention, 4, 2, true, false},
    {TinyKind::sliding_window, 3, 3, true, false},
    {TinyKind::attention, 32, 8, false, true},
    {TinyKind::sliding_window, 32, 8, false, true},
}};

}  // namespace

const TinyMake & tiny_make_at(std::uint32_t index) { return kMakes[index]; }

token_trie_stream * open_stream(const TinyMake & make, token_trie_stream_params & params) {
    // Not freed: models end first, as the process does.
    static auto & adapters = *new std::map<TinyKind, llama_adapter_lora *>;
    llama_adapter_lora * adapter = nullptr;
    if (make.is_adapted) {
        llama_adapter_lora *& made = adapters[make.kind];
        adapter = made = made != nullptr ? made : test::tiny_adapter(make.kind, "output.weight").release();
        params.adapters = &adapter;
        params.n_adapters = 1;
    }
    llama_context_params context_params = test::tiny_context_params(kCapacity);
    context_params.n_batch = make.n_batch;
    context_params.n_ubatch = make.n_ubatch;
    context_params.embeddings = make.is_odd;
    context_params.attention_type = make.is_odd ? LLAMA_ATTENTION_TYPE_NON_CAUSAL : LLAMA_ATTENTION_TYPE_UNSPECIFIED;
    return token_trie_stream_open_model(test::tiny_model(make.kind), &context_params, &params);
}

}  // namespace token_trie::fuzz
