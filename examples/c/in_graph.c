/*
 * A sampler inside the compute graph: only the chosen token leaves the device. A CPU can run it too. Needs
 * llama-cpp-python 0.3.36 or newer.
 *
 *     in_graph MODEL.gguf "The capital of India is"
 */
#include "example.h"

int main(int argc, char ** argv) {
    if (argc != 3) {
        fail("usage: in_graph MODEL.gguf PROMPT");
    }
    struct llama_model * model = load_model(argv[1], false);
    const struct llama_vocab * vocab = llama_model_get_vocab(model);
    struct llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = 512;
    context_params.n_outputs_max_per_seq = 1; /* what samplers in the graph need */
    struct llama_context * context = llama_init_from_model(model, context_params);
    if (context == NULL) {
        fail("no context could be made");
    }

    const char * const cities[] = {" Paris", " Lyon", " New York", " New Delhi"};
    struct token_trie_set * set = require(token_trie_set_from_texts(vocab, cities, 4, false));
    const struct token_trie_params params = {
        .size = sizeof params, .mode = TOKEN_TRIE_GREEDY, .on_complete = TOKEN_TRIE_END};
    struct llama_sampler * trie = require(llama_sampler_init_token_trie_set(vocab, set, &params));
    struct llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, trie);
    llama_sampler_chain_add(chain, require(llama_sampler_init_token_trie_tail(trie, vocab)));
    llama_set_sampler(context, 0, chain); /* before the prompt is decoded */

    llama_token tokens[256];
    int n = (int)tokenize(vocab, argv[2], true, tokens, 256);
    struct token_trie_sampler_state state = {.size = sizeof state};
    while (state.state == TOKEN_TRIE_CONSTRAINED) {
        if (llama_decode(context, llama_batch_get_one(tokens, n)) != 0) {
            fail("the prompt could not be evaluated");
        }
        tokens[0] = llama_sampler_sample(chain, context, -1);
        n = 1;
        check(token_trie_sampler_get_state(trie, &state));
    }
    printf("%s\n%s\n", state.leaf_name, state.n_in_graph > 0 ? "chosen in the graph" : "chosen on the host");

    token_trie_set_free(set);
    llama_free(context); /* before the samplers that are set on it */
    llama_sampler_free(chain);
    llama_model_free(model);
    return 0;
}
