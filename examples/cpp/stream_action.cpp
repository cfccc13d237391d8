// A stream on a model file: the model chooses one of five actions, then goes on in free text.
//
//     stream_action MODEL.gguf "Wake me up at six."

#include "actions.h"

#include <llama.h>
#include <token_trie.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

namespace {

struct CloseStream {
    void operator()(token_trie_stream * stream) const { token_trie_stream_close(stream); }
};
using Stream = std::unique_ptr<token_trie_stream, CloseStream>;

struct FreeSet {
    void operator()(token_trie_set * set) const { token_trie_set_free(set); }
};
using Set = std::unique_ptr<token_trie_set, FreeSet>;

std::string make_prompt(const std::string & request) {
    return "Request: Will it rain tomorrow?\nAction: weather_report\nReply: I will look up the forecast.\n"
           "Request: Text Sam that I am late.\nAction: message_send\nReply: I will text Sam.\n"
           "Request: Wake me at noon.\nAction: alarm_set\nReply: I will wake you at noon.\n"
           "Request: " +
           request + "\nAction:";
}

bool print(const token_trie_token * token, void *) {
    std::fwrite(token->text, 1, token->text_len, stdout);
    std::fflush(stdout);
    return true;
}

bool print_line(const token_trie_token * token, void * user) {
    const bool ends = std::string(token->text, token->text_len).find('\n') != std::string::npos;
    return !ends && print(token, user);
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc != 3) {
        return fail("usage: stream_action MODEL.gguf REQUEST");
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);

    token_trie_stream_params params = {};
    params.size = sizeof params;
    params.n_ctx = 1024;
    const Stream stream(token_trie_stream_open_file(argv[1], &params));
    if (!stream) {
        return fail(token_trie_last_error());
    }
    const llama_vocab * vocab = token_trie_stream_get_vocab(stream.get());
    Tokens sequence = tokenize(vocab, make_prompt(argv[2]), true);
    const std::string payload =
        make_payload(vocab, {"weather_report", "message_send", "message_read", "alarm_set", "alarm_cancel"});
    const Set actions(token_trie_set_read(vocab, 0, payload.data(), payload.size()));
    if (!actions) {
        return fail(token_trie_last_error());
    }
    token_trie_stream_state state = {};
    state.size = sizeof state;

    std::printf("Action:");
    if (token_trie_stream_prefill(stream.get(), sequence.data(), sequence.size()) != TOKEN_TRIE_OK ||
        token_trie_stream_set_token_trie(stream.get(), actions.get(), nullptr) != TOKEN_TRIE_OK ||
        token_trie_stream_generate(stream.get(), 32, print, nullptr) != TOKEN_TRIE_OK ||
        token_trie_stream_get_state(stream.get(), &state) != TOKEN_TRIE_OK) {
        return fail(token_trie_last_error());
    }
    // The name is valid until the trie is removed.
    const std::string action = state.leaf_name;
    token_trie_stream_clear_token_trie(stream.get());

    // Tokens that the sequence holds already are not evaluated again.
    const Tokens answer = tokenize(vocab, " " + action + "\nReply:", false);
    sequence.insert(sequence.end(), answer.begin(), answer.end());
    token_trie_sampling sampling = {};
    sampling.size = sizeof sampling;
    sampling.temperature = 0.7F;
    sampling.top_p = 0.95F;
    std::printf("\nReply:");
    if (token_trie_stream_prefill(stream.get(), sequence.data(), sequence.size()) != TOKEN_TRIE_OK ||
        token_trie_stream_set_sampling(stream.get(), &sampling) != TOKEN_TRIE_OK ||
        token_trie_stream_generate(stream.get(), 48, print_line, nullptr) != TOKEN_TRIE_OK) {
        return fail(token_trie_last_error());
    }
    std::printf("\n\n%s (%.1f %%); tokens chosen: %d, forced: %d; passes: %d\n", action.c_str(),
                100 * std::exp(state.logprob), static_cast<int>(state.n_branches), static_cast<int>(state.n_forced),
                static_cast<int>(state.n_passes));
    return 0;
}
