#pragma once

#include "tiny_model.h"

namespace token_trie::test {

struct FreeAnswer {
    void operator()(token_trie_answer * answer) const { token_trie_answer_free(answer); }
};
using AnswerHandle = std::unique_ptr<token_trie_answer, FreeAnswer>;

template <typename T>
std::vector<T> array_of(const T * (*get)(const token_trie_answer *, std::size_t *), const AnswerHandle & answer) {
    std::size_t n = 7;
    const T * values = get(answer.get(), &n);
    if ((values == nullptr) != (n == 0)) {
        throw std::logic_error("an answer's array and its number do not agree");
    }
    return {values, values + n};
}

inline token_trie_answer_figures figures_of(const AnswerHandle & answer) {
    auto out = sized<token_trie_answer_figures>();
    if (token_trie_answer_get_figures(answer.get(), &out) != TOKEN_TRIE_OK) {
        throw std::logic_error("an answer without figures");
    }
    return out;
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
    return answer(stream, query, out, tokens) == TOKEN_TRIE_OK ? array_of(token_trie_answer_get_logprobs, out)
                                                               : std::vector<double>();
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
