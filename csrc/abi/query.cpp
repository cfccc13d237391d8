#include "abi/query.h"

#include "abi/constraint.h"
#include "abi/guard.h"
#include "abi/structs.h"

#include <algorithm>
#include <cmath>

namespace token_trie {
namespace {

static_assert(static_cast<int>(Query::Mode::greedy) == TOKEN_TRIE_QUERY_GREEDY, "one enum, two spellings");
static_assert(static_cast<int>(Query::Mode::sampled) == TOKEN_TRIE_QUERY_SAMPLED, "one enum, two spellings");
static_assert(static_cast<int>(Query::Mode::best) == TOKEN_TRIE_QUERY_BEST, "one enum, two spellings");
static_assert(static_cast<int>(Query::Mode::scores) == TOKEN_TRIE_QUERY_SCORES, "one enum, two spellings");
static_assert(static_cast<int>(Query::Mode::text) == TOKEN_TRIE_QUERY_TEXT, "one enum, two spellings");
static_assert(static_cast<int>(Query::Mode::state) == TOKEN_TRIE_QUERY_STATE, "one enum, two spellings");

static_assert(static_cast<int>(LeafEnd::any) == TOKEN_TRIE_LEAF_ANY, "one enum, two spellings");
static_assert(static_cast<int>(LeafEnd::longest) == TOKEN_TRIE_LEAF_LONGEST, "one enum, two spellings");
static_assert(static_cast<int>(LeafEnd::follow) == TOKEN_TRIE_LEAF_FOLLOW, "one enum, two spellings");

static_assert(static_cast<int>(Stop::none) == TOKEN_TRIE_STOP_NONE, "one enum, two spellings");
static_assert(static_cast<int>(Stop::max_tokens) == TOKEN_TRIE_STOP_MAX_TOKENS, "one enum, two spellings");
static_assert(static_cast<int>(Stop::complete) == TOKEN_TRIE_STOP_COMPLETE, "one enum, two spellings");
static_assert(static_cast<int>(Stop::end) == TOKEN_TRIE_STOP_END, "one enum, two spellings");
static_assert(static_cast<int>(Stop::callback) == TOKEN_TRIE_STOP_CALLBACK, "one enum, two spellings");
static_assert(static_cast<int>(Stop::cancelled) == TOKEN_TRIE_STOP_CANCELLED, "one enum, two spellings");
static_assert(static_cast<int>(Stop::string) == TOKEN_TRIE_STOP_STRING, "one enum, two spellings");

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

const OwnedAnswer & to_answer(const token_trie_answer * handle) {
    require_not_null(handle, "answer");
    return *reinterpret_cast<const OwnedAnswer *>(handle);
}

// An array of an answer that is valid as long as the answer.
template <typename Get>
auto array_of(const token_trie_answer * handle, std::size_t * n, const Get & get) {
    using Pointer = decltype(get(std::declval<const OwnedAnswer &>()).data());
    return guard_pointer<Pointer>([&]() -> Pointer {
        require_not_null(n, "n");
        const auto & values = get(to_answer(handle));
        *n = values.size();
        return values.empty() ? nullptr : values.data();
    });
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
    if (given.mode < TOKEN_TRIE_QUERY_GREEDY || given.mode > TOKEN_TRIE_QUERY_STATE) {
        throw Error(Status::argument, "query.mode: " + std::to_string(given.mode) + " is none");
    }
    if (given.mode < TOKEN_TRIE_QUERY_TEXT) {
        require_not_null(given.set, "query.set");
    }
    Query out;
    out.mode = static_cast<Query::Mode>(given.mode);
    if (given.set != nullptr) {
        out.cursor =
            std::make_shared<const Cursor>(make_cursor(vocab, to_set(given.set), given.set_params, "query.set_params"));
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
    out.with_state = given.with_state != 0;
    out.goes_on = given.goes_on != 0;
    return out;
}

void OwnedAnswer::set_members(const Answer & given) {
    for (const Found & found : given.found) {
        leaves.push_back(found.leaf);
        logprobs.push_back(found.logprob);
    }
}

token_trie_answer * to_handle(std::unique_ptr<OwnedAnswer> answer) noexcept {
    return reinterpret_cast<token_trie_answer *>(answer.release());
}

}  // namespace token_trie

using namespace token_trie;

extern "C" {

void token_trie_answer_free(token_trie_answer * answer) {
    const std::unique_ptr<OwnedAnswer> freed(reinterpret_cast<OwnedAnswer *>(answer));
}

int32_t token_trie_answer_get_figures(const token_trie_answer * answer, token_trie_answer_figures * figures) {
    return guard([&] {
        const OwnedAnswer & owned = to_answer(answer);
        const Answer & of = owned.answer;
        token_trie_answer_figures out{};
        out.ticket = owned.ticket;
        out.status = static_cast<std::int32_t>(of.status);
        out.leaf = -1;
        if (!owned.leaves.empty()) {
            out.leaf = owned.leaves.front();
            out.logprob = owned.logprobs.front();
        } else if (!of.scores.empty()) {
            const auto best = std::max_element(of.scores.begin(), of.scores.end());
            out.leaf = best - of.scores.begin();
            out.logprob = *best;
        }
        if (!of.places.empty() || of.span_logprob != 0) {
            out.logprob = of.span_logprob;
        }
        out.ending = static_cast<std::int32_t>(of.ending);
        out.stop = static_cast<std::int32_t>(of.stop);
        out.stop_string = of.stop_string;
        out.gap = of.gap;
        out.rival_min = of.rival_min;
        out.rival_max = of.rival_max;
        out.mass_max = of.mass_max;
        out.n_shared = of.n_shared;
        out.n_branches = of.n_branches;
        out.n_forced = of.n_forced;
        out.n_free = of.n_free;
        out.n_evaluated = of.n_evaluated;
        out.n_passes = of.n_passes;
        out.prompt_ns = of.prompt_ns;
        out.decide_ns = of.decide_ns;
        out.decode_ns = of.decode_ns;
        write_struct(out, figures, "figures");
    });
}

const char * token_trie_answer_get_message(const token_trie_answer * answer) {
    return guard_pointer<const char *>([&] { return to_answer(answer).answer.message.c_str(); });
}

const int64_t * token_trie_answer_get_leaves(const token_trie_answer * answer, size_t * n) {
    return array_of(answer, n, [](const OwnedAnswer & of) -> auto & { return of.leaves; });
}

const double * token_trie_answer_get_logprobs(const token_trie_answer * answer, size_t * n) {
    return array_of(answer, n, [](const OwnedAnswer & of) -> auto & {
        return of.answer.scores.empty() ? of.logprobs : of.answer.scores;
    });
}

const llama_token * token_trie_answer_get_tokens(const token_trie_answer * answer, size_t * n) {
    return array_of(answer, n, [](const OwnedAnswer & of) -> auto & { return of.answer.tokens; });
}

const uint64_t * token_trie_answer_get_places(const token_trie_answer * answer, size_t * n) {
    return array_of(answer, n, [](const OwnedAnswer & of) -> auto & { return of.answer.places; });
}

const float * token_trie_answer_get_state(const token_trie_answer * answer, size_t * n) {
    return array_of(answer, n, [](const OwnedAnswer & of) -> auto & { return of.answer.state; });
}

}  // extern "C"
