#include "abi/adapters.h"
#include "abi/constraint.h"
#include "abi/guard.h"
#include "abi/open_batches.h"
#include "abi/scores.h"
#include "abi/structs.h"

#include <algorithm>
#include <cstring>

namespace {

using namespace token_trie;

static_assert(static_cast<int>(Request::Way::greedy) == TOKEN_TRIE_BATCH_GREEDY, "one enum, two spellings");
static_assert(static_cast<int>(Request::Way::sampled) == TOKEN_TRIE_BATCH_SAMPLED, "one enum, two spellings");
static_assert(static_cast<int>(Request::Way::best) == TOKEN_TRIE_BATCH_BEST, "one enum, two spellings");
static_assert(static_cast<int>(Request::Way::scores) == TOKEN_TRIE_BATCH_SCORES, "one enum, two spellings");
static_assert(static_cast<int>(Request::Way::text) == TOKEN_TRIE_BATCH_TEXT, "one enum, two spellings");

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
    if (prompt.mode < TOKEN_TRIE_BATCH_GREEDY || prompt.mode > TOKEN_TRIE_BATCH_TEXT) {
        throw Error(Status::argument, "prompt.mode: " + std::to_string(prompt.mode) + " is none");
    }
    if (prompt.mode != TOKEN_TRIE_BATCH_TEXT) {
        require_not_null(prompt.set, "prompt.set");
    }
    if (prompt.n_tokens > batch.n_ctx_max()) {
        throw Error(Status::context, std::to_string(prompt.n_tokens) + " tokens do not fit the context of " +
                                         std::to_string(batch.n_ctx_max()));
    }
    SearchOptions search;
    search.leaf_end = to_leaf_end(prompt.leaf_end, "prompt.leaf_end");
    search.branches = prompt.branches != 0;
    search.n_best = prompt.n_best == 0 ? 1 : prompt.n_best;
    search.beam_width = to_count(prompt.beam_width, "prompt.beam_width");
    search.max_nodes = prompt.max_nodes;
    search.timeout = std::chrono::milliseconds(to_count(prompt.timeout_ms, "prompt.timeout_ms"));
    return {{prompt.tokens, prompt.tokens + prompt.n_tokens},
            read_cursor(batch, prompt),
            static_cast<Request::Way>(prompt.mode),
            prompt.seed,
            prompt.temperature,
            prompt.top_p == 0 ? 1 : prompt.top_p,
            search,
            read_text(prompt)};
}

// Whether there is memory for all that is wanted.
bool fits(const Answer & answer, const token_trie_batch_answer & to) {
    const bool wants_members = to.leaves != nullptr || to.logprobs != nullptr;
    return (!wants_members || answer.n_members() <= to.capacity) &&
           (to.tokens == nullptr || answer.tokens.size() <= to.tokens_capacity);
}

void copy_members(const Answer & answer, const token_trie_batch_answer & to) {
    for (std::size_t i = 0; i < answer.n_members(); ++i) {
        const bool is_found = answer.scores.empty();
        if (to.leaves != nullptr) {
            to.leaves[i] = is_found ? answer.found[i].leaf : static_cast<std::int64_t>(i);
        }
        if (to.logprobs != nullptr) {
            to.logprobs[i] = is_found ? answer.found[i].logprob : answer.scores[i];
        }
    }
}

void write_answer(Ticket ticket, const Answer & answer, token_trie_batch_answer & out) {
    out.ticket = ticket;
    out.status = static_cast<std::int32_t>(answer.status);
    copy_message(answer.message, out.message, sizeof out.message);
    if (!answer.found.empty()) {
        out.leaf = answer.found.front().leaf;
        out.logprob = answer.found.front().logprob;
    } else if (!answer.scores.empty()) {
        const auto best = std::max_element(answer.scores.begin(), answer.scores.end());
        out.leaf = best - answer.scores.begin();
        out.logprob = *best;
    }
    copy_members(answer, out);
    if (out.tokens != nullptr) {
        std::copy(answer.tokens.begin(), answer.tokens.end(), out.tokens);
    }
    out.gap = answer.gap;
    out.rival_min = answer.rival_min;
    out.rival_max = answer.rival_max;
    out.mass_max = answer.mass_max;
    out.n_shared = answer.n_shared;
    out.n_branches = answer.n_branches;
    out.n_forced = answer.n_forced;
    out.n_free = answer.n_free;
    out.stop = static_cast<std::int32_t>(answer.stop);
    out.stop_string = answer.stop_string;
    out.n_evaluated = answer.n_evaluated;
    out.n_passes = answer.n_passes;
    out.prompt_ns = answer.prompt_ns;
    out.decide_ns = answer.decide_ns;
}

}  // namespace

extern "C" {

token_trie_batch * token_trie_batch_open(llama_model * model,
                                         const llama_context_params * context_params,
                                         const token_trie_batch_params * params) {
    return guard_pointer<token_trie_batch *>([&] {
        require_not_null(model, "model");
        require_not_null(context_params, "context_params");
        const token_trie_batch_params given = read_struct(params, "params");
        const Scheduler::Options options = {to_count(given.n_parallel, "params.n_parallel"),
                                            to_count(given.n_batch, "params.n_batch")};
        const ContextMaker maker(model, *context_params, read_adapters(given));
        return OpenBatches::shared().open(std::make_shared<Batch>(maker, options));
    });
}

int32_t token_trie_batch_submit(token_trie_batch * batch, const token_trie_batch_prompt * prompt, int64_t * ticket) {
    return guard([&] {
        const Batch::Call call(OpenBatches::shared().find(batch));
        require_not_null(ticket, "ticket");
        *ticket = call.submit(read_request(call, read_struct(prompt, "prompt")));
    });
}

int32_t token_trie_batch_next(token_trie_batch * batch,
                              int64_t ticket,
                              int32_t timeout_ms,
                              token_trie_batch_answer * answer) {
    return guard([&] {
        const std::shared_ptr<Batch> open = OpenBatches::shared().find(batch);
        const token_trie_batch_answer given = read_struct(answer, "answer");
        token_trie_batch_answer out{};  // without what stood there before
        out.leaves = given.leaves;
        out.logprobs = given.logprobs;
        out.capacity = given.capacity;
        out.tokens = given.tokens;
        out.tokens_capacity = given.tokens_capacity;
        Answer taken;
        Ticket of = 0;
        const Batch::Found found = open->next(ticket, timeout_ms, of, taken, [&](const Answer & seen) {
            out.n_found = seen.n_members();
            out.n_tokens = seen.tokens.size();
            if (!fits(seen, out)) {
                write_struct(out, answer, "answer");
                throw Error(Status::limit, "answer: memory for less than " + std::to_string(out.n_found) +
                                               " members or " + std::to_string(out.n_tokens) + " tokens");
            }
        });
        out.is_out = found == Batch::Found::not_yet ? 1 : 0;
        out.leaf = -1;
        out.stop_string = -1;
        if (found == Batch::Found::answer) {
            write_answer(of, taken, out);
        }
        write_struct(out, answer, "answer");
    });
}

void token_trie_batch_cancel(token_trie_batch * batch, int64_t ticket) {
    static_cast<void>(guard([&] { OpenBatches::shared().find(batch)->cancel(ticket); }));
}

void token_trie_batch_close(token_trie_batch * batch) {
    static_cast<void>(guard([&] { OpenBatches::shared().close(batch); }));
}

}  // extern "C"
