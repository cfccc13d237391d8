/*
 * token_trie.h: llama.cpp answers with one of a known set.
 *
 * The set is a prefix tree (trie) of token sequences, read from a JSON payload. A sampler placed in a llama.cpp
 * sampler chain lets only the children of the current node through, so that the output is always a member.
 *
 * Use, with the chain's other members in the order they have to stand:
 *
 *     struct llama_sampler * trie = llama_sampler_init_token_trie(vocab, json, TOKEN_TRIE_GREEDY);
 *     if (trie == NULL) {
 *         fprintf(stderr, "%s\n", token_trie_last_error());
 *         return 1;
 *     }
 *     struct llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
 *     llama_sampler_chain_add(chain, trie);                         // after logit bias, penalties and DRY;
 *     llama_sampler_chain_add(chain, llama_sampler_init_greedy());  // before truncation, grammar and selection
 *     llama_token token = llama_sampler_sample(chain, ctx, -1);     // a member's first token
 *     llama_sampler_free(chain);                                    // frees the trie sampler too
 *
 * The payload:
 *
 *     {"modelId": "any text",
 *      "vocab": "sha256:<64 hex digits>",
 *      "descriptors": [{"path": "action", "leaves": [{"name": "READ", "tokens": [7]},
 *                                                    {"name": "READ_FILE", "tokens": [7, 8]}]}]}
 *
 * "modelId", "vocab" and "path" may be left out and unknown keys are ignored. A leaf with no tokens is skipped; leaves
 * of equal tokens become one leaf, under the name that is smallest in byte order. "vocab" is the fingerprint of the
 * vocabulary that the tokens were made with: SHA-256 over the number of tokens and then, for every token, the length
 * and the bytes of its text (numbers as 32-bit little-endian); where present, any other vocabulary is refused.
 * Limits: 1 GiB a payload, 64 levels of nesting, 65,535 bytes a name, 65,535 tokens a leaf, 2^32 - 2 nodes.
 *
 * Errors: a function that fails returns NULL or a negative enum token_trie_status, changes nothing, and leaves a
 * message for token_trie_last_error() of the calling thread. Nothing here throws, prints, or ends the process.
 *
 * Threads: a sampler is used by one thread at a time, as everywhere in llama.cpp. All else may be called from any.
 *
 * Strings are UTF-8 and end in NUL unless a length goes with them; lengths are in bytes.
 */
#ifndef TOKEN_TRIE_H
#define TOKEN_TRIE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(TOKEN_TRIE_BUILD)
#define TOKEN_TRIE_API __declspec(dllexport)
#elif defined(_WIN32)
#define TOKEN_TRIE_API __declspec(dllimport)
#else
#define TOKEN_TRIE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct llama_vocab;
struct llama_sampler;

#ifndef LLAMA_H
typedef int32_t llama_token;
#endif

enum token_trie_status {
    TOKEN_TRIE_OK = 0,
    TOKEN_TRIE_ERROR_ARGUMENT = -1, /* a null pointer, an unknown mode, a value out of range */
    TOKEN_TRIE_ERROR_PAYLOAD = -2,  /* the payload is not what this header describes */
    TOKEN_TRIE_ERROR_VOCAB = -3,    /* the tokens do not fit the vocabulary */
    TOKEN_TRIE_ERROR_LIMIT = -4,    /* larger than the limits above */
    TOKEN_TRIE_ERROR_LLAMA = -5,    /* another llama.cpp is loaded than the one compiled against */
    TOKEN_TRIE_ERROR_MEMORY = -6,   /* out of memory */
    TOKEN_TRIE_ERROR_INTERNAL = -7  /* a defect in this library; please report it */
};

enum token_trie_mode {
    TOKEN_TRIE_GREEDY = 0, /* apply leaves the best allowed token, alone and selected */
    TOKEN_TRIE_SAMPLED = 1 /* apply leaves all allowed tokens, logits untouched, for the chain's selector */
};

/* What may follow a finished leaf. A longer member that begins with the finished one always stays reachable. */
enum token_trie_on_complete {
    TOKEN_TRIE_RELEASE = 0, /* any token: the span is over and text is free again */
    TOKEN_TRIE_END = 1,     /* an end token: the whole answer is the choice */
    TOKEN_TRIE_RESTART = 2  /* the separator, then another member; or an end token */
};

/*
 * Options. Set size to sizeof(struct token_trie_params) and the rest to zero for the defaults.
 * What the pointers point to is copied.
 */
