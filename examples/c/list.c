/*
 * A list: several members of a set, none of them twice, with the probability of each.
 *
 *     list MODEL.gguf "Tags of a pasta recipe:"
 */
#include "example.h"

#include <math.h>

int main(int argc, char ** argv) {
    if (argc != 3) {
        fail("usage: list MODEL.gguf PROMPT");
    }
    llama_log_set(ignore_log, NULL);
    const struct token_trie_stream_params stream_params = {.size = sizeof stream_params, .n_ctx = 1024};
    struct token_trie_stream * stream = require(token_trie_stream_open_file(argv[1], &stream_params));
    const struct llama_vocab * vocab = token_trie_stream_get_vocab(stream);

    const char * const tags[] = {" food", " travel", " Italy", " family", " sports", " cooking"};
    struct token_trie_set * set = require(token_trie_set_from_texts(vocab, tags, 6, false));
    llama_token comma[4];
    llama_token line_break[4];
    const struct token_trie_params params = {
        .size = sizeof params,
        .on_complete = TOKEN_TRIE_RESTART,
        .separator = comma,
        .n_separator = tokenize(vocab, ",", false, comma, 4),
        .end_tokens = line_break,
        .n_end_tokens = tokenize(vocab, "\n", false, line_break, 4),
        .min_items = 2,
        .max_items = 3,
        .unique = 1,
    };
    llama_token tokens[512];
    check(token_trie_stream_prefill(stream, tokens, tokenize(vocab, argv[2], true, tokens, 512)));
    check(token_trie_stream_set_token_trie(stream, set, &params));
    check(token_trie_stream_generate(stream, 64, NULL, NULL));

    struct token_trie_stream_state state = {.size = sizeof state};
    check(token_trie_stream_get_state(stream, &state));
    for (int i = 0; i < state.n_items; ++i) {
        struct token_trie_item item = {.size = sizeof item};
        check(token_trie_stream_get_item(stream, (size_t)i, &item));
        printf("%s: %.0f %%, tokens %d to %d\n", item.leaf_name, 100 * exp(item.logprob), (int)item.begin,
               (int)item.end);
    }
    printf("%s\n", state.ending == TOKEN_TRIE_ENDING_MAX_ITEMS ? "max_items reached" : "the model ended the list");
    check(token_trie_stream_clear_token_trie(stream));
    token_trie_set_free(set);
    token_trie_stream_close(stream);
    return 0;
}
