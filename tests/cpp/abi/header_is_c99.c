/* token_trie.h alone, in C99: no other header before it, and a few calls with bad arguments that must come back. */
#include "token_trie.h"

#include <string.h>

int main(void) {
    struct token_trie_params params = {0};
    struct token_trie_sampler_state state = {0};
    struct token_trie_cache_stats stats = {0};
    llama_token token = 1;
    int failed = 0;

    failed |= llama_sampler_init_token_trie(NULL, NULL, TOKEN_TRIE_GREEDY) != NULL;
    failed |= strcmp(token_trie_last_error(), "trie_descriptor_json: null") != 0;
    failed |= llama_sampler_init_token_trie(NULL, "{}", 2) != NULL;
    failed |= token_trie_set_read(NULL, 0, "{}", 2) != NULL;
    failed |= llama_sampler_init_token_trie_set(NULL, NULL, &params) != NULL;
    params.size = sizeof params;
    params.end_tokens = &token;
    failed |= llama_sampler_init_token_trie_set(NULL, NULL, &params) != NULL;
    failed |= token_trie_sampler_get_state(NULL, &state) != TOKEN_TRIE_ERROR_ARGUMENT;
    failed |= token_trie_cache_get_stats(&stats) != TOKEN_TRIE_ERROR_ARGUMENT;
    token_trie_cache_clear();
    failed |= token_trie_check_llama() != TOKEN_TRIE_OK;
    failed |= token_trie_version()[0] == '\0';
    return failed;
}
