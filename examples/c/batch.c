/*
 * A batch: many prompts in one context. What they have in common is evaluated once.
 *
 *     batch MODEL.gguf
 */
#include "example.h"

enum { N_PROMPTS = 3, N_TOKENS = 256 };

static const char examples[] =
    "Review: I loved every minute.\nSentiment: positive\n"
    "Review: A waste of time.\nSentiment: negative\n";
static const char * const reviews[N_PROMPTS] = {"What a great film!", "Terrible acting, awful plot.",
                                                "My new favorite book."};

static size_t make_prompt(const struct llama_vocab * vocab,
                          const char * review,
                          const char * field,
                          llama_token * out) {
    char text[1024];
    snprintf(text, sizeof text, "%sReview: %s\n%s:", examples, review, field);
    return tokenize(vocab, text, true, out, N_TOKENS);
}

/* Takes the answers as they become ready. */
static void choose(struct token_trie_batch * batch, const struct llama_vocab * vocab) {
    const char * const texts[] = {" positive", " negative"};
    struct token_trie_set * labels = require(token_trie_set_from_texts(vocab, texts, 2));
    const struct token_trie_query query = {.size = sizeof query, .mode = TOKEN_TRIE_QUERY_BEST, .set = labels};
    int64_t tickets[N_PROMPTS];
    for (int i = 0; i < N_PROMPTS; ++i) {
        llama_token tokens[N_TOKENS];
        const size_t n = make_prompt(vocab, reviews[i], "Sentiment", tokens);
        check(token_trie_batch_submit(batch, tokens, n, &query, &tickets[i]));
    }
    struct token_trie_answer * answer = NULL;
    for (int taken = 0; taken < N_PROMPTS; ++taken) {
        check(token_trie_batch_next(batch, 0, -1, &answer, NULL));
        struct token_trie_answer_info info = {.size = sizeof info};
        check(token_trie_answer_get_info(answer, &info));
        for (int i = 0; i < N_PROMPTS; ++i) {
            if (info.ticket == tickets[i]) {
                printf("%s:%s\n", reviews[i], info.status == TOKEN_TRIE_OK ? texts[info.leaf] : info.message);
            }
        }
        token_trie_answer_free(answer);
    }
    token_trie_set_free(labels);
}

/* Prints a text while it is written, and cancels it at the end of its first line. */
static void write_line(struct token_trie_batch * batch, const struct llama_vocab * vocab) {
    const struct token_trie_query query = {.size = sizeof query, .mode = TOKEN_TRIE_QUERY_TEXT, .max_tokens = 64};
    llama_token tokens[N_TOKENS];
    int64_t ticket = 0;
    check(token_trie_batch_submit(batch, tokens, make_prompt(vocab, reviews[0], "Reply", tokens), &query, &ticket));
    printf("Reply:");
    struct token_trie_answer * answer = NULL;
    bool is_done = false;
    size_t n_printed = 0;
    while (answer == NULL) {
        size_t n = 0;
        check(token_trie_batch_get_tokens(batch, ticket, n_printed, tokens, N_TOKENS, &n));
        for (size_t i = 0; i < n && !is_done; ++i) {
            is_done = print_token(vocab, tokens[i]);
        }
        n_printed += n;
        if (is_done) {
            token_trie_batch_cancel(batch, ticket);
        }
        check(token_trie_batch_next(batch, ticket, 1, &answer, NULL)); /* this thread makes the passes */
    }
    struct token_trie_answer_info info = {.size = sizeof info};
    check(token_trie_answer_get_info(answer, &info));
    for (; n_printed < info.n_tokens && !is_done; ++n_printed) { /* the tokens that came with the answer */
        is_done = print_token(vocab, info.tokens[n_printed]);
    }
    printf("%s[%s]\n", is_done ? "" : "\n",
           info.status == TOKEN_TRIE_ERROR_CANCELLED ? "cancelled" : "ended by itself");
    token_trie_answer_free(answer);
}

int main(int argc, char ** argv) {
    if (argc != 2) {
        fail("usage: batch MODEL.gguf");
    }
    struct llama_model * model = load_model(argv[1], false);
    struct llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = 1024; /* for all prompts in progress together */
    const struct token_trie_batch_params params = {.size = sizeof params, .n_parallel = 8};
    struct token_trie_batch * batch = require(token_trie_batch_open(model, &context_params, &params));

    choose(batch, llama_model_get_vocab(model));
    write_line(batch, llama_model_get_vocab(model));

    token_trie_batch_close(batch);
    llama_model_free(model);
    return 0;
}
