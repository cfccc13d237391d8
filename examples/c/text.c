/*
 * Free text, drawn at a temperature, up to a stop string; under a grammar if there is one. Ctrl-C or a time limit ends
 * it.
 *
 *     text MODEL.gguf "The capital of France is" 'root ::= " " [A-Z] [a-z]+'
 */
#include "example.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

/* Waits for a signal on a thread of its own, because a handler of signals may not call a library. */
static void * cancel_on_signal(void * stream) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGALRM);
    int signal = 0;
    while (sigwait(&signals, &signal) == 0) {
        token_trie_stream_cancel(stream); /* does nothing between two calls, or after the stream was closed */
    }
    return NULL;
}

static bool print(const struct token_trie_token * token, void * user) {
    (void)user;
    fwrite(token->text, 1, token->text_len, stdout);
    fflush(stdout);
    return true;
}

int main(int argc, char ** argv) {
    if (argc != 3 && argc != 4) {
        fail("usage: text MODEL.gguf PROMPT [GBNF]");
    }
    /* All threads inherit the mask, so that only cancel_on_signal gets the signals. */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);

    llama_log_set(ignore_log, NULL);
    const struct token_trie_stream_params params = {.size = sizeof params, .n_ctx = 1024};
    struct token_trie_stream * stream = require(token_trie_stream_open_file(argv[1], &params));
    pthread_t waiting;
    if (pthread_create(&waiting, NULL, cancel_on_signal, stream) != 0) {
        fail("no thread could be made");
    }
    alarm(60);

    llama_token tokens[512];
    const struct llama_vocab * vocab = token_trie_stream_get_vocab(stream);
    check(token_trie_stream_prefill(stream, tokens, tokenize(vocab, argv[2], true, tokens, 512)));
    printf("%s", argv[2]);

    check(token_trie_stream_set_grammar(stream, argc == 4 ? argv[3] : NULL, NULL));
    const struct token_trie_sampling sampling = {.size = sizeof sampling,
                                                 .seed = 7,
                                                 .temperature = 0.8F,
                                                 .top_p = 0.9F,
                                                 .penalty_last_n = 64,
                                                 .penalty_repeat = 1.1F};
    check(token_trie_stream_set_sampling(stream, &sampling));
    const char * const stops[] = {"\n\n", "?"};
    int32_t found = -1;
    check(token_trie_stream_generate_until(stream, 64, stops, 2, print, NULL, &found));

    struct token_trie_stream_state state = {.size = sizeof state};
    check(token_trie_stream_get_state(stream, &state));
    printf("\n[%s]\n", found >= 0                                ? "a stop string was found"
                       : state.stop == TOKEN_TRIE_STOP_CANCELLED ? "cancelled"
                       : state.stop == TOKEN_TRIE_STOP_END       ? "the model ended the text"
                                                                 : "max_tokens reached");
    token_trie_stream_close(stream);
    return 0;
}
