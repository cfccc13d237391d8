/*
 * A matcher: for an engine that has its own logits. Here the tokens are bytes, and the engine likes those of a word.
 *
 *     matcher WORD
 */
#include "example.h"

enum { N_VOCAB = 256, N_WORDS = N_VOCAB / 32, END_OF_TEXT = 0 };

/* In the place of a forward pass. */
static void evaluate(const char * word, const char * text, float * logits) {
    for (int token = 0; token < N_VOCAB; ++token) {
        logits[token] = 0;
    }
    const size_t n = strlen(text);
    if (n < strlen(word)) {
        logits[(unsigned char)word[n]] = 1;
    }
}

static llama_token best_allowed(const float * logits, const int32_t * mask) {
    llama_token best = -1;
    for (llama_token token = 0; token < N_VOCAB; ++token) {
        const bool is_allowed = ((uint32_t)mask[token / 32] >> (token % 32) & 1) != 0;
        if (is_allowed && (best == -1 || logits[token] > logits[best])) {
            best = token;
        }
    }
    return best;
}

/* Writes a member of the set, and returns the number of its tokens, the end of text included. */
static size_t generate(struct token_trie_matcher * matcher, const char * word, char * text) {
    size_t n = 0;
    bool is_terminated = false;
    while (!is_terminated) {
        llama_token tokens[64];
        size_t n_tokens = 0;
        check(token_trie_matcher_get_forced(matcher, tokens, 64, &n_tokens)); /* these cost no pass */
        if (n_tokens == 0) {
            float logits[N_VOCAB];
            int32_t mask[N_WORDS];
            const struct token_trie_matcher * one = matcher;
            evaluate(word, text, logits);
            check(token_trie_matcher_fill_masks(&one, 1, NULL, mask, 1, N_WORDS, NULL));
            tokens[0] = best_allowed(logits, mask);
            n_tokens = 1;
        }
        size_t n_accepted = 0;
        check(token_trie_matcher_accept(matcher, tokens, n_tokens, &n_accepted));
        for (size_t i = 0; i < n_accepted; ++i) {
            text[n++] = (char)tokens[i];
        }
        text[n] = '\0';
        check(token_trie_matcher_is_terminated(matcher, &is_terminated));
    }
    return n;
}

int main(int argc, char ** argv) {
    if (argc != 2) {
        fail("usage: matcher WORD");
    }
    llama_token tokens[] = {'r', 'e', 'a', 'd', 'r', 'e', 'p', 'l', 'y', 'w', 'r', 'i', 't', 'e'};
    const uint64_t offsets[] = {0, 4, 9, 14};
    struct token_trie_set * set = require(token_trie_set_from_tokens(tokens, offsets, 3, NULL, NULL));
    const llama_token end = END_OF_TEXT;
    const struct token_trie_params params = {
        .size = sizeof params, .on_complete = TOKEN_TRIE_END, .end_tokens = &end, .n_end_tokens = 1};
    struct token_trie_matcher * matcher = require(token_trie_matcher_init(NULL, N_VOCAB, set, &params));
    token_trie_set_free(set); /* the matcher keeps what it needs */

    char text[64] = "";
    const size_t n = generate(matcher, argv[1], text);
    printf("%s\n", text);

    /* Back to the first letter: what else could have followed it? */
    check(token_trie_matcher_rollback(matcher, n - 1));
    size_t n_allowed = 0;
    check(token_trie_matcher_get_allowed(matcher, tokens, 14, &n_allowed));
    for (size_t i = 0; i < n_allowed; ++i) {
        printf("%c%c\n", text[0], (char)tokens[i]);
    }

    /* Two sequences in one batch: one goes on from here, the other begins again. */
    struct token_trie_matcher * other = require(token_trie_matcher_clone(matcher));
    check(token_trie_matcher_rollback(other, 1));
    const struct token_trie_matcher * const both[] = {matcher, other};
    int32_t masks[2 * N_WORDS];
    bool is_needed[2];
    check(token_trie_matcher_fill_masks(both, 2, NULL, masks, 2, N_WORDS, is_needed));
    for (int row = 0; row < 2; ++row) {
        printf("row %d:", row);
        for (llama_token token = 0; token < N_VOCAB && is_needed[row]; ++token) {
            if (((uint32_t)masks[row * N_WORDS + token / 32] >> (token % 32) & 1) != 0) {
                printf(" %c", (char)token);
            }
        }
        printf("\n");
    }
    token_trie_matcher_free(other);
    token_trie_matcher_free(matcher);
    return 0;
}
