#include "abi/constraint.h"
#include "abi/contexts.h"
#include "abi/guard.h"
#include "abi/open_handles.h"
#include "abi/query.h"
#include "abi/structs.h"

namespace {

using namespace token_trie;

Stream::Options to_options(const token_trie_stream_params & params) {
    Stream::Options options;
    options.sampling = read_sampling(params.sampling, "params.sampling", /* may_keep = */ false);
    options.jump_forward = params.step_by_step == 0;
    check_enum(params.device_sampling, TOKEN_TRIE_DEVICE_OFF, "params.device_sampling");
    options.device = static_cast<Sequence::Device>(params.device_sampling);
    return options;
}

// A call of a stream that is open.
SharedStream::Call enter(const token_trie_stream * handle) { return SharedStream::Call(open_streams().find(handle)); }

template <typename Make>
token_trie_stream * open(const Make & maker, const token_trie_stream_params & params) {
    const Stream::Options options = to_options(params);
    return open_streams().open([&] {
        return std::make_shared<SharedStream>(std::make_unique<Stream>(std::make_unique<Sequence>(maker()), options));
    });
}

}  // namespace

extern "C" {

token_trie_stream * token_trie_stream_open_model(llama_model * model,
                                                 const llama_context_params * context_params,
                                                 const token_trie_stream_params * params) {
    return guard_pointer<token_trie_stream *>([&] {
        const token_trie_stream_params given = read_struct(params, "params");
        return open([&] { return make_contexts(model, context_params, given); }, given);
    });
}

token_trie_stream * token_trie_stream_open_file(const char * gguf_path, const token_trie_stream_params * params) {
    return guard_pointer<token_trie_stream *>([&] {
        require_not_null(gguf_path, "gguf_path");
        const token_trie_stream_params given = read_struct(params, "params");
        check_not_negative(given.n_ctx, "n_ctx");
        check_not_negative(given.n_batch, "n_batch");
        check_not_negative(given.n_threads, "n_threads");
        const ContextMaker::FileOptions file = {given.n_ctx, given.n_batch, given.n_threads, given.n_gpu_layers,
                                                static_cast<std::size_t>(given.max_state_bytes)};
        return open([&] { return ContextMaker(gguf_path, file); }, given);
    });
}

token_trie_stream * token_trie_stream_fork(token_trie_stream * stream) {
    return guard_pointer<token_trie_stream *>([&] {
        const std::shared_ptr<SharedStream> object = open_streams().find(stream);
        return open_streams().open([&] { return SharedStream::fork(object); });
    });
}

const llama_vocab * token_trie_stream_get_vocab(token_trie_stream * stream) {
    return guard_pointer<const llama_vocab *>([&] { return open_streams().find(stream)->vocab(); });
}

int32_t token_trie_stream_prefill(token_trie_stream * stream, const llama_token * tokens, size_t n) {
    return guard([&] {
        const SharedStream::Call open = enter(stream);
        require_not_null(tokens, "tokens");
        check_fits(n, open->n_ctx_max());
        open->prefill({tokens, tokens + n});
    });
}

int32_t token_trie_stream_splice(token_trie_stream * stream, size_t n_kept, const llama_token * tokens, size_t n) {
    return guard([&] {
        const SharedStream::Call open = enter(stream);
        require_array(tokens, n, "tokens");
        check_fits(n, open->n_ctx_max());
        open->splice(n_kept, n == 0 ? std::vector<Token>() : std::vector<Token>(tokens, tokens + n));
    });
}

int32_t token_trie_stream_get_tokens(token_trie_stream * stream, llama_token * tokens, size_t capacity, size_t * n) {
    return guard([&] {
        const SharedStream::Call open = enter(stream);
        write_tokens(open->tokens(), tokens, capacity, n);
    });
}

int32_t token_trie_stream_import_prefix(
    token_trie_stream * stream, llama_context * from, int32_t sequence, const llama_token * tokens, size_t n) {
    return guard([&] {
        const SharedStream::Call open = enter(stream);
        require_not_null(from, "from");
        require_not_null(tokens, "tokens");
        check_fits(n, open->n_ctx_max());
        open->import_prefix(from, sequence, {tokens, tokens + n});
    });
}

int32_t token_trie_stream_set_grammar(token_trie_stream * stream, const char * gbnf, const char * root) {
    return guard([&] { enter(stream)->set_grammar(gbnf, root); });
}

int32_t token_trie_stream_set_token_trie(token_trie_stream * stream,
                                         const token_trie_set * set,
                                         const token_trie_params * params) {
    return guard([&] {
        const SharedStream::Call open = enter(stream);
        Constraint constraint = make_constraint(open->facts(), to_set(set), read_params(params, "params"));
        open->set_trie(std::move(constraint.cursor), constraint.mode);
    });
}

int32_t token_trie_stream_clear_token_trie(token_trie_stream * stream) {
    return guard([&] { enter(stream)->clear_trie(); });
}

int32_t token_trie_stream_set_sampling(token_trie_stream * stream, const token_trie_sampling * sampling) {
    return guard([&] {
        const Sampling given = read_sampling(sampling, "sampling", /* may_keep = */ true);
        enter(stream)->set_sampling(given);
    });
}

int32_t token_trie_stream_answer(token_trie_stream * stream,
                                 const llama_token * tokens,
                                 size_t n_tokens,
                                 const token_trie_query * query,
                                 token_trie_answer ** answer) {
    return guard([&] {
        const SharedStream::Call open = enter(stream);
        require_not_null(static_cast<const void *>(answer), "answer");
        *answer = nullptr;
        require_array(tokens, n_tokens, "tokens");
        check_fits(n_tokens, open->n_ctx_max());
        Query read = read_query(open->facts(), query);
        if (tokens != nullptr) {
            throw_if(n_tokens == 0, Status::argument, "n_tokens: 0; tokens is null for the stream's sequence");
            read.search.prefix.assign(tokens, tokens + n_tokens);
        }
        auto out = std::make_unique<Answer>();
        *out = open->answer(read);
        *answer = out.release();
    });
}

int32_t token_trie_stream_generate(token_trie_stream * stream,
                                   int32_t max_tokens,
                                   token_trie_on_token on_token,
                                   void * user) {
    return guard([&] { enter(stream)->generate(max_tokens, callback(on_token, user)); });
}

int32_t token_trie_stream_generate_until(token_trie_stream * stream,
                                         int32_t max_tokens,
                                         const char * const * stop_strings,
                                         size_t n_stop_strings,
                                         token_trie_on_token on_token,
                                         void * user,
                                         int32_t * stop_string) {
    return guard([&] {
        const SharedStream::Call open = enter(stream);
        const std::vector<std::string> stops = to_names(stop_strings, n_stop_strings, "stop_strings");
        std::size_t which = 0;
        const Stop stop = open->generate_until(max_tokens, stops, callback(on_token, user), which);
        if (stop_string != nullptr) {
            *stop_string = stop == Stop::string ? static_cast<std::int32_t>(which) : -1;
        }
    });
}

int32_t token_trie_stream_next(token_trie_stream * stream, token_trie_token * token, int32_t * stop) {
    return guard([&] {
        const SharedStream::Call open = enter(stream);
        require_not_null(stop, "stop");
        require_not_null(token, "token");
        check_struct_size(token->size, "token");
        const Stream::Next next = open->next();
        write_struct(next.step == nullptr ? token_trie_token{0, -1, 0, 0, 0, ""} : to_token(*next.step), token,
                     "token");
        *stop = static_cast<std::int32_t>(next.stop);
    });
}

void token_trie_stream_cancel(token_trie_stream * stream) {
    static_cast<void>(guard([&] { open_streams().find(stream)->cancel(); }));
}

int32_t token_trie_stream_get_state(token_trie_stream * stream, token_trie_stream_state * state) {
    return guard([&] { write_struct(open_streams().find(stream)->state(), state, "state"); });
}

void token_trie_stream_close(token_trie_stream * stream) {
    static_cast<void>(guard([&] { open_streams().close(stream); }));
}

}  // extern "C"
