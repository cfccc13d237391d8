#include "abi/constraint.h"
#include "abi/contexts.h"
#include "abi/guard.h"
#include "abi/open_handles.h"
#include "abi/scores.h"
#include "abi/structs.h"

#include <algorithm>

namespace {

using namespace token_trie;

static_assert(static_cast<int>(Request::Way::greedy) == TOKEN_TRIE_BATCH_GREEDY, "one enum, two spellings");
static_assert(static_cast<int>(Request::Way::sampled) == TOKEN_TRIE_BATCH_SAMPLED, "one enum, two spellings");
static_assert(static_cast<int>(Request::Way::best) == TOKEN_TRIE_BATCH_BEST, "one enum, two spellings");
static_assert(static_cast<int>(Request::Way::scores) == TOKEN_TRIE_BATCH_SCORES, "one enum, two spellings");
static_assert(static_cast<int>(Request::Way::text) == TOKEN_TRIE_BATCH_TEXT, "one enum, two spellings");
static_assert(static_cast<int>(Request::Way::state) == TOKEN_TRIE_BATCH_STATE, "one enum, two spellings");

std::size_t to_count(std::int32_t value, const char * what) {
    check_not_negative(value, what);
    return static_cast<std::size_t>(value);
}

std::shared_ptr<const Cursor> read_cursor(const Batch::Call & batch, const token_trie_batch_prompt & prompt) {
    if (prompt.set == nullptr) {
        return nullptr;
    }
    return std::make_shared<const Cursor>(
        make_cursor(batch.facts(), to_set(prompt.set), prompt.set_params, "prompt.set_params"));
}

Request::Text read_text(const token_trie_batch_prompt & prompt) {
    Request::Text text;
    if (prompt.mode == TOKEN_TRIE_BATCH_TEXT) {
        text.max_tokens = to_count(prompt.max_tokens, "prompt.max_tokens");
        text.stop_strings = to_names(prompt.stop_strings, prompt.n_stop_strings, "stop_strings");
        text.grammar = prompt.gbnf == nullptr ? std::nullopt : std::optional<std::string>(prompt.gbnf);
        text.grammar_root = prompt.root == nullptr ? text.grammar_root : prompt.root;
    }
    return text;
}

Request read_request(const Batch::Call & batch, const token_trie_batch_prompt & prompt) {
    require_not_null(prompt.tokens, "prompt.tokens");
    if (prompt.mode < TOKEN_TRIE_BATCH_GREEDY || prompt.mode > TOKEN_TRIE_BATCH_STATE) {
        throw Error(Status::argument, "prompt.mode: " + std::to_string(prompt.mode) + " is none");
    }
    if (prompt.mode < TOKEN_TRIE_BATCH_TEXT) {
        require_not_null(prompt.set, "prompt.set");
    }
    check_fits(prompt.n_tokens, batch.n_ctx_max());
    std::shared_ptr<const Cursor> cursor = read_cursor(batch, prompt);
    SearchOptions search;
    search.leaf_end = to_leaf_end(prompt.leaf_end, "prompt.leaf_end");
    search.branches = prompt.branches != 0;
    search.n_best = prompt.n_best == 0 ? 1 : prompt.n_best;
    search.beam_width = to_count(prompt.beam_width, "prompt.beam_width");
    search.max_nodes = prompt.max_nodes;
    search.timeout = std::chrono::milliseconds(to_count(prompt.timeout_ms, "prompt.timeout_ms"));
    if (prompt.mode == TOKEN_TRIE_BATCH_BEST) {
        search.weights = batch.share(cursor->shared_trie(), read_leaf_weights(prompt, cursor->trie(), "prompt"));
    }
    return {{prompt.tokens, prompt.tokens + prompt.n_tokens},
            std::move(cursor),
            static_cast<Request::Way>(prompt.mode),
            prompt.seed,
            prompt.temperature,
            prompt.top_p == 0 ? 1 : prompt.top_p,
            search,
            read_text(prompt),
            prompt.with_state != 0};
}

template <typename T>
const T * array_of(const std::vector<T> & values, std::size_t * n) {
    require_not_null(n, "n");
    *n = values.size();
    return values.empty() ? nullptr : values.data();
}

}  // namespace

struct token_trie_batch_answer {
    Ticket ticket = 0;
    Answer answer;
    // Of the members found, as arrays:
    std::vector<std::int64_t> leaves;
    std::vector<double> logprobs;

    void set_members(const Answer & given) {
        for (const token_trie::Found & found : given.found) {
            leaves.push_back(found.leaf);
            logprobs.push_back(found.logprob);
        }
    }
};

