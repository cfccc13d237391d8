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
    struct token_trie_set * set = require(token_trie_set_from_texts(vocab, tags, 6));
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
    const struct token_trie_query query = {
        .size = sizeof query, .mode = TOKEN_TRIE_QUERY_GREEDY, .set = set, .set_params = &params, .max_tokens = 64};
    struct token_trie_answer * answer = NULL;
    check(token_trie_stream_answer(stream, NULL, 0, &query, &answer));

    struct token_trie_answer_info info = {.size = sizeof info};
    check(token_trie_answer_get_info(answer, &info));
    for (size_t i = 0; i < info.n_leaves; ++i) {
        printf("%s: %.0f %%, tokens %d to %d\n", tags[info.leaves[i]], 100 * exp(info.logprobs[i]),
               (int)info.ranges[2 * i], (int)info.ranges[2 * i + 1]);
    }
    printf("%s\n", info.ending == TOKEN_TRIE_ENDING_MAX_ITEMS ? "max_items reached" : "the model ended the list");
    token_trie_answer_free(answer);
    token_trie_set_free(set);
    token_trie_stream_close(stream);
    return 0;
}
