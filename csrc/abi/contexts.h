#pragma once

#include "abi/structs.h"
#include "context/contexts.h"

namespace token_trie {

// Of a struct that has them.
template <typename Params>
std::vector<ContextMaker::Adapter> read_adapters(const Params & params) {
    if (params.n_adapters > 0 && params.adapters == nullptr) {
        throw Error(Status::argument, "params.adapters: null");
    }
    std::vector<ContextMaker::Adapter> adapters;
    for (std::size_t i = 0; i < params.n_adapters; ++i) {
        if (params.adapters[i] == nullptr) {
            throw Error(Status::argument, "params.adapters[" + std::to_string(i) + "]: null");
        }
        adapters.push_back({params.adapters[i], params.adapter_scales == nullptr ? 1 : params.adapter_scales[i]});
    }
    return adapters;
}

// Of contexts on a caller's model, with the adapters of a struct that has them.
template <typename Params>
ContextMaker make_contexts(llama_model * model, const llama_context_params * context_params, const Params & params) {
    require_not_null(model, "model");
    require_not_null(context_params, "context_params");
    return {model, *context_params, read_adapters(params)};
}

}  // namespace token_trie
