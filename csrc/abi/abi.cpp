#include "abi/guard.h"
#include "abi/structs.h"
#include "sampler/llama_version.h"
#include "sampler/sampler.h"
#include "sampler/vocab.h"
#include "trie/cache.h"

#include <cstring>

namespace {

using namespace token_trie;

static_assert(static_cast<int>(Mode::greedy) == TOKEN_TRIE_GREEDY, "one enum, two spellings");
static_assert(static_cast<int>(Mode::sampled) == TOKEN_TRIE_SAMPLED, "one enum, two spellings");
static_assert(static_cast<int>(OnComplete::release) == TOKEN_TRIE_RELEASE, "one enum, two spellings");
static_assert(static_cast<int>(OnComplete::end) == TOKEN_TRIE_END, "one enum, two spellings");
static_assert(static_cast<int>(OnComplete::restart) == TOKEN_TRIE_RESTART, "one enum, two spellings");
static_assert(static_cast<int>(State::walking) == TOKEN_TRIE_WALKING, "one enum, two spellings");
static_assert(static_cast<int>(State::complete) == TOKEN_TRIE_COMPLETE, "one enum, two spellings");
static_assert(static_cast<int>(State::escaped) == TOKEN_TRIE_ESCAPED, "one enum, two spellings");

Mode to_mode(std::int32_t mode) {
    if (mode != TOKEN_TRIE_GREEDY && mode != TOKEN_TRIE_SAMPLED) {
        throw Error(Status::argument,
                    "mode: " + std::to_string(mode) + " is neither TOKEN_TRIE_GREEDY (0) nor TOKEN_TRIE_SAMPLED (1)");
    }
    return static_cast<Mode>(mode);
}

OnComplete to_on_complete(std::int32_t value) {
    if (value < TOKEN_TRIE_RELEASE || value > TOKEN_TRIE_RESTART) {
        throw Error(Status::argument,
                    "on_complete: " + std::to_string(value) +
                        " is none of TOKEN_TRIE_RELEASE (0), TOKEN_TRIE_END (1), TOKEN_TRIE_RESTART (2)");
    }
    return static_cast<OnComplete>(value);
}

std::vector<Token> to_tokens(const llama_token * tokens, std::size_t n, const char * what) {
    if (tokens == nullptr && n > 0) {
        throw Error(Status::argument, std::string(what) + ": null, with n_" + what + " = " + std::to_string(n));
    }
    if (n > kMaxLeafTokens) {
        throw Error(Status::limit, std::string("n_") + what + ": " + std::to_string(n) + "; at most 65535");
    }
    return {tokens, tokens + n};
}

FollowSet::Options to_follow(const token_trie_params & params, const llama_vocab * vocab) {
    FollowSet::Options options;
    options.on_complete = to_on_complete(params.on_complete);
    options.end_tokens = to_tokens(params.end_tokens, params.n_end_tokens, "end_tokens");
    options.separator = to_tokens(params.separator, params.n_separator, "separator");
    options.max_items = params.max_items;
    if (params.end_tokens == nullptr && options.on_complete != OnComplete::release) {
        options.end_tokens = vocab_end_of_generation(vocab);
    }
    options.check();
    return options;
}

llama_sampler * init_sampler(const llama_vocab * vocab, std::string_view json, const token_trie_params & params) {
    const Mode mode = to_mode(params.mode);
    const std::optional<std::string> path =
        params.path == nullptr ? std::nullopt : std::optional<std::string>(params.path);
    FollowSet::Options options = to_follow(params, vocab);
    std::shared_ptr<const Trie> trie = Cache::shared().get(json, path, vocab_size(vocab));
    check_vocab(*trie, vocab);
    auto follow = std::make_shared<const FollowSet>(*trie, std::move(options));
    check_vocab(*follow, vocab);
    return make_sampler(Cursor(std::move(trie), std::move(follow)), mode);
}

void require_not_null(const void * pointer, const char * what) {
    if (pointer == nullptr) {
        throw Error(Status::argument, std::string(what) + ": null");
    }
}

}  // namespace

extern "C" {

llama_sampler * llama_sampler_init_token_trie(const llama_vocab * vocab, const char * trie_descriptor_json, int mode) {
    return guard_pointer<llama_sampler *>([&] {
        require_not_null(trie_descriptor_json, "trie_descriptor_json");
        token_trie_params params{};
        params.mode = mode;
        return init_sampler(vocab, trie_descriptor_json, params);
    });
}

llama_sampler * llama_sampler_init_token_trie_ext(const llama_vocab * vocab,
                                                  const char * payload_json,
                                                  size_t payload_len,
                                                  const token_trie_params * params) {
    return guard_pointer<llama_sampler *>([&] {
        require_not_null(payload_json, "payload_json");
        return init_sampler(vocab, {payload_json, payload_len}, read_struct(params, "params"));
    });
}

int32_t token_trie_sampler_get_state(const llama_sampler * sampler, token_trie_sampler_state * state) {
    return guard([&] {
        const SamplerView seen = view(sampler);
        const Cursor & cursor = *seen.cursor;
        token_trie_sampler_state out{};
        out.state = static_cast<std::int32_t>(cursor.state());
        out.n_items = cursor.n_items();
        out.leaf = cursor.leaf() == kNoLeaf ? -1 : static_cast<std::int64_t>(cursor.leaf());
        out.leaf_name = cursor.leaf() == kNoLeaf ? nullptr : cursor.trie().stored_name(cursor.leaf());
        out.n_escaped = seen.n_escaped;
        out.n_restored = seen.n_restored;
        write_struct(out, state, "state");
    });
}

int32_t token_trie_cache_get_stats(token_trie_cache_stats * stats) {
    return guard([&] {
        const Cache::Stats seen = Cache::shared().stats();
        write_struct({0, seen.hits, seen.misses, seen.evictions, seen.entries, Cache::kCapacity, seen.bytes}, stats,
                     "stats");
    });
}

void token_trie_cache_clear(void) {
    static_cast<void>(guard([] { Cache::shared().clear(); }));
}

int32_t token_trie_check_llama(void) { return guard(require_same_llama); }

const char * token_trie_last_error(void) { return last_error(); }

const char * token_trie_version(void) { return TOKEN_TRIE_VERSION; }

}  // extern "C"
