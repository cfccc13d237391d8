/*
 * Scores and a search: the most probable members of a set, and the probability of each.
 *
 *     ranking MODEL.gguf "The capital of India is"
 */
#include "example.h"

#include <math.h>

enum { N_CITIES = 5 };

int main(int argc, char ** argv) {
    if (argc != 3) {
        fail("usage: ranking MODEL.gguf PROMPT");
    }
    struct llama_model * model = load_model(argv[1], false);
    const struct llama_vocab * vocab = llama_model_get_vocab(model);
    struct llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = 1024;
    const struct token_trie_stream_params params = {.size = sizeof params};
    struct token_trie_stream * stream = require(token_trie_stream_open_model(model, &context_params, &params));

    llama_token tokens[512];
    check(token_trie_stream_prefill(stream, tokens, tokenize(vocab, argv[2], true, tokens, 512)));

    const char * const cities[N_CITIES] = {" Paris", " Lyon", " Lisbon", " New York", " New Delhi"};
    struct token_trie_set * set = require(token_trie_set_from_texts(vocab, cities, N_CITIES));
    struct token_trie_query query = {.size = sizeof query, .mode = TOKEN_TRIE_QUERY_BEST, .set = set, .n_best = 2};
    struct token_trie_answer * answer = NULL;
    struct token_trie_answer_info info = {.size = sizeof info};

    check(token_trie_stream_answer(stream, NULL, 0, &query, &answer));
    check(token_trie_answer_get_info(answer, &info));
    for (size_t i = 0; i < info.n_leaves; ++i) {
        printf("%d.%s\n", (int)i + 1, cities[info.leaves[i]]);
    }
    printf("%s\n", info.gap == 0 ? "proved: no other member is more probable" : "not proved");
    token_trie_answer_free(answer);

    /* LONGEST: the members are mutually exclusive, so their probabilities can be added. */
    query.mode = TOKEN_TRIE_QUERY_SCORES;
    query.n_best = 0;
    query.leaf_end = TOKEN_TRIE_LEAF_LONGEST;
    check(token_trie_stream_answer(stream, NULL, 0, &query, &answer));
    check(token_trie_answer_get_info(answer, &info));
    double mass = 0;
    for (size_t i = 0; i < info.n_logprobs; ++i) {
        mass += exp(info.logprobs[i]);
    }
    for (size_t i = 0; i < info.n_logprobs; ++i) {
        printf("%5.1f %%%s\n", 100 * exp(info.logprobs[i]) / mass, cities[i]);
    }
    token_trie_answer_free(answer);

    token_trie_set_free(set);
    token_trie_stream_close(stream); /* before its model */
    llama_model_free(model);
    return 0;
}
