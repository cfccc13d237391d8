#include "abi/query.h"

#include "abi/constraint.h"
#include "abi/guard.h"
#include "abi/structs.h"

#include <cmath>

namespace token_trie {
namespace {

constexpr std::int64_t kMaxSeed = 0xFFFFFFFF;
constexpr std::uint32_t kRandomSeed = 0xFFFFFFFF;  // LLAMA_DEFAULT_SEED

std::vector<double> read_leaf_weights(const token_trie_query & query, const Trie & trie) {
    if (query.leaf_weights == nullptr) {
        return {};
    }
    if (query.n_leaf_weights != trie.n_leaves()) {
        throw Error(Status::argument, "query.n_leaf_weights: " + std::to_string(query.n_leaf_weights) +
                                          " where the trie has " + std::to_string(trie.n_leaves()));
    }
    for (std::size_t i = 0; i < query.n_leaf_weights; ++i) {
        if (!std::isfinite(query.leaf_weights[i])) {
            throw Error(Status::argument, "query.leaf_weights[" + std::to_string(i) +
                                              "]: " + std::to_string(query.leaf_weights[i]) + " is not finite");
        }
    }
    return {query.leaf_weights, query.leaf_weights + query.n_leaf_weights};
}

Query::Text read_text(const token_trie_query & query) {
    Query::Text text;
    text.max_tokens = to_count(query.max_tokens, "query.max_tokens");
    text.stop_strings = to_names(query.stop_strings, query.n_stop_strings, "stop_strings");
    text.grammar = query.gbnf == nullptr ? std::nullopt : std::optional<std::string>(query.gbnf);
    text.grammar_root = query.root == nullptr ? text.grammar_root : query.root;
    if (query.on_token != nullptr) {
        text.on_token = callback(query.on_token, query.user);
    }
    return text;
}

SearchOptions read_search(const token_trie_query & query) {
    if (query.leaf_end < TOKEN_TRIE_LEAF_ANY || query.leaf_end > TOKEN_TRIE_LEAF_FOLLOW) {
        throw Error(Status::argument, "query.leaf_end: " + std::to_string(query.leaf_end) + " is none");
    }
    SearchOptions search;
    search.leaf_end = static_cast<LeafEnd>(query.leaf_end);
    search.branches = query.branches != 0;
    search.n_best = query.n_best == 0 ? 1 : query.n_best;
    search.beam_width = to_count(query.beam_width, "query.beam_width");
    search.max_nodes = query.max_nodes;
    search.timeout = std::chrono::milliseconds(to_count(query.timeout_ms, "query.timeout_ms"));
    return search;
}

}  // namespace

Sampling read_sampling(const token_trie_sampling * from, const char * what, bool may_keep) {
    Sampling out;
    if (from == nullptr) {
        return out;
    }
    const token_trie_sampling given = read_struct(from, what);
    const bool keeps_draws = given.seed == TOKEN_TRIE_SEED_KEEP;
    if (given.seed < TOKEN_TRIE_SEED_KEEP || given.seed > kMaxSeed || (keeps_draws && !may_keep)) {
        throw Error(Status::argument, std::string(what) + ".seed: " + std::to_string(given.seed) + " is none here");
    }
    out.seed = keeps_draws      ? std::nullopt
               : given.seed < 0 ? std::optional(kRandomSeed)
                                : std::optional(static_cast<std::uint32_t>(given.seed));
    out.temperature = given.temperature;
    out.top_p = given.top_p == 0 ? 1 : given.top_p;
    out.top_k = given.top_k;
    out.min_p = given.min_p;
    out.penalty_last_n = given.penalty_last_n;
    out.penalty_repeat = given.penalty_repeat == 0 ? 1 : given.penalty_repeat;
    out.penalty_freq = given.penalty_freq;
    out.penalty_present = given.penalty_present;
    out.check();
    return out;
}

token_trie_token to_token(const Decoder::Step & step) {
    return {sizeof(token_trie_token), step.token,       step.forced ? 1 : 0, step.logprob,
            step.text.size(),         step.text.c_str()};
}

std::function<bool(const Decoder::Step &)> callback(token_trie_on_token on_token, void * user) {
    return [=](const Decoder::Step & step) {
        const token_trie_token token = to_token(step);
        return on_token == nullptr || on_token(&token, user);
    };
}

Query read_query(const Vocab & vocab, const token_trie_query * query, const ShareWeights & share_weights) {
    const token_trie_query given = read_struct(query, "query");
    if (given.mode < TOKEN_TRIE_QUERY_GREEDY || given.mode > TOKEN_TRIE_QUERY_HIDDEN_STATE) {
        throw Error(Status::argument, "query.mode: " + std::to_string(given.mode) + " is none");
    }
    if (given.mode < TOKEN_TRIE_QUERY_TEXT) {
        require_not_null(given.set, "query.set");
    }
    Query out;
    out.mode = static_cast<Query::Mode>(given.mode);
    if (given.set != nullptr) {
        const token_trie_params params = read_params(given.set_params, "query.set_params");
        out.cursor = std::make_shared<const Cursor>(make_constraint(vocab, to_set(given.set), params).cursor);
    }
    out.sampling = read_sampling(given.sampling, "query.sampling", /* may_keep = */ true);
    out.search = read_search(given);
    if (out.mode == Query::Mode::best) {
        std::vector<double> weights = read_leaf_weights(given, out.cursor->trie());
        out.search.weights = weights.empty() ? nullptr : share_weights(out.cursor->shared_trie(), std::move(weights));
    }
    if (out.is_text()) {
        out.text = read_text(given);
    } else if (out.is_list()) {
        out.text.max_tokens = to_count(given.max_tokens, "query.max_tokens");
    }
    out.with_hidden_state = given.with_hidden_state != 0;
    out.goes_on = given.goes_on != 0;
    return out;
}

}  // namespace token_trie

using namespace token_trie;

extern "C" {

int32_t token_trie_answer_get_info(const token_trie_answer * answer, token_trie_answer_info * info) {
    return guard([&] {
        require_not_null(answer, "answer");
        token_trie_answer_info out = answer->info;
        const auto hand_out = [](const auto & from, auto *& to, std::size_t & n) {
            to = from.empty() ? nullptr : from.data();
            n = from.size();
        };
        out.message = answer->message.c_str();
        hand_out(answer->leaves, out.leaves, out.n_leaves);
        hand_out(answer->logprobs, out.logprobs, out.n_logprobs);
        hand_out(answer->tokens, out.tokens, out.n_tokens);
        hand_out(answer->ranges, out.ranges, out.n_ranges);
        hand_out(answer->hidden_state, out.hidden_state, out.n_hidden_state);
        write_struct(out, info, "info");
    });
}

void token_trie_answer_free(token_trie_answer * answer) { const std::unique_ptr<token_trie_answer> freed(answer); }

}  // extern "C"
