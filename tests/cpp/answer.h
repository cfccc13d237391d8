#pragma once

#include "tiny_model.h"

namespace token_trie::test {

struct FreeAnswer {
    void operator()(token_trie_answer * answer) const { token_trie_answer_free(answer); }
};
using AnswerHandle = std::unique_ptr<token_trie_answer, FreeAnswer>;

inline token_trie_answer_info info_of(const AnswerHandle & answer) {
    auto out = sized<token_trie_answer_info>();
    if (token_trie_answer_get_info(answer.get(), &out) != TOKEN_TRIE_OK) {
        throw std::logic_error("an answer without info");
    }
    return out;
}

template <typename T>
std::vector<T> to_vector(const T * values, std::size_t n) {
    if ((values == nullptr) != (n == 0)) {
        throw std::logic_error("an answer's array and its number do not agree");
    }
    return {values, values + n};
}
inline std::vector<std::int64_t> leaves_of(const AnswerHandle & answer) {
    return to_vector(info_of(answer).leaves, info_of(answer).n_leaves);
}
inline std::vector<double> logprobs_of(const AnswerHandle & answer) {
    return to_vector(info_of(answer).logprobs, info_of(answer).n_logprobs);
}
inline Tokens tokens_of(const AnswerHandle & answer) {
    return to_vector(info_of(answer).tokens, info_of(answer).n_tokens);
}
inline std::vector<float> hidden_state_of(const AnswerHandle & answer) {
    return to_vector(info_of(answer).hidden_state, info_of(answer).n_hidden_state);
}

inline token_trie_query query_of(const SetHandle & set, std::int32_t mode) {
    auto out = sized<token_trie_query>();
    out.set = set.get();
    out.mode = mode;
    return out;
}

// After the stream's sequence, or other tokens.
inline std::int32_t answer(token_trie_stream * stream,
                           const token_trie_query & query,
                           AnswerHandle & out,
                           const Tokens & tokens = {}) {
    token_trie_answer * given = nullptr;
    const std::int32_t status =
        token_trie_stream_answer(stream, tokens.empty() ? nullptr : tokens.data(), tokens.size(), &query, &given);
    out.reset(given);
    return status;
}

// The scores of all members, or those of the best; none where it fails.
inline std::vector<double> scores_of(token_trie_stream * stream,
                                     const token_trie_query & query,
                                     const Tokens & tokens = {}) {
    AnswerHandle out;
    return answer(stream, query, out, tokens) == TOKEN_TRIE_OK ? logprobs_of(out) : std::vector<double>();
}

// A stream on a tiny model.
inline Handle open_tiny(const llama_context_params & context_params = tiny_context_params(),
                        TinyKind kind = TinyKind::attention,
                        const token_trie_stream_params & params = sized<token_trie_stream_params>()) {
    Handle out(token_trie_stream_open_model(tiny_model(kind), &context_params, &params));
    EXPECT_NE(out, nullptr) << token_trie_last_error();
    return out;
}

// A payload's set, with TOKEN_TRIE_END.
inline std::int32_t set_trie(token_trie_stream * stream, std::string_view payload, int mode = TOKEN_TRIE_GREEDY) {
    const SetHandle set = set_of(payload, 0, token_trie_stream_get_vocab(stream));
    auto params = sized<token_trie_params>();
    params.mode = mode;
    params.on_complete = TOKEN_TRIE_END;
    return set == nullptr ? token_trie_last_status() : token_trie_stream_set_token_trie(stream, set.get(), &params);
}

inline std::int32_t set_sampling(token_trie_stream * stream,
                                 float temperature,
                                 float top_p = 1,
                                 std::int64_t seed = TOKEN_TRIE_SEED_KEEP) {
    auto sampling = sized<token_trie_sampling>();
    sampling.seed = seed;
    sampling.temperature = temperature;
    sampling.top_p = top_p;
    return token_trie_stream_set_sampling(stream, &sampling);
}

}  // namespace token_trie::test
