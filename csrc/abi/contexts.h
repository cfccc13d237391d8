#pragma once

#include "abi/structs.h"
#include "context/contexts.h"

namespace token_trie {

// Makes contexts on a caller's model, with the adapters of a struct that has them.
template <typename Params>
ContextMaker make_contexts(llama_model * model, const llama_context_params * context_params, const Params & params) {
    require_not_null(model, "model");
    require_not_null(context_params, "context_params");
    require_array(static_cast<const void *>(params.adapters), params.n_adapters, "params.adapters");
    ContextMaker::Adapters adapters;
    for (std::size_t i = 0; i < params.n_adapters; ++i) {
        throw_if(params.adapters[i] == nullptr, Status::argument, "params.adapters[", i, "]: null");
        adapters.adapters.push_back(params.adapters[i]);
        adapters.scales.push_back(params.adapter_scales == nullptr ? 1 : params.adapter_scales[i]);
    }
    return {model, *context_params, std::move(adapters), static_cast<std::size_t>(params.max_state_bytes)};
}

}  // namespace token_trie
