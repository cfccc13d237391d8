/* Shared by the examples: a failure ends the program with its message, a text becomes tokens, a file becomes a model.
 */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <llama.h>
#include <token_trie.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void fail(const char * message) {
    fprintf(stderr, "%s\n", message);
    exit(1);
}

/* For functions of token_trie.h that return a status. */
static inline void check(int32_t status) {
    if (status != TOKEN_TRIE_OK) {
        fprintf(stderr, "error %d: ", status);
        fail(token_trie_last_error());
    }
}

/* For functions of token_trie.h that return a pointer. */
static inline void * require(void * made) {
    if (made == NULL) {
        check(token_trie_last_status());
    }
    return made;
}

static inline size_t tokenize(
    const struct llama_vocab * vocab, const char * text, bool add_special, llama_token * tokens, size_t capacity) {
    const int n = llama_tokenize(vocab, text, (int32_t)strlen(text), tokens, (int32_t)capacity, add_special, false);
    if (n < 0) {
        fail("a text has more tokens than the example has memory for");
    }
    return (size_t)n;
}

/* Prints the token's text, and returns true if it ends a line. */
static inline bool print_token(const struct llama_vocab * vocab, llama_token token) {
    char piece[256];
    const int n = llama_token_to_piece(vocab, token, piece, (int32_t)sizeof piece, 0, false);
    const size_t length = n < 0 ? 0 : (size_t)n;
    fwrite(piece, 1, length, stdout);
    return memchr(piece, '\n', length) != NULL;
}

static inline void ignore_log(enum ggml_log_level level, const char * text, void * user) {
    (void)level, (void)text, (void)user;
}

static inline struct llama_model * load_model(const char * file, bool vocab_only) {
    llama_log_set(ignore_log, NULL);
    ggml_backend_load_all();
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = vocab_only;
    struct llama_model * model = llama_model_load_from_file(file, params);
    if (model == NULL) {
        fail("the model could not be loaded");
    }
    return model;
}

#endif
