#include "abi/contexts.h"
#include "abi/guard.h"
#include "abi/open_handles.h"
#include "abi/query.h"
#include "abi/structs.h"

using namespace token_trie;

extern "C" {

token_trie_batch * token_trie_batch_open(llama_model * model,
                                         const llama_context_params * context_params,
                                         const token_trie_batch_params * params) {
    return guard_pointer<token_trie_batch *>([&] {
        const token_trie_batch_params given = read_struct(params, "params");
        const Scheduler::Options options = {
            to_count(given.n_parallel, "params.n_parallel"), to_count(given.n_batch, "params.n_batch"),
            to_count(given.n_chunk, "params.n_chunk"), to_count(given.n_ctx_first, "params.n_ctx_first")};
        ContextMaker maker = make_contexts(model, context_params, given);
        return open_batches().open([&] { return std::make_shared<Batch>(std::move(maker), options); });
    });
}

int32_t token_trie_batch_submit(token_trie_batch * batch,
                                const llama_token * tokens,
                                size_t n_tokens,
                                const token_trie_query * query,
                                int64_t * ticket) {
    return guard([&] {
        const Batch::Call call(open_batches().find(batch));
        require_not_null(ticket, "ticket");
        require_not_null(tokens, "tokens");
        check_fits(n_tokens, call.n_ctx_max());
        *ticket = call.submit({read_query(call.facts(), query), {tokens, tokens + n_tokens}});
    });
}

int32_t token_trie_batch_next(
    token_trie_batch * batch, int64_t ticket, int32_t timeout_ms, token_trie_answer ** answer, bool * is_pending) {
    return guard([&] {
        require_not_null(static_cast<const void *>(answer), "answer");
        *answer = nullptr;
        const std::shared_ptr<Batch> open = open_batches().find(batch);
        auto out = std::make_unique<Answer>();
        const Batch::Found found = open->next(ticket, timeout_ms, *out);
        if (is_pending != nullptr) {
            *is_pending = found == Batch::Found::not_yet;
        }
        *answer = found == Batch::Found::answer ? out.release() : nullptr;
    });
}

int32_t token_trie_batch_get_tokens(
    token_trie_batch * batch, int64_t ticket, size_t from, llama_token * tokens, size_t capacity, size_t * n) {
    return guard([&] {
        require_array(tokens, capacity, "tokens");
        require_not_null(n, "n");
        *n = open_batches().find(batch)->copy_text(ticket, from, tokens, capacity);
    });
}

void token_trie_batch_cancel(token_trie_batch * batch, int64_t ticket) {
    static_cast<void>(guard([&] { open_batches().find(batch)->cancel(ticket); }));
}

void token_trie_batch_close(token_trie_batch * batch) {
    static_cast<void>(guard([&] { open_batches().close(batch); }));
}

}  // extern "C"
