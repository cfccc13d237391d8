#include "abi/constraint.h"
#include "abi/guard.h"
#include "abi/structs.h"
#include "llama/library.h"
#include "sampler/sampler.h"
#include "trie/cache.h"

namespace {

using namespace token_trie;

llama_sampler * make_sampler(Constraint constraint) {
    return make_sampler(std::move(constraint.cursor), constraint.mode);
}

}  // namespace

extern "C" {

llama_sampler * llama_sampler_init_token_trie(const llama_vocab * vocab, const char * trie_descriptor_json, int mode) {
    return guard_pointer<llama_sampler *>([&] {
        require_not_null(trie_descriptor_json, "trie_descriptor_json");
        token_trie_params params{};
        params.mode = mode;
        return make_sampler(read_constraint(Vocab(vocab), trie_descriptor_json, params));
    });
}

llama_sampler * llama_sampler_init_token_trie_set(const llama_vocab * vocab,
                                                  const token_trie_set * set,
                                                  const token_trie_params * params) {
    return guard_pointer<llama_sampler *>(
        [&] { return make_sampler(make_constraint(Vocab(vocab), to_set(set), read_struct(params, "params"))); });
}

int32_t token_trie_sampler_get_state(const llama_sampler * sampler, token_trie_sampler_state * state) {
    return guard([&] {
        const SamplerView seen = view(sampler);
        const Cursor & cursor = *seen.cursor;
        token_trie_sampler_state out = seen.counts;
        out.state = static_cast<std::int32_t>(cursor.state());
        out.n_items = cursor.n_items();
        out.leaf = cursor.leaf() == kNoLeaf ? -1 : static_cast<std::int64_t>(cursor.leaf());
        out.leaf_name = cursor.leaf() == kNoLeaf ? nullptr : cursor.trie().stored_name(cursor.leaf());
        out.ending = static_cast<std::int32_t>(cursor.ending());
        write_struct(out, state, "state");
    });
}

int32_t token_trie_cache_get_stats(token_trie_cache_stats * stats) {
    return guard([&] { write_struct(Cache::shared().stats(), stats, "stats"); });
}

void token_trie_cache_clear(void) {
    static_cast<void>(guard([] { Cache::shared().clear(); }));
}

int32_t token_trie_check_llama(void) { return guard(require_same_llama); }

const char * token_trie_last_error(void) { return last_error(); }

int32_t token_trie_last_status(void) { return static_cast<std::int32_t>(last_status()); }

const char * token_trie_version(void) { return TOKEN_TRIE_VERSION; }

}  // extern "C"
