#include "abi/query.h"

#include "abi/constraint.h"
#include "abi/guard.h"
#include "abi/structs.h"

#include <cmath>

namespace token_trie {
namespace {

std::shared_ptr<const LeafWeights> read_leaf_weights(const token_trie_query & query,
                                                     const std::shared_ptr<const Trie> & trie) {
    if (query.leaf_weights == nullptr) {
        return nullptr;
    }
    throw_if(query.n_leaf_weights != trie->n_leaves(), Status::argument, "query.n_leaf_weights: ", query.n_leaf_weights,
             " where the trie has ", trie->n_leaves());
    for (std::size_t i = 0; i < query.n_leaf_weights; ++i) {
        throw_if(!std::isfinite(query.leaf_weights[i]), Status::argument, "query.leaf_weights[", i,
                 "]: ", query.leaf_weights[i], " is not finite");
    }
    return LeafWeights::of(trie, {query.leaf_weights, query.leaf_weights + query.n_leaf_weights});
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
    check_enum(query.leaf_end, TOKEN_TRIE_LEAF_FOLLOW, "query.leaf_end");
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
    const Sampling out = from == nullptr ? Sampling{} : read_struct(from, what);
    throw_if(out.seed < (may_keep ? TOKEN_TRIE_SEED_KEEP : TOKEN_TRIE_SEED_RANDOM) || out.seed > UINT32_MAX,
             Status::argument, what, ".seed: ", out.seed, " is none here");
    check(out);
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

Query read_query(const Vocab & vocab, const token_trie_query * query) {
    const token_trie_query given = read_struct(query, "query");
    check_enum(given.mode, TOKEN_TRIE_QUERY_TEXT, "query.mode");
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
        out.search.weights = read_leaf_weights(given, out.cursor->shared_trie());
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
