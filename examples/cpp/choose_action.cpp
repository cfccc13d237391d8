// A C++ program on llama.cpp that lets a model choose one of three actions.
//
//     choose_action MODEL.gguf "Request: Wake me at six.\nAction:"

#include "actions.h"

#include <llama.h>
#include <token_trie.h>

#include <cstdio>
#include <memory>

namespace {

template <auto Free>
struct Deleter {
    template <typename T>
    void operator()(T * pointer) const {
        Free(pointer);
    }
};
using Model = std::unique_ptr<llama_model, Deleter<llama_model_free>>;
using Context = std::unique_ptr<llama_context, Deleter<llama_free>>;
using Sampler = std::unique_ptr<llama_sampler, Deleter<llama_sampler_free>>;

}  // namespace

int main(int argc, char ** argv) {
    if (argc != 3) {
        return fail("usage: choose_action MODEL.gguf PROMPT");
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    ggml_backend_load_all();

    const Model model(llama_model_load_from_file(argv[1], llama_model_default_params()));
    if (!model) {
        return fail("the model could not be loaded");
    }
    llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = 512;
    const Context context(llama_init_from_model(model.get(), context_params));
    if (!context) {
        return fail("no context could be made");
    }
    const llama_vocab * vocab = llama_model_get_vocab(model.get());

    llama_sampler * trie = llama_sampler_init_token_trie(
        vocab, make_payload(vocab, {"SET_ALARM", "SEND_MESSAGE", "GET_WEATHER"}).c_str(), TOKEN_TRIE_GREEDY);
    if (trie == nullptr) {
        return fail(token_trie_last_error());
    }
    const Sampler chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    llama_sampler_chain_add(chain.get(), trie);
    llama_sampler_chain_add(chain.get(), llama_sampler_init_greedy());

    Tokens next = tokenize(vocab, argv[2], true);
    token_trie_sampler_state state = {};
    state.size = sizeof state;
    while (state.state == TOKEN_TRIE_CONSTRAINED) {
        if (llama_decode(context.get(), llama_batch_get_one(next.data(), static_cast<int>(next.size()))) != 0) {
            return fail("the prompt could not be evaluated");
        }
        next = {llama_sampler_sample(chain.get(), context.get(), -1)};
        if (token_trie_sampler_get_state(trie, &state) != TOKEN_TRIE_OK) {
            return fail(token_trie_last_error());
        }
    }
    std::printf("%s\n", state.leaf_name);
    return 0;
}