extern "C" {

token_trie_batch * token_trie_batch_open(llama_model * model,
                                         const llama_context_params * context_params,
                                         const token_trie_batch_params * params) {
    return guard_pointer<token_trie_batch *>([&] {
        const token_trie_batch_params given = read_struct(params, "params");
        const Scheduler::Options options = {to_count(given.n_parallel, "params.n_parallel"),
                                            to_count(given.n_batch, "params.n_batch"),
                                            to_count(given.n_chunk, "params.n_chunk")};
        const ContextMaker maker = make_contexts(model, context_params, given);
        return open_batches().open(nullptr, [&] { return std::make_shared<Batch>(maker, options); });
    });
}

int32_t token_trie_batch_submit(token_trie_batch * batch, const token_trie_batch_prompt * prompt, int64_t * ticket) {
    return guard([&] {
        const Batch::Call call(open_batches().find(batch));
        require_not_null(ticket, "ticket");
        *ticket = call.submit(read_request(call, read_struct(prompt, "prompt")));
    });
}

int32_t token_trie_batch_next(
    token_trie_batch * batch, int64_t ticket, int32_t timeout_ms, token_trie_batch_answer ** answer, bool * is_out) {
    return guard([&] {
        require_not_null(static_cast<const void *>(answer), "answer");
        *answer = nullptr;
        const std::shared_ptr<Batch> open = open_batches().find(batch);
        auto out = std::make_unique<token_trie_batch_answer>();
        const Batch::Found found = open->next(ticket, timeout_ms, out->ticket, out->answer,
                                              [&](const Answer & seen) { out->set_members(seen); });
        if (is_out != nullptr) {
            *is_out = found == Batch::Found::not_yet;
        }
        *answer = found == Batch::Found::answer ? out.release() : nullptr;
    });
}

void token_trie_batch_answer_free(token_trie_batch_answer * answer) {
    const std::unique_ptr<token_trie_batch_answer> freed(answer);
}

int32_t token_trie_batch_answer_get_figures(const token_trie_batch_answer * answer,
                                            token_trie_batch_figures * figures) {
    return guard([&] {
        require_not_null(answer, "answer");
        const Answer & of = answer->answer;
        token_trie_batch_figures out{};
        out.ticket = answer->ticket;
        out.status = static_cast<std::int32_t>(of.status);
        out.leaf = -1;
        if (!answer->leaves.empty()) {
            out.leaf = answer->leaves.front();
            out.logprob = answer->logprobs.front();
        } else if (!of.scores.empty()) {
            const auto best = std::max_element(of.scores.begin(), of.scores.end());
            out.leaf = best - of.scores.begin();
            out.logprob = *best;
        }
        write_ranking(of, out);
        out.n_shared = of.n_shared;
        out.n_branches = of.n_branches;
        out.n_forced = of.n_forced;
        out.n_free = of.n_free;
        out.stop = static_cast<std::int32_t>(of.stop);
        out.stop_string = of.stop_string;
        out.n_evaluated = of.n_evaluated;
        out.n_passes = of.n_passes;
        out.prompt_ns = of.prompt_ns;
        out.decide_ns = of.decide_ns;
        write_struct(out, figures, "figures");
    });
}

const char * token_trie_batch_answer_get_message(const token_trie_batch_answer * answer) {
    return guard_pointer<const char *>([&] {
        require_not_null(answer, "answer");
        return answer->answer.message.c_str();
    });
}

const int64_t * token_trie_batch_answer_get_leaves(const token_trie_batch_answer * answer, size_t * n) {
    return guard_pointer<const int64_t *>([&] {
        require_not_null(answer, "answer");
        return array_of(answer->leaves, n);
    });
}

const double * token_trie_batch_answer_get_logprobs(const token_trie_batch_answer * answer, size_t * n) {
    return guard_pointer<const double *>([&] {
        require_not_null(answer, "answer");
        return array_of(answer->answer.scores.empty() ? answer->logprobs : answer->answer.scores, n);
    });
}

const llama_token * token_trie_batch_answer_get_tokens(const token_trie_batch_answer * answer, size_t * n) {
    return guard_pointer<const llama_token *>([&] {
        require_not_null(answer, "answer");
        return array_of(answer->answer.tokens, n);
    });
}

const float * token_trie_batch_answer_get_state(const token_trie_batch_answer * answer, size_t * n) {
    return guard_pointer<const float *>([&] {
        require_not_null(answer, "answer");
        return array_of(answer->answer.state, n);
    });
}

int32_t token_trie_batch_get_text(
    token_trie_batch * batch, int64_t ticket, size_t from, llama_token * tokens, size_t * n) {
    return guard([&] {
        require_not_null(n, "n");
        require_not_null(static_cast<const void *>(tokens), "tokens");
        *n = open_batches().find(batch)->copy_text(ticket, from, tokens, *n);
    });
}

void token_trie_batch_cancel(token_trie_batch * batch, int64_t ticket) {
    static_cast<void>(guard([&] { open_batches().find(batch)->cancel(ticket); }));
}

void token_trie_batch_close(token_trie_batch * batch) {
    static_cast<void>(guard([&] { open_batches().close(batch); }));
}

}  // extern "C"
