/*
 * A prompt that is evaluated once: by the program itself, imported into a stream, and shared by the stream's forks.
 *
 *     prefix MODEL.gguf
 */
#include "example.h"

enum { N_TOKENS = 512 };

static const char prompt[] =
    "A story begins with one sentence, and each of its endings is one sentence too.\n"
    "Beginning: Two friends walk into the forest.\n";

/* Replaces what follows the prompt, and prints one line of text. */
static void finish(struct token_trie_stream * stream, size_t n_prompt, const char * title) {
    const struct llama_vocab * vocab = token_trie_stream_get_vocab(stream);
    llama_token tokens[N_TOKENS];
    const size_t n = tokenize(vocab, title, false, tokens, N_TOKENS);
    check(token_trie_stream_splice(stream, n_prompt, tokens, n));
    const char * const stops[] = {"\n"};
    check(token_trie_stream_generate_until(stream, 24, stops, 1, NULL, NULL, NULL));

    size_t n_all = 0;
    check(token_trie_stream_get_tokens(stream, tokens, N_TOKENS, &n_all));
    for (size_t i = n_prompt; i < n_all; ++i) {
        print_token(vocab, tokens[i]);
    }
    printf("\n");
}

int main(int argc, char ** argv) {
    if (argc != 2) {
        fail("usage: prefix MODEL.gguf");
    }
    struct llama_model * model = load_model(argv[1], false);
    const struct llama_vocab * vocab = llama_model_get_vocab(model);
    struct llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = 1024;

    /* Your own context, with the prompt. */
    llama_token tokens[N_TOKENS];
    const size_t n_prompt = tokenize(vocab, prompt, true, tokens, N_TOKENS);
    struct llama_context * context = llama_init_from_model(model, context_params);
    if (context == NULL || llama_decode(context, llama_batch_get_one(tokens, (int32_t)n_prompt)) != 0) {
        fail("the prompt could not be evaluated");
    }

    /* A stream with contexts of its own takes over what is evaluated; the prefill then finds all of it. */
    const struct token_trie_stream_params params = {.size = sizeof params};
    struct token_trie_stream * stream = require(token_trie_stream_open_model(model, &context_params, &params));
    check(token_trie_stream_import_prefix(stream, context, 0, tokens, n_prompt));
    check(token_trie_stream_prefill(stream, tokens, n_prompt));
    struct token_trie_stream_state state = {.size = sizeof state};
    check(token_trie_stream_get_state(stream, &state));
    printf("%d of %d tokens imported\n", (int)state.n_imported, (int)n_prompt);

    /* A fork evaluates nothing of the prompt, and either of the two may be closed first. */
    struct token_trie_stream * fork = require(token_trie_stream_fork(stream));
    finish(stream, n_prompt, "Happy ending:");
    finish(fork, n_prompt, "Sad ending:");
    token_trie_stream_close(stream);
    token_trie_stream_close(fork);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
