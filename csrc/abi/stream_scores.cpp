#include "abi/constraint.h"
#include "abi/guard.h"
#include "abi/scores.h"
#include "abi/stream_call.h"
#include "abi/structs.h"

#include <algorithm>
#include <utility>

namespace {

using namespace token_trie;

void write_stats(token_trie_score_stats out, const Cost & cost, token_trie_score_stats * stats) {
    if (stats != nullptr) {
        out.n_evaluated = cost.n_evaluated;
        out.n_passes = cost.n_passes;
        out.decode_ns = cost.decode_ns;
        write_struct(out, stats, "stats");
    }
}

ScoreOptions to_score_options(const Stream & stream, const token_trie_score_params & params) {
    ScoreOptions options;
    options.leaf_end = to_leaf_end(params.leaf_end, "params.leaf_end");
    options.branches = params.branches != 0;
    if (params.prefix != nullptr) {
        if (params.n_prefix == 0) {
            throw Error(Status::argument, "params.prefix: no tokens; NULL is for the stream's sequence");
        }
        check_fits(params.n_prefix, stream.n_ctx_max());
        options.prefix.assign(params.prefix, params.prefix + params.n_prefix);
    }
    return options;
}

// Of the set given, or of the trie that is set.
Cursor cursor_of(const Stream & stream, const token_trie_score_params & params) {
    if (params.set != nullptr) {
        return make_cursor(stream.facts(), to_set(params.set), params.set_params, "params.set_params");
    }
    std::optional<Cursor> set = stream.snapshot().cursor;
    if (!set) {
        throw Error(Status::argument, "no trie to score: give a set, or set one first");
    }
    return std::move(*set);
}

// What score and search begin with.
struct Query {
    Query(const token_trie_stream * handle, const token_trie_score_params * from)
        : stream(enter(handle)),
          params(read_struct(from, "params")),
          options(to_score_options(*stream, params)),
          cursor(cursor_of(*stream, params)) {}

    SharedStream::Call stream;
    token_trie_score_params params;
    ScoreOptions options;
    Cursor cursor;
};

void check_length(std::size_t given, std::size_t needed, const char * what) {
    if (given != needed) {
        throw Error(Status::argument,
                    std::string(what) + ": " + std::to_string(given) + " where the trie has " + std::to_string(needed));
    }
}

}  // namespace

extern "C" {

int32_t token_trie_stream_score(token_trie_stream * stream,
                                const token_trie_score_params * params,
                                double * leaves,
                                size_t n_leaves,
                                double * nodes,
                                size_t n_nodes,
                                token_trie_score_stats * stats) {
    return guard([&] {
        require_not_null(leaves, "leaves");
        const Query query(stream, params);
        const Trie & trie = query.cursor.trie();
        check_length(n_leaves, trie.n_leaves(), "n_leaves");
        if (nodes != nullptr) {
            check_length(n_nodes, trie.n_nodes(), "n_nodes");
        }
        const Scores scores = query.stream->score(query.cursor, query.options);
        token_trie_score_stats out{};
        out.n_found = scores.leaves.size();
        write_stats(out, scores, stats);
        std::copy(scores.leaves.begin(), scores.leaves.end(), leaves);
        if (nodes != nullptr) {
            std::copy(scores.nodes.begin(), scores.nodes.end(), nodes);
        }
    });
}

int32_t token_trie_stream_search(token_trie_stream * stream,
                                 const token_trie_score_params * params,
                                 int64_t * leaves,
                                 double * logprobs,
                                 size_t n_best,
                                 token_trie_score_stats * stats) {
    return guard([&] {
        require_not_null(leaves, "leaves");
        require_not_null(logprobs, "logprobs");
        const Query query(stream, params);
        check_not_negative(query.params.beam_width, "params.beam_width");
        check_not_negative(query.params.timeout_ms, "params.timeout_ms");
        const std::shared_ptr<const Trie> & trie = query.cursor.shared_trie();
        std::vector<double> weights = read_leaf_weights(query.params, *trie, "params");
        const SearchOptions options = {
            query.options,
            n_best,
            static_cast<std::size_t>(query.params.beam_width),
            query.params.max_nodes,
            std::chrono::milliseconds(query.params.timeout_ms),
            weights.empty() ? nullptr : std::make_shared<const LeafWeights>(trie, std::move(weights))};
        const SearchResult result = query.stream->search(query.cursor, options);
        token_trie_score_stats out{};
        out.n_found = result.found.size();
        write_ranking(result, out);
        write_stats(out, result, stats);
        for (const Found & found : result.found) {
            *leaves++ = found.leaf;
            *logprobs++ = found.logprob;
        }
    });
}

int32_t token_trie_stream_get_hidden_state(token_trie_stream * stream, float * state, size_t * n) {
    return guard([&] {
        require_not_null(n, "n");
        const std::vector<float> found = enter(stream)->hidden_state();
        const std::size_t n_given = std::exchange(*n, found.size());
        if (state == nullptr) {
            return;
        }
        if (n_given < found.size()) {
            throw Error(Status::argument,
                        "n: " + std::to_string(n_given) + " where the state has " + std::to_string(found.size()));
        }
        std::copy(found.begin(), found.end(), state);
    });
}

}  // extern "C"
