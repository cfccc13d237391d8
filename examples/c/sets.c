/*
 * Sets: read from a payload, made of texts or tokens, opened from a file, filtered, looked into.
 *
 *     sets MODEL.gguf COLORS.trie     of the model, only the vocabulary is loaded; `token-trie build` writes the file
 */
#include "example.h"

static const char payload[] =
    "{\"descriptors\": [{\"path\": \"action\", \"leaves\": [{\"name\": \"READ\", \"tokens\": [7]},"
    "                                                       {\"name\": \"READ_FILE\", \"tokens\": [7, 8]}]},"
    "                   {\"path\": \"place\", \"leaves\": [{\"name\": \"HERE\", \"tokens\": [9, 10]}]}]}";

static void print_set(const char * title, const struct token_trie_set * set) {
    struct token_trie_set_info info = {.size = sizeof info};
    check(token_trie_set_get_info(set, &info));
    printf("%s: %d of %d members, %d nodes:", title, (int)info.n_left, (int)info.n_members, (int)info.n_nodes);
    for (size_t i = 0; i < info.n_members; ++i) {
        const char * name = NULL;
        size_t n_tokens = 0;
        if (token_trie_set_get_member(set, i, &name, NULL, 0, &n_tokens) == TOKEN_TRIE_OK) { /* not filtered out */
            printf(" \"%s\"/%d", name, (int)n_tokens);
        }
    }
    printf("\n");
}

int main(int argc, char ** argv) {
    if (argc != 3) {
        fail("usage: sets MODEL.gguf COLORS.trie");
    }
    printf("token-trie %s\n", token_trie_version());
    check(token_trie_check_llama());
    struct llama_model * model = load_model(argv[1], true);
    const struct llama_vocab * vocab = llama_model_get_vocab(model);

    /* A payload may hold several sets, each under a path. */
    struct token_trie_set * read = require(token_trie_set_read(vocab, 0, payload, strlen(payload)));
    const char * const paths[] = {"action", "place"};
    for (int i = 0; i < 2; ++i) {
        struct token_trie_set * selected = require(token_trie_set_select(read, paths[i]));
        print_set(paths[i], selected);
        token_trie_set_free(selected);
    }

    /* Texts are tokenized as they are: these follow a prompt that does not end with a space. */
    const char * const texts[] = {" red", " green", " blue"};
    struct token_trie_set * colors = require(token_trie_set_from_texts(vocab, texts, 3));
    const unsigned char keep[] = {1, 0, 1};
    struct token_trie_set * without_green = require(token_trie_set_filter(colors, keep, 3));
    print_set("filtered", without_green);

    /* Tokens of two members, one after the other. */
    const llama_token tokens[] = {5, 6, 5, 7, 8};
    const uint64_t offsets[] = {0, 2, 5};
    const char * const names[] = {"first", "second"};
    struct token_trie_set * of_tokens = require(token_trie_set_from_tokens(tokens, offsets, 2, names, NULL));
    print_set("tokens", of_tokens);

    struct token_trie_set * opened = require(token_trie_set_open(argv[2]));
    print_set("file", opened);

    /* In a chain of llama.cpp, with options: after a member, only the end may follow. The chain frees the sampler. */
    const struct token_trie_params params = {.size = sizeof params, .on_complete = TOKEN_TRIE_END};
    struct llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, require(llama_sampler_init_token_trie_set(vocab, colors, &params)));
    llama_sampler_free(chain);

    struct token_trie_cache_stats stats = {.size = sizeof stats};
    check(token_trie_cache_get_stats(&stats));
    printf("cache: %d of %d entries\n", (int)stats.entries, (int)stats.capacity);
    token_trie_cache_clear(); /* sets in use keep what they have */

    token_trie_set_free(opened);
    token_trie_set_free(of_tokens);
    token_trie_set_free(without_green);
    token_trie_set_free(colors);
    token_trie_set_free(read);
    llama_model_free(model);
    return 0;
}