struct token_trie_params {
    size_t size;
    int32_t mode;                   /* enum token_trie_mode */
    int32_t on_complete;            /* enum token_trie_on_complete */
    const char * path;              /* only the descriptors of this path; NULL for all of them as one set */
    const llama_token * end_tokens; /* END, RESTART: tokens that end the span; NULL for the vocabulary's own */
    size_t n_end_tokens;
    const llama_token * separator; /* RESTART: tokens between two members; NULL for none */
    size_t n_separator;
    int32_t max_items; /* RESTART: members in the list at most; 0 for no limit */
};

/* Where a sampler stands. */
enum token_trie_state {
    TOKEN_TRIE_WALKING = 0,  /* inside the set: the next token is constrained */
    TOKEN_TRIE_COMPLETE = 1, /* ended as it should: released, or an end token was accepted */
    TOKEN_TRIE_ESCAPED = 2   /* a token outside the allowed set was accepted; no constraint since */
};

/* Set size to sizeof(struct token_trie_sampler_state) before the call. */
struct token_trie_sampler_state {
    size_t size;
    int32_t state;          /* enum token_trie_state */
    int32_t n_items;        /* members finished so far */
    const char * leaf_name; /* the member finished last or standing finished now, NULL if none or without a name;
                               valid until the sampler is freed */
    int64_t leaf;           /* its index in the set, -1 if none */
    uint64_t n_escaped;     /* accepts of a token outside the allowed set */
    uint64_t n_restored;    /* applies where upstream samplers had cut every allowed token away */
};

/* Set size to sizeof(struct token_trie_cache_stats) before the call. Counts are since the process began. */
struct token_trie_cache_stats {
    size_t size;
    uint64_t hits;
    uint64_t misses; /* includes payloads that turned out to be refused */
    uint64_t evictions;
    uint64_t entries;
    uint64_t capacity;
    uint64_t bytes; /* held by the cached tries */
};

/*
 * Makes a sampler from a payload, with the defaults of struct token_trie_params: on completion, release.
 *
 * vocab                 the model's; NULL for no range check and no end-of-generation tokens
 * trie_descriptor_json  the payload
 * mode                  enum token_trie_mode
 *
 * Returns a sampler that the caller owns (llama_sampler_free, or llama_sampler_chain_add, which takes it), NULL on
 * failure. The trie comes from a process-wide cache of the 128 used last, keyed by the SHA-256 of the payload, so a
 * repeated call costs little more than hashing it; a new payload costs one pass and a sort.
 */
TOKEN_TRIE_API struct llama_sampler * llama_sampler_init_token_trie(const struct llama_vocab * vocab,
                                                                    const char * trie_descriptor_json,
                                                                    int mode);

/*
 * The same with a payload of known length and every option. With TOKEN_TRIE_END and TOKEN_TRIE_RESTART and no
 * end_tokens, the vocabulary is scanned for its end-of-generation tokens, once as long as the model lives.
 */
TOKEN_TRIE_API struct llama_sampler * llama_sampler_init_token_trie_ext(const struct llama_vocab * vocab,
                                                                        const char * payload_json,
                                                                        size_t payload_len,
                                                                        const struct token_trie_params * params);

/*
 * Fills *state with where a sampler stands. The sampler must be one made here, not the chain it was added to.
 */
TOKEN_TRIE_API int32_t token_trie_sampler_get_state(const struct llama_sampler * sampler,
                                                    struct token_trie_sampler_state * state);

/* Fills *stats. */
TOKEN_TRIE_API int32_t token_trie_cache_get_stats(struct token_trie_cache_stats * stats);

/* Empties the cache. Samplers keep the tries they use. */
TOKEN_TRIE_API void token_trie_cache_clear(void);

/*
 * Whether the llama.cpp loaded in this process is the one that this library was compiled against: TOKEN_TRIE_OK, or
 * TOKEN_TRIE_ERROR_LLAMA with both versions in the message. The samplers here work either way.
 */
TOKEN_TRIE_API int32_t token_trie_check_llama(void);

/*
 * This thread's last failure, "" if none. Valid until the thread's next failure; never NULL. At most 1023 bytes.
 */
TOKEN_TRIE_API const char * token_trie_last_error(void);

/* This library's version, as in "0.1.0". */
TOKEN_TRIE_API const char * token_trie_version(void);

#ifdef __cplusplus
}
#endif

#endif /* TOKEN_TRIE_H */
