/*
 * token_trie.h: makes llama.cpp answer with one member of a known set.
 *
 * The set is a prefix tree (trie) of token sequences, read from a JSON payload. A sampler in a llama.cpp sampler chain
 * allows only the children of the current node, so the output is always a member.
 *
 * Use, with the samplers of the chain in the required order:
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
 * "modelId", "vocab" and "path" are optional. Unknown keys are ignored. A leaf without tokens is skipped. Leaves with
 * equal tokens become one leaf, under the name that is smallest in byte order. "vocab" is the fingerprint of the
 * vocabulary that the tokens were made with: SHA-256 over the number of tokens and then, for every token, the length
 * and the bytes of its text (numbers as 32-bit little-endian). If it is present, every other vocabulary is refused. The
 * types of the tokens (control, end of generation) are not part of the fingerprint, because they do not change what a
 * sequence means. A payload made with a base model therefore fits the models tuned from it, and every release of
 * llama.cpp.
 *
 * Limits: 1 GiB per payload, 64 levels of nesting, 65,535 bytes per name, 65,535 tokens per leaf, 2^32 - 2 nodes.
 *
 * Errors: a function that fails returns NULL or a negative enum token_trie_status, changes nothing, and sets the
 * message that token_trie_last_error() returns on the calling thread. This library never throws, prints, or ends the
 * process. llama.cpp does: it logs (llama_log_set), and prints what is wrong with a grammar. It ends the process if
 * memory runs out, or if a model is freed while a stream is open on it. A model file is trusted as far as llama.cpp
 * trusts it.
 *
 * Threads: a sampler is used by one thread at a time, as everywhere in llama.cpp, and so is a matcher. All other
 * functions may be called from any thread. While a stream is in a call, it refuses other calls with
 * TOKEN_TRIE_ERROR_BUSY, except token_trie_stream_cancel, _close and _get_vocab. Calls from llama.cpp's log callback
 * follow the same rules. If the callback runs on the thread that is in the call, the stream refuses its calls too, and
 * a close from there frees the stream when the call returns. With GNU's OpenMP, each thread that evaluates keeps
 * threads of llama.cpp's of its own, and with more of them than processors a pass takes up to four times as long. So
 * make the calls that evaluate on one thread, or call omp_pause_resource_all(omp_pause_soft) on a thread that is done
 * with them.
 *
 * Versions: releases of one major version add functions and constants, and append members to structs. What is there
 * keeps its meaning and its value. Structs begin with their size. A library takes shorter structs, whose missing
 * members are zero, and longer ones. It fails with TOKEN_TRIE_ERROR_ARGUMENT if a member that it does not know is not
 * zero, and sets such members to zero where it writes. In members that are flags, every value but 0 means true.
 *
 * A pointer may be NULL where this header says so, and an array if it has no elements. Every other NULL is refused with
 * TOKEN_TRIE_ERROR_ARGUMENT.
 *
 * Strings are UTF-8, and NUL-terminated unless a length is passed with them. Lengths are in bytes.
 */
#ifndef TOKEN_TRIE_H
#define TOKEN_TRIE_H

#include <stdbool.h>
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

struct llama_adapter_lora;
struct llama_context;
struct llama_context_params;
struct llama_model;
struct llama_sampler;
struct llama_vocab;

#ifndef LLAMA_H
typedef int32_t llama_token;
#endif

enum token_trie_status {
    TOKEN_TRIE_OK = 0,
    TOKEN_TRIE_ERROR_ARGUMENT = -1,  /* a null pointer, an unknown mode, a value out of range */
    TOKEN_TRIE_ERROR_PAYLOAD = -2,   /* the payload does not have the format described above */
    TOKEN_TRIE_ERROR_VOCAB = -3,     /* the tokens do not fit the vocabulary, or a text cannot be spelled in it */
    TOKEN_TRIE_ERROR_LIMIT = -4,     /* larger than the limits above */
    TOKEN_TRIE_ERROR_LLAMA = -5,     /* the loaded llama.cpp is not the one that this library was compiled against */
    TOKEN_TRIE_ERROR_MEMORY = -6,    /* out of memory */
    TOKEN_TRIE_ERROR_INTERNAL = -7,  /* a defect in this library; please report it */
    TOKEN_TRIE_ERROR_CONTEXT = -8,   /* the context is full, llama_decode failed, or no logits are finite */
    TOKEN_TRIE_ERROR_CANCELLED = -9, /* a prefill or an answer was cancelled */
    TOKEN_TRIE_ERROR_GRAMMAR = -10,  /* a grammar does not parse, or does not fit the text so far */
    TOKEN_TRIE_ERROR_BUSY = -11      /* the stream or one of its forks is already in a call, or a batch is called from
                                       within its own pass */
};

enum token_trie_mode {
    TOKEN_TRIE_GREEDY = 0, /* apply keeps only the best allowed token, and selects it */
    TOKEN_TRIE_SAMPLED = 1 /* apply keeps all allowed tokens with their logits; a later sampler of the chain selects */
};

/* The tokens that may follow a finished member. A longer member that begins with it can always still be reached. */
enum token_trie_on_complete {
    TOKEN_TRIE_RELEASE = 0, /* any token: the span is over, and text is free again */
    TOKEN_TRIE_END = 1,     /* an end token: the member is the whole answer */
    TOKEN_TRIE_RESTART = 2  /* the separator and then another member, or an end token: a list */
};

/*
 * Options. Set size to sizeof(struct token_trie_params), and all other members to zero for the defaults. The data
 * that pointers point to is copied. An option marked END or RESTART is only for that on_complete.
 */
struct token_trie_params {
    size_t size;
    int32_t mode;                   /* enum token_trie_mode */
    int32_t on_complete;            /* enum token_trie_on_complete */
    const char * path;              /* use only the payload's descriptors of this path; NULL: all of them, as one set */
    const llama_token * end_tokens; /* END, RESTART: tokens that end the span; NULL: the vocabulary's own */
    size_t n_end_tokens;
    const llama_token * separator; /* RESTART: tokens between two members; NULL: none */
    size_t n_separator;
    int32_t max_items; /* RESTART: the largest number of members in the list; 0: no limit. After the last member, only
                          an end token is allowed. Without end tokens (null vocab), any token is allowed then, as with
                          RELEASE */
    int32_t min_items; /* RESTART: the smallest number of members in the list; no end token is allowed before */
    int32_t max_span;  /* RESTART: when the span has this many tokens, the current member is the last one, or as many
                          follow as min_items needs. Prevents a list that never ends; llama.cpp's log gets a warning.
                          0: 500; negative: no limit. Has no effect on a list without end tokens */
    int32_t unique;    /* RESTART: if not 0, no member occurs twice. A token that leads only to members that are already
                          in the list is not allowed. When no member is left, the list ends as with max_items. A text
                          counts as one member in all its spellings. A step costs no more than without unique; each
                          finished member costs a copy of the record of the members used so far */
    const char * const * exclude; /* names of members that are never allowed; NULL: none. Costs one pass over the set */
    size_t n_exclude;
    const llama_token * start_after; /* the span begins after this sequence of tokens, wherever it occurs. Before that,
                                        any token is allowed except the vocabulary's end-of-generation tokens (null
                                        vocab: end_tokens), unless they are part of the sequence. NULL: the span begins
                                        at once */
    size_t n_start_after;
    int32_t max_before; /* with start_after: the largest number of free tokens, including those that begin start_after.
                           After that, the missing rest of start_after is forced. 0: all of it is forced at once;
                           negative: no limit */
};

/* The state of a sampler. */
enum token_trie_state {
    TOKEN_TRIE_CONSTRAINED = 0, /* inside the set: the next token is constrained */
    TOKEN_TRIE_COMPLETE = 1,    /* the span ended normally: it was released, or an end token was accepted */
    TOKEN_TRIE_ESCAPED = 2,     /* a token outside the allowed set was accepted; there has been no constraint since */
    TOKEN_TRIE_THINKING = 3     /* start_after has not occurred yet */
};

/* Why a span ends after the last finished member. Known as soon as only the end of the span can follow. */
enum token_trie_ending {
    TOKEN_TRIE_ENDING_NONE = 0,      /* it does not end here: a member can continue or begin; or the span was escaped */
    TOKEN_TRIE_ENDING_TOKEN = 1,     /* an end was accepted; with END and RELEASE also: no member can continue */
    TOKEN_TRIE_ENDING_MAX_ITEMS = 2, /* RESTART: the list has max_items members */
    TOKEN_TRIE_ENDING_NONE_LEFT = 3, /* RESTART, unique: the list has all members of the set */
    TOKEN_TRIE_ENDING_MAX_SPAN = 4   /* RESTART: the span reached max_span */
};

/* Set size to sizeof(struct token_trie_sampler_state) before the call. */
struct token_trie_sampler_state {
    size_t size;
    int32_t state;          /* enum token_trie_state */
    int32_t n_items;        /* number of finished members */
    const char * leaf_name; /* name of the last finished member; NULL while another one is in progress, and if it has
                               no name; valid until the sampler is freed */
    int64_t leaf;           /* the index of that member in the set, -1 if none */
    uint64_t n_escaped;     /* number of accepted tokens that were outside the allowed set */
    uint64_t n_restored;    /* calls of apply in which earlier samplers had removed every allowed token */
    uint64_t n_closed;      /* spans that max_span ended */
    int32_t ending;         /* enum token_trie_ending */
};

/* Set size to sizeof(struct token_trie_cache_stats) before the call. Counts are since the start of the process. */
struct token_trie_cache_stats {
    size_t size;
    uint64_t hits;
    uint64_t misses; /* including payloads that were then refused */
    uint64_t evictions;
    uint64_t entries;
    uint64_t capacity;
    uint64_t bytes; /* memory of the cached tries */
};

/*
 * A set: the possible answers, read once and shared by any number of samplers, matchers, streams and batches. A set
 * never changes, and any threads may use it. Whatever was made with a set keeps what it needs, so the set may be freed
 * before it.
 *
 *     struct token_trie_set * set = token_trie_set_read(vocab, 0, json, strlen(json));
 *     struct token_trie_params params = {sizeof params, .on_complete = TOKEN_TRIE_END, .path = "action"};
 *     token_trie_stream_set_token_trie(stream, set, &params);
 *     token_trie_set_free(set);
 *
 * Each use compares the tokens and the fingerprint of the set with the vocabulary that it is used with, and fails with
 * TOKEN_TRIE_ERROR_VOCAB if they do not fit.
 *
 * The index of a member is its position in the order in which the members were given, from 0 on. Members that were
 * skipped, and those that were equal to an earlier one, are not counted.
 *
 * Without a path, all paths of a payload are one set.
 */
struct token_trie_set;

/*
 * Reads a payload of payload_len bytes. The set of one path is selected with params.path, or with
 * token_trie_set_select.
 *
 * vocab    the model's, or NULL
 * n_vocab  token ids from n_vocab on are refused; 0: the size of vocab, or no such check if vocab is NULL
 *
 * Returns a set that the caller owns (token_trie_set_free), as do the functions below; NULL on failure. The tries, one
 * for each path, are taken from the cache or put into it.
 */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_read(const struct llama_vocab * vocab,
                                                           int32_t n_vocab,
                                                           const char * payload_json,
                                                           size_t payload_len);

/*
 * Makes a set of token sequences. Member i of n_members is tokens[offsets[i]] up to, not including,
 * tokens[offsets[i + 1]]. The rules above for the leaves of a payload hold for the members too.
 *
 * offsets      n_members + 1 offsets, in ascending order, beginning with 0
 * names        one name for each member; NULL: members are called by their positions i, "0", "1", ..., for example in
 *              exclude; functions that return a name then return NULL
 * fingerprint  of the vocabulary, as "vocab" in a payload; NULL: not known, and not compared
 */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_from_tokens(const llama_token * tokens,
                                                                  const uint64_t * offsets,
                                                                  size_t n_members,
                                                                  const char * const * names,
                                                                  const char * fingerprint);

/*
 * Makes a set of texts, which are also the names of the members. A text is spelled as the vocabulary's tokenizer spells
 * it alone: a space before a word is part of the text.
 */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_from_texts(const struct llama_vocab * vocab,
                                                                 const char * const * texts,
                                                                 size_t n_texts);

/*
 * Makes a set of one path of a payload; path NULL: of the whole set, for another owner. Its members take no further
 * memory. Fails with TOKEN_TRIE_ERROR_ARGUMENT for a path that no descriptor has.
 */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_select(const struct token_trie_set * set, const char * path);

/*
 * Opens a set in a file that `token-trie build`, or TokenTrie.save in Python, wrote. The file is mapped read-only, and
 * all processes that map it share the memory. This takes milliseconds for any size. While the set is in use, the file
 * may be replaced or deleted, but not written to. Files of other formats are refused with a message that has the name
 * of the file. Damage that only the checksums reveal can make answers wrong, but no call reads outside the file.
 */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_open(const char * file);

/*
 * Makes a set of some of a set's members, without building a new trie. Member i is kept if keep[i] is not 0. n_members
 * is the number of members before any filter. Kept members keep their indices, so n_members stays the same; n_left of
 * struct token_trie_set_info is how many are kept. Filtering a filtered set does not bring members back. keep is
 * copied, as one bit per member. Fails if no member is kept.
 */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_filter(const struct token_trie_set * set,
                                                             const unsigned char * keep,
                                                             size_t n_members);

/* Frees a set; NULL is ignored. The memory of its members is freed with their last user. */
TOKEN_TRIE_API void token_trie_set_free(struct token_trie_set * set);

/* Facts about a set, all paths together. Set size to sizeof(struct token_trie_set_info) before the call. */
struct token_trie_set_info {
    size_t size;
    uint64_t n_members;  /* members, filtered out or not; indices are less than this */
    uint64_t n_nodes;    /* nodes, including the root */
    uint64_t max_tokens; /* tokens of the longest member */
    uint64_t n_bytes;    /* bytes of memory, including names; in a file, bytes of the mapped part */
    uint64_t n_left;     /* members that are not filtered out */
};

/* Fills *info. */
TOKEN_TRIE_API int32_t token_trie_set_get_info(const struct token_trie_set * set, struct token_trie_set_info * info);

/*
 * Gets the name of member i, copies up to `capacity` of its tokens, and sets *n to their number. Fails with
 * TOKEN_TRIE_ERROR_ARGUMENT if i is not less than n_members, and for a member that is filtered out.
 *
 * name  NULL, or set to the name, valid until the set is freed; to NULL if it has none
 */
TOKEN_TRIE_API int32_t token_trie_set_get_member(
    const struct token_trie_set * set, size_t i, const char ** name, llama_token * tokens, size_t capacity, size_t * n);

/*
 * Makes a sampler from a payload, with the defaults of struct token_trie_params. After a member, text is free again.
 *
 * vocab                 the model's; if it is NULL, token ids are not checked against its size, and there are no
 *                       end-of-generation tokens
 * trie_descriptor_json  the payload
 * mode                  enum token_trie_mode
 *
 * Returns a sampler that the caller owns, NULL on failure. Free it with llama_sampler_free, or give it to a chain with
 * llama_sampler_chain_add. The trie comes from a process-wide cache of the 128 most recently used tries. Its key is the
 * SHA-256 of the payload, so a repeated call costs little more than the hash. A new payload costs one pass and a sort.
 */
TOKEN_TRIE_API struct llama_sampler * llama_sampler_init_token_trie(const struct llama_vocab * vocab,
                                                                    const char * trie_descriptor_json,
                                                                    int mode);

/*
 * The same with a set and all options. vocab may be NULL here too. For TOKEN_TRIE_END and TOKEN_TRIE_RESTART without
 * end_tokens, the vocabulary is scanned for its end-of-generation tokens (one or two milliseconds for 262,144 tokens).
 */
TOKEN_TRIE_API struct llama_sampler * llama_sampler_init_token_trie_set(const struct llama_vocab * vocab,
                                                                        const struct token_trie_set * set,
                                                                        const struct token_trie_params * params);

/*
 * Fills *state. The sampler must be a sampler that this library made, not the chain that it was added to.
 */
TOKEN_TRIE_API int32_t token_trie_sampler_get_state(const struct llama_sampler * sampler,
                                                    struct token_trie_sampler_state * state);

/*
 * A matcher is for a host that has its own logits, from any engine. It says which tokens of a set are allowed next, as
 * a bit mask or as a list. The host passes the tokens that it takes to token_trie_matcher_accept, and can undo this
 * with token_trie_matcher_rollback.
 *
 *     struct token_trie_params params = {sizeof params, .on_complete = TOKEN_TRIE_END, .end_tokens = &eos,
 *                                        .n_end_tokens = 1};
 *     struct token_trie_matcher * matcher = token_trie_matcher_init(NULL, n_vocab, set, &params);
 *     const struct token_trie_matcher * one = matcher;
 *     token_trie_matcher_fill_masks(&one, 1, NULL, mask, 1, (n_vocab + 31) / 32, NULL);
 *     ...                                                      // tokens whose bit is 0 get no probability
 *     token_trie_matcher_accept(matcher, &token, 1, &n_accepted);
 *     token_trie_matcher_free(matcher);
 *
 * A token that is not allowed is not accepted, and does not change the matcher. When an end token has been accepted,
 * the matcher is terminated: from then on only end tokens are allowed. If a span ends without an end token
 * (TOKEN_TRIE_RELEASE, a list without end tokens), every token is allowed from then on.
 */
struct token_trie_matcher;

/*
 * Makes a matcher at the beginning of a set.
 *
 * vocab    the model's, for its end-of-generation tokens and its fingerprint; NULL: no llama.cpp model is needed
 * n_vocab  size of the vocabulary, which is the number of bits in a row of a mask; with a vocab, 0 for its own size, or
 *          a larger number if the logits are padded
 * params   as for a sampler; mode is not used
 *
 * Returns a matcher that the caller owns (token_trie_matcher_free), NULL on failure. vocab is not used after the call.
 */
TOKEN_TRIE_API struct token_trie_matcher * token_trie_matcher_init(const struct llama_vocab * vocab,
                                                                   int32_t n_vocab,
                                                                   const struct token_trie_set * set,
                                                                   const struct token_trie_params * params);

/* Makes a matcher with the same set and state, which the caller owns too. The set is shared. NULL on failure. */
TOKEN_TRIE_API struct token_trie_matcher * token_trie_matcher_clone(const struct token_trie_matcher * matcher);

/* Frees a matcher; NULL is ignored. */
TOKEN_TRIE_API void token_trie_matcher_free(struct token_trie_matcher * matcher);

/*
 * Accepts n tokens, up to the first that is not allowed, and sets *n_accepted to the number of accepted tokens. Fails
 * with TOKEN_TRIE_ERROR_VOCAB if any of the tokens is outside the vocabulary; then none is accepted.
 */
TOKEN_TRIE_API int32_t token_trie_matcher_accept(struct token_trie_matcher * matcher,
                                                 const llama_token * tokens,
                                                 size_t n,
                                                 size_t * n_accepted);

/*
 * Undoes the last n accepted tokens. n may be their total number. Fails with TOKEN_TRIE_ERROR_ARGUMENT if fewer have
 * been accepted. Costs at most as much as accepting 255 tokens.
 */
TOKEN_TRIE_API int32_t token_trie_matcher_rollback(struct token_trie_matcher * matcher, size_t n);

/* Tells whether the matcher is terminated, that is, whether an end token was accepted. */
TOKEN_TRIE_API int32_t token_trie_matcher_is_terminated(const struct token_trie_matcher * matcher,
                                                        bool * is_terminated);

/*
 * Fills a row of bits for each of n matchers. Token t is bit t % 32 of word t / 32, which is 1 if it is allowed. Bits
 * beyond the vocabulary have no meaning.
 *
 * rows       the index of the row for each matcher; NULL: matcher i fills row i
 * masks      n_rows rows of n_words words, one after the other; other rows are not changed
 * n_words    (n_vocab + 31) / 32, which must be the same for all matchers
 * is_needed  NULL, or set for each matcher: false if every token is allowed, so that its row need not be applied
 *
 * Costs the writing of the rows, and one step for each allowed token. On failure nothing is written.
 */
TOKEN_TRIE_API int32_t token_trie_matcher_fill_masks(const struct token_trie_matcher * const * matchers,
                                                     size_t n,
                                                     const size_t * rows,
                                                     int32_t * masks,
                                                     size_t n_rows,
                                                     size_t n_words,
                                                     bool * is_needed);

/* Copies up to `capacity` of the allowed tokens, in ascending order, and sets *n to the number of allowed tokens. */
TOKEN_TRIE_API int32_t token_trie_matcher_get_allowed(const struct token_trie_matcher * matcher,
                                                      llama_token * tokens,
                                                      size_t capacity,
                                                      size_t * n);

/*
 * Copies up to `capacity` forced tokens: each is the only token allowed after those before it. *n is set to the number
 * of copied tokens. End tokens are not among them. Does not change the matcher. Costs one step per token.
 */
TOKEN_TRIE_API int32_t token_trie_matcher_get_forced(const struct token_trie_matcher * matcher,
                                                     llama_token * tokens,
                                                     size_t capacity,
                                                     size_t * n);

/* Values of seed beside 0 to 2^32 - 1. */
enum token_trie_seed {
    TOKEN_TRIE_SEED_RANDOM = -1, /* a random seed */
    TOKEN_TRIE_SEED_KEEP = -2    /* the random draws of the stream go on; not for batches, nor to open a stream */
};

/*
 * How tokens are drawn, by llama.cpp's own samplers, in this order: penalties, top-k, top-p, min-p, temperature, a
 * seeded draw. Under a trie, they see only the allowed tokens. Set size to sizeof(struct token_trie_sampling), and all
 * other members to zero for the defaults.
 */
struct token_trie_sampling {
    size_t size;
    int64_t seed;           /* the same seed draws the same tokens */
    float temperature;      /* 0: takes the best token */
    float top_p;            /* in (0, 1]; 0 and 1: off */
    int32_t top_k;          /* 0: off */
    float min_p;            /* in [0, 1]; 0: off */
    int32_t penalty_last_n; /* the penalties count this many of the last generated tokens; 0: off */
    float penalty_repeat;   /* 0 or 1: off */
    float penalty_freq;     /* 0: off */
    float penalty_present;  /* 0: off */
};

/* A token that is passed to a callback, valid during the callback, or that token_trie_stream_next returns. */
struct token_trie_token {
    size_t size;
    llama_token id;    /* -1: none */
    int32_t forced;    /* 1: the only token allowed at its position; 0: chosen */
    float logprob;     /* natural logarithm of its share of the probability of the allowed tokens, by the model's own
                          logits; 0 if forced, NaN in free text */
    size_t text_len;   /* bytes */
    const char * text; /* the whole UTF-8 characters that this token completes; "" if it ends inside a character */
};

/*
 * Returns true to continue. Must not throw. It may call token_trie_stream_cancel, token_trie_stream_close and
 * token_trie_stream_get_vocab; other calls of the stream are refused. From a batch, it is called in a pass, on the
 * thread that makes it, and may call token_trie_batch_submit, token_trie_batch_cancel and token_trie_batch_close.
 */
typedef bool (*token_trie_on_token)(const struct token_trie_token * token, void * user);

enum token_trie_query_mode {
    TOKEN_TRIE_QUERY_GREEDY = 0,  /* the best token at each branch point */
    TOKEN_TRIE_QUERY_SAMPLED = 1, /* a random token at each branch point */
    TOKEN_TRIE_QUERY_BEST = 2,    /* the most probable members, found and proved by a search */
    TOKEN_TRIE_QUERY_SCORES = 3,  /* the score of each member */
    TOKEN_TRIE_QUERY_TEXT = 4     /* free text */
};

/* How a member's end counts in its score, in addition to the probability of its tokens. */
enum token_trie_leaf_end {
    TOKEN_TRIE_LEAF_ANY = 0,     /* nothing: any token may follow */
    TOKEN_TRIE_LEAF_LONGEST = 1, /* the probability that no token follows with which a longer member continues. Members
                                    are then mutually exclusive events */
    TOKEN_TRIE_LEAF_FOLLOW = 2   /* the probability that a token of the follow set follows: with END an end token */
};

/*
 * A query of the model after a prompt. A stream answers one (token_trie_stream_answer), a batch many
 * (token_trie_batch_submit). Set size to sizeof(struct token_trie_query), and all other members to zero for the
 * defaults. The data that pointers point to is copied. A member marked with modes is only for these.
 *
 * A score is the natural logarithm of a probability. A node whose logits no score needs, such as the last token of most
 * members, is not evaluated. BEST and SCORES refuse sets with unique, exclude or min_items.
 *
 * BEST is for sets that are too large to score whole: it evaluates only nodes that can matter. It always continues from
 * the most probable node, and ends when no other node can lead to a better member. A batch can include nodes that prove
 * unnecessary, if this is likely to save a pass. Equal scores are ranked by their tokens.
 */
struct token_trie_query {
    size_t size;
    int32_t mode;              /* enum token_trie_query_mode */
    int32_t with_hidden_state; /* if not 0, the answer includes the hidden state after the prompt, in any mode: the
                                  normalized vector that the model multiplies with its output matrix. For the state
                                  alone: TEXT, with max_tokens 0 */
    const struct token_trie_set * set;
    const struct token_trie_params * set_params; /* NULL: all members of the set, with TOKEN_TRIE_END. mode is not
                                                    read. GREEDY, SAMPLED, TEXT: on_complete must be END; the first
                                                    two also take RESTART, for a list within max_tokens. start_after
                                                    is for these modes */
    const struct token_trie_sampling * sampling; /* SAMPLED, TEXT; NULL: takes the best token */
    int32_t leaf_end;                            /* BEST, SCORES: enum token_trie_leaf_end */
    int32_t branches;                            /* BEST, SCORES: if not 0, only branch points count, and probabilities
                                                    are normalized over the allowed set. These are the probabilities
                                                    with which SAMPLED draws; leaf_end is not used. Costs less: a node
                                                    after which nothing is to choose is not evaluated */
    int32_t beam_width;                          /* BEST: nodes of one depth that the search continues from; 0:
                                                    best-first search, which is exact */
    size_t n_best;                               /* BEST: 0: 1 */
    uint64_t max_nodes;                          /* BEST: nodes to evaluate; 0: no limit. A node counts once, also
                                                    where too few cells make it evaluated again. At the limit, the best
                                                    members found so far are the answer; there is at least one. A beam
                                                    narrows to n_best nodes instead, and stops at twice the limit */
    int32_t timeout_ms;                          /* BEST: the same limit in time, checked between batches; 0: none */
    int32_t max_tokens;          /* TEXT, and lists: fewer if the context has less room. In a batch, a prompt
                                    leaves room for one token at least */
    const double * leaf_weights; /* BEST: NULL, or a finite weight in nats for each member, by index.
                                    The search ranks by score plus weight, for example of a
                                    calibration, and its result is proved as well: the bound of a node
                                    includes the largest weight below it. Reading the weights takes one
                                    pass over the nodes of the trie */
    size_t n_leaf_weights;
    /* TEXT: there is no set, or a set with start_after. With a set, the text ends after start_after, and no member
       follows. In a batch, goes_on is not needed for a prompt of this prompt, all tokens of its text, and more. */
    const char * const * stop_strings; /* as in token_trie_stream_generate_until */
    size_t n_stop_strings;
    const char * gbnf;            /* without a set: as in token_trie_stream_set_grammar; NULL: none */
    const char * root;            /* NULL: "root" */
    token_trie_on_token on_token; /* TEXT: receives each token, and can end the text after it; NULL: none. In a batch, a
                                     text is written again, without it, if another prompt made its logits useless */
    void * user;                  /* for on_token */
    int32_t goes_on; /* in a batch: if not 0, a later prompt will begin with this one, but for its last few tokens. It
                        goes before others that wait, but only a limited number of times. Its first tokens are then
                        already evaluated, unless other prompts needed their place in the cache */
};

/*
 * An answer. It owns its data, also after the stream or batch is closed. Any threads may use it.
 */
struct token_trie_answer;

/* The contents of an answer. Set size to sizeof(struct token_trie_answer_info) before the call. */
struct token_trie_answer_info {
    size_t size;
    int64_t ticket;      /* batch: the ticket of the prompt */
    int32_t status;      /* enum token_trie_status: of a batch, whether this prompt failed */
    int32_t stop;        /* GREEDY, SAMPLED, TEXT: enum token_trie_stop */
    int32_t stop_string; /* TEXT: index of the stop string that was found; -1 if none was */
    int32_t ending;      /* list: enum token_trie_ending; NONE: max_tokens was reached, and an unfinished member is
                            not part of the answer */
    int64_t leaf;        /* index in the set of the best member, or the only one; -1 if none */
    double logprob;      /* the member's score, without leaf_weights. GREEDY, SAMPLED: the sum over the branch points
                            of the answer */
    double gap;          /* BEST: no other member scores more than this many nats above the last one found. 0: the
                            members found are the best. inf: fewer than n_best were found, and there may be more. This
                            and the rivals include leaf_weights */
    double rival_min;    /* BEST: lower bound of the score of the best member that is not in the answer; -inf if none is
                            known, or there is none */
    double rival_max;    /* the upper bound; equal to rival_min if that member was evaluated */
    double mass_max;     /* BEST: upper bound of the probability that the model, without the constraint, writes a member
                            of the set here; does not include leaf_weights */
    uint64_t n_shared;   /* batch: tokens of the prompt that were evaluated for another prompt */
    uint64_t n_branches; /* GREEDY, SAMPLED: tokens that were chosen at a branch point, including ends */
    uint64_t n_forced;   /* GREEDY, SAMPLED, TEXT: tokens that were forced */
    uint64_t n_free;     /* GREEDY, SAMPLED, TEXT: tokens of free text */
    uint64_t n_evaluated; /* tokens or nodes that were evaluated after the prompt, without the root; a node that is
                             evaluated again, because others below it need it, counts again */
    uint64_t n_passes;    /* passes with some of these tokens; those of a batch can include tokens of other prompts */
    uint64_t prompt_ns;   /* batch: nanoseconds from the prompt's first pass to its last */
    uint64_t decide_ns;   /* nanoseconds from then on; of a stream: of the call */
    uint64_t decode_ns;   /* stream: nanoseconds of the call inside llama.cpp's forward passes */
    /* Arrays and text are valid until the answer is freed. An array without elements is NULL. */
    const char * message; /* why the prompt of a batch failed; "" if it did not */
    const int64_t *
        leaves; /* index in the set of each member found, best first; of a list, in its order. SCORES: none */
    size_t n_leaves;
    const double * logprobs; /* the score of each of these; for SCORES, of all members, by index */
    size_t n_logprobs;
    const llama_token * tokens; /* GREEDY, SAMPLED, TEXT: the generated tokens, without an end-of-generation token */
    size_t n_tokens;
    const uint64_t * ranges;    /* list: for each member, the index of its first token in tokens, and the index
                                   after its last */
    size_t n_ranges;            /* 2 for each member */
    const float * hidden_state; /* with_hidden_state: the hidden state after the prompt */
    size_t n_hidden_state;      /* the model's n_embd */
};

/* Fills *info. */
TOKEN_TRIE_API int32_t token_trie_answer_get_info(const struct token_trie_answer * answer,
                                                  struct token_trie_answer_info * info);

/* Frees an answer; NULL is ignored. */
TOKEN_TRIE_API void token_trie_answer_free(struct token_trie_answer * answer);

/*
 * A stream generates text token by token in its own contexts: under a trie, under a grammar, or free.
 *
 *     struct token_trie_stream_params params = {sizeof params};
 *     struct token_trie_stream * stream = token_trie_stream_open_file("model.gguf", &params);
 *     token_trie_stream_prefill(stream, tokens, n_tokens);
 *     token_trie_stream_set_token_trie(stream, set, NULL);
 *     token_trie_stream_generate(stream, 32, on_token, NULL);   // a member of the set
 *     token_trie_stream_clear_token_trie(stream);
 *     struct token_trie_sampling sampling = {sizeof sampling, .temperature = 0.7f, .top_p = 0.95f};
 *     token_trie_stream_set_sampling(stream, &sampling);
 *     token_trie_stream_generate(stream, 100, on_token, NULL);  // free text after it
 *     token_trie_stream_close(stream);
 *
 * A forced token, the only allowed one at its position, is never sampled and never evaluated alone. It is passed on at
 * once, and evaluated in one batch with the token of the next branch point. After the last branch point, nothing is
 * evaluated until a later call needs it. So a choice costs one forward pass for each branch point, except for one at
 * its first token. If only few tokens are allowed at a branch point, the pass is cut short: see
 * token_trie_stream_open_model.
 *
 * A closed stream and NULL are refused with TOKEN_TRIE_ERROR_ARGUMENT.
 */
struct token_trie_stream;

/*
 * Where a stream chooses under a trie: on the host, or inside the compute graph, where the logits
 * are. In the graph, only the best token and its probability leave the device, 8 bytes. If the token is drawn, or
 * penalties are on, and at most a sixteenth of the vocabulary is allowed, the logits of the allowed tokens leave it
 * instead, their number rounded up to a power of 2. In all other cases, such as free text, scores and searches, whole
 * rows of logits are copied. The tokens are the same as on the host if the backend's argmax takes the first of equal
 * logits. logprob is computed in float.
 *
 * The stream chooses on the host, and n_on_device of its state does not grow, if llama.cpp has no samplers inside the
 * graph, if the model does not consist of attention alone, and if n_batch is 1.
 */
enum token_trie_device_sampling {
    TOKEN_TRIE_DEVICE_AUTO = 0, /* in the graph if the last layer is on a device, unless the params had a cb_eval */
    TOKEN_TRIE_DEVICE_ON = 1,   /* in the graph on any backend, including the CPU's */
    TOKEN_TRIE_DEVICE_OFF = 2
};

/* Set size to sizeof(struct token_trie_stream_params), and all other members to zero for the defaults. */
struct token_trie_stream_params {
    size_t size;
    /* only for token_trie_stream_open_file: */
    int32_t n_ctx;        /* tokens; 0: the number that the model was trained with; at most 16 times that number */
    int32_t n_batch;      /* tokens evaluated at once; 0: llama.cpp's default */
    int32_t n_threads;    /* 0: llama.cpp's default; at most GGML_MAX_N_THREADS */
    int32_t n_gpu_layers; /* layers on a GPU; negative: all of them */
    /* for all streams: */
    const struct token_trie_sampling * sampling; /* as in token_trie_stream_set_sampling; NULL: the defaults */
    int32_t step_by_step; /* if not 0, every token is evaluated alone, also forced ones, and no pass is cut short. This
                             is slower. The logits of quantized models change a little with the batch size; with this
                             option they are bit-exact with other loops that evaluate one token at a time */
    /* only for token_trie_stream_open_model: adapters for every context that the stream makes; must outlive it */
    struct llama_adapter_lora * const * adapters;
    const float * adapter_scales; /* one for each adapter; NULL: 1 */
    size_t n_adapters;
    int32_t device_sampling; /* enum token_trie_device_sampling */
    /* for all streams on a recurrent or hybrid model: memory in bytes for its states, which is as many states as fit,
       at least 8 and at most 64. More of them make scores and searches faster, and keep more beginnings of prompts. 0:
       512 MiB */
    uint64_t max_state_bytes;
};

/* Why the last generate ended. */
enum token_trie_stop {
    TOKEN_TRIE_STOP_NONE = 0,       /* there was none, or it failed */
    TOKEN_TRIE_STOP_MAX_TOKENS = 1, /* it generated max_tokens tokens */
    TOKEN_TRIE_STOP_COMPLETE = 2,   /* the span is complete */
    TOKEN_TRIE_STOP_END = 3,        /* free text ended with an end-of-generation token */
    TOKEN_TRIE_STOP_CALLBACK = 4,   /* the callback returned false */
    TOKEN_TRIE_STOP_CANCELLED = 5,  /* token_trie_stream_cancel */
    TOKEN_TRIE_STOP_STRING = 6      /* token_trie_stream_generate_until found one of its texts */
};

/*
 * The state of a stream. Set size to sizeof(struct token_trie_stream_state) before the call. Counts and times begin
 * when the stream is opened.
 */
struct token_trie_stream_state {
    size_t size;
    int32_t stop;           /* enum token_trie_stop */
    int32_t span;           /* enum token_trie_state, -1 without a trie */
    int32_t n_items;        /* finished members of this span */
    int64_t leaf;           /* index in the set of the last finished member; -1 if none */
    const char * leaf_name; /* the name of that member, NULL if none; valid until the trie is replaced or removed, or
                               the stream closed */
    double logprob;         /* the sum over the branch points of this span, including ends */
    uint64_t n_tokens;      /* tokens of the sequence, including the prompt */
    uint64_t n_cached;      /* tokens of the sequence that are evaluated */
    uint64_t n_forced;      /* tokens that were forced by a trie */
    uint64_t n_branches;    /* tokens that were chosen at a branch point, including ends */
    uint64_t n_free;        /* tokens of free text */
    uint64_t n_passes;  /* forward passes of generate; this and the counts above include answers that append tokens */
    uint64_t decode_ns; /* nanoseconds of generate in forward passes: in llama_decode, and in the multiplication of some
                           rows of the output matrix after it, which is done if only few tokens are allowed */
    uint64_t generate_ns;   /* nanoseconds of generate in total, including callbacks */
    uint64_t n_context;     /* tokens that fit the present context, which is replaced by a larger one when needed */
    uint64_t n_context_max; /* tokens that fit the largest context that the stream can have */
    uint64_t cache_bytes;   /* bytes that llama.cpp has allocated for the cache of the present context, for all layers
                               and kinds of state; 0 before the first evaluation, and if its params had a cb_eval */
    uint64_t n_imported;    /* tokens that token_trie_stream_import_prefix copied */
    uint64_t n_closed;      /* spans that max_span ended */
    int32_t ending;         /* enum token_trie_ending, of this span */
    uint64_t n_on_device;   /* forward passes whose branch point was decided from data gathered on the device */
    uint64_t n_states_max;  /* states that the context has at most; 0: the model has none */
    uint64_t state_bytes;   /* memory of each */
};

/*
 * Opens a stream on a model, with its own contexts. The model and params->adapters must outlive the stream.
 * *context_params are copied. Their n_ctx is the largest number of tokens that the stream holds, rounded up to a
 * multiple of 256; 0: as many as the model was trained with. Returns NULL on failure, such as for a model that has no
 * tokenizer or does not write one token after another (encoders, encoder-decoders, diffusion models).
 *
 * The stream sets in its copy: no embeddings, causal attention, no samplers on the backend, one cache for all
 * sequences, the number of sequences (up to 64, for BEST and SCORES), a full cache for sliding windows, and a cb_eval.
 * The cb_eval ends a pass before the model's output matrix if at most a sixteenth of the vocabulary is allowed. Only
 * the logits of the allowed tokens are then computed, by llama.cpp's own kernels. With a vocabulary of 262,144 tokens
 * and a small model, this halves the time of the pass. A pass stays whole if the matrix is not in plain memory (for
 * example on a GPU), if the graph continues after the matrix (for example with an adapter for it), and if
 * *context_params already have a cb_eval, which is kept.
 *
 * The context is small at first. When a call needs a larger one, the stream makes it, copies the sequence, and frees
 * the old one. The answers are those of a context of full size. If there is no memory for the larger context, the call
 * fails with TOKEN_TRIE_ERROR_MEMORY, and nothing is lost. For a model with sliding windows, the copy has only the
 * windows at the end of the sequence, so a later prefill that shares less evaluates all its tokens.
 */
TOKEN_TRIE_API struct token_trie_stream * token_trie_stream_open_model(
    struct llama_model * model,
    const struct llama_context_params * context_params,
    const struct token_trie_stream_params * params);

/* The same with a model file. The model belongs to the stream. Returns NULL on failure. */
TOKEN_TRIE_API struct token_trie_stream * token_trie_stream_open_file(const char * gguf_path,
                                                                      const struct token_trie_stream_params * params);

/*
 * Makes a second stream that continues from the state of this one: the same sequence, trie, grammar, positions in both,
 * and random draws. Its counts begin at 0. Close it like any other stream. Either one may be closed first. The caller's
 * model is needed until the last one is closed. Returns NULL on failure.
 *
 * Both streams use the same context. They share the cache of the tokens with which both sequences begin, so a fork
 * evaluates nothing and takes no further memory for the cache. Each may be forked again. n_context_max is for all of
 * them together. If no sequence id is left, the state of an inactive stream is saved as a copy, and restored at its
 * next call. When the context grows, a fork evaluates again what it does not share with the
 * stream that is active.
 *
 * Threads: because of the shared context, a call of a stream is also refused with TOKEN_TRIE_ERROR_BUSY while one of
 * its forks is in a call. token_trie_stream_close waits for such a call, and does not cancel it.
 */
TOKEN_TRIE_API struct token_trie_stream * token_trie_stream_fork(struct token_trie_stream * stream);

/* The vocabulary of the stream's model, for llama_tokenize and the like; NULL on failure. Valid until it is closed. */
TOKEN_TRIE_API const struct llama_vocab * token_trie_stream_get_vocab(struct token_trie_stream * stream);

/*
 * Sets the sequence to these n tokens, and evaluates them. Tokens with which the sequence already begins are kept, and
 * not evaluated again. Grammar and trie start again. On failure, and if cancelled, the sequence is not changed.
 */
TOKEN_TRIE_API int32_t token_trie_stream_prefill(struct token_trie_stream * stream,
                                                 const llama_token * tokens,
                                                 size_t n);

/*
 * Keeps the first n_kept tokens of the sequence, and replaces the rest with these n tokens. This can append tokens,
 * remove tokens from the end, or both; n may be 0. The new tokens are evaluated later, in one batch with those that
 * follow. Trie and grammar start again, as after a prefill. Fails, and does not change the sequence, if n_kept is
 * larger than its length, if a token is outside the vocabulary, or if the result does not fit the context.
 */
TOKEN_TRIE_API int32_t token_trie_stream_splice(struct token_trie_stream * stream,
                                                size_t n_kept,
                                                const llama_token * tokens,
                                                size_t n);

/* Copies up to `capacity` tokens of the sequence, and sets *n to its length. tokens may be NULL if capacity is 0. */
TOKEN_TRIE_API int32_t token_trie_stream_get_tokens(struct token_trie_stream * stream,
                                                    llama_token * tokens,
                                                    size_t capacity,
                                                    size_t * n);

/*
 * Copies the cache of these n tokens from sequence id `sequence` of another context on the same model. A prefill that
 * begins with the tokens then does not evaluate them again. The sequence must hold them at positions 0 to n - 1, and
 * may hold more. They must have been evaluated as this stream would evaluate them, with the same params and adapters.
 * If the stream itself already holds as many of the tokens, the call does nothing. The stream's own sequence does not
 * change; some of it may have to be evaluated again. `from` is only read, but no other thread may compute in it during
 * the call.
 *
 * Costs a copy of everything that the sequence holds, milliseconds for a thousand tokens. Fails with
 * TOKEN_TRIE_ERROR_ARGUMENT for another model, for an invalid sequence id, and if the sizes of the two contexts give
 * the model different RoPE factors (LongRoPE). Fails with TOKEN_TRIE_ERROR_CONTEXT if the caches have different types
 * or layouts (flash attention, unified or not), if the sequence holds fewer tokens, or more than the stream can hold,
 * and, with sliding windows or recurrent states, if it holds more than these n tokens, as the rest cannot be removed.
 * The stream's cache is then as it was.
 */
TOKEN_TRIE_API int32_t token_trie_stream_import_prefix(struct token_trie_stream * stream,
                                                       struct llama_context * from,
                                                       int32_t sequence,
                                                       const llama_token * tokens,
                                                       size_t n);

/*
 * Constrains the following tokens by a grammar in llama.cpp's GBNF. gbnf NULL removes the grammar. root is the rule to
 * begin with; NULL: "root". While a trie is set, it replaces the grammar. When the trie is removed, the grammar
 * continues after the tokens of the trie. If these do not fit the grammar, generate fails with
 * TOKEN_TRIE_ERROR_GRAMMAR. If a grammar does not parse, llama.cpp prints the reason to stderr.
 */
TOKEN_TRIE_API int32_t token_trie_stream_set_grammar(struct token_trie_stream * stream,
                                                     const char * gbnf,
                                                     const char * root);

/*
 * Constrains the following tokens by the trie of a set, from its root. On failure the previous trie stays.
 *
 * params  NULL: all members of the set, with TOKEN_TRIE_GREEDY and TOKEN_TRIE_END
 *
 * With TOKEN_TRIE_END, the span ends after a member, and generate returns. The next generate begins a new span.
 * End-of-generation tokens that end a span are not passed on, and are not put into the sequence. With
 * TOKEN_TRIE_RELEASE, generate continues with free text after the member.
 */
TOKEN_TRIE_API int32_t token_trie_stream_set_token_trie(struct token_trie_stream * stream,
                                                        const struct token_trie_set * set,
                                                        const struct token_trie_params * params);

/* Removes the trie, if one is set. */
TOKEN_TRIE_API int32_t token_trie_stream_clear_token_trie(struct token_trie_stream * stream);

/*
 * Sets how the following tokens are drawn: in free text, and under a trie in sampled mode. The random draws restart
 * with its seed, or go on with TOKEN_TRIE_SEED_KEEP. NULL: the defaults, which take the best token.
 */
TOKEN_TRIE_API int32_t token_trie_stream_set_sampling(struct token_trie_stream * stream,
                                                      const struct token_trie_sampling * sampling);

/*
 * Generates at most max_tokens tokens, which must not be negative. Each is passed to on_token together with user.
 * on_token may be NULL.
 *
 * Returns TOKEN_TRIE_OK for every way to stop; token_trie_stream_get_state reports which. After a failure, the tokens
 * passed on so far are in the sequence, and the next call continues after them. Costs one forward pass for each branch
 * point and each token of free text, except for the first one after a prefill.
 */
TOKEN_TRIE_API int32_t token_trie_stream_generate(struct token_trie_stream * stream,
                                                  int32_t max_tokens,
                                                  token_trie_on_token on_token,
                                                  void * user);

/*
 * The same, until one of the stop strings has been generated. It may begin and end anywhere in a token. It is then
 * removed from the sequence again. If one token completes several, the one that begins first counts. The token that
 * completes it is not passed on, but earlier tokens with its beginning have been. Under a trie with start_after, the
 * text is what comes before the span: where the span begins, the call ends with TOKEN_TRIE_STOP_COMPLETE, also if the
 * tokens of start_after spell a stop string.
 *
 * stop_string  NULL, or set to the index of the stop string that was found, -1 if none was
 *
 * A stop string may begin inside a token. The text before it in that token is then tokenized again, as text inside a
 * text, and may take more tokens than before. If max_tokens or the context do not allow as many, the text is cut after
 * the last whole character that fits, and the stop is TOKEN_TRIE_STOP_MAX_TOKENS. If a stop string was found, trie and
 * grammar start again, as after token_trie_stream_splice. Fails if a stop string is empty.
 */
TOKEN_TRIE_API int32_t token_trie_stream_generate_until(struct token_trie_stream * stream,
                                                        int32_t max_tokens,
                                                        const char * const * stop_strings,
                                                        size_t n_stop_strings,
                                                        token_trie_on_token on_token,
                                                        void * user,
                                                        int32_t * stop_string);

/*
 * The same for one token and without a callback, for hosts to which C cannot easily call back:
 *
 *     struct token_trie_token token = {sizeof token};
 *     int32_t stop = TOKEN_TRIE_STOP_MAX_TOKENS;
 *     while (stop == TOKEN_TRIE_STOP_MAX_TOKENS && token_trie_stream_next(stream, &token, &stop) == 0) {
 *         fwrite(token.text, 1, token.text_len, stdout);
 *     }
 *
 * Set token->size to sizeof(struct token_trie_token) before the call. If there is no token, its id is -1 and its text
 * "". *stop is TOKEN_TRIE_STOP_MAX_TOKENS as long as more tokens can follow, and otherwise the reason why none can. The
 * last token may be returned together with that reason. The text is valid until the next call of the stream, or until
 * the stream is closed. On failure nothing is written.
 */
TOKEN_TRIE_API int32_t token_trie_stream_next(struct token_trie_stream * stream,
                                              struct token_trie_token * token,
                                              int32_t * stop);

/*
 * Answers a query after the stream's sequence.
 *
 * tokens  BEST, SCORES: answer after these n_tokens tokens instead; NULL: after the sequence
 * answer  set to the answer, which the caller owns (token_trie_answer_free); NULL on failure
 *
 * GREEDY, SAMPLED and TEXT append the tokens of the answer to the sequence; the stream's trie and grammar then start
 * again, as after token_trie_stream_splice. The other modes do not change the stream: not its sequence, cache, span or
 * random draws. On failure, and if cancelled, no mode does.
 *
 * BEST and SCORES evaluate nodes as tree-shaped batches in the context's unified cache, so tokens that members share
 * are evaluated once. With a recurrent or hybrid model, each branch is a fork of the model's state; if there are more
 * branches than the context may have states, some nodes are evaluated again.
 * A hidden state costs nothing if the last token was just evaluated, and otherwise its evaluation. It fails with
 * TOKEN_TRIE_ERROR_CONTEXT for a model whose graph does not end with one matrix product, and if the context params had
 * a cb_eval.
 */
TOKEN_TRIE_API int32_t token_trie_stream_answer(struct token_trie_stream * stream,
                                                const llama_token * tokens,
                                                size_t n_tokens,
                                                const struct token_trie_query * query,
                                                struct token_trie_answer ** answer);

/* Ends a prefill, answer or generate on another thread, within one forward pass. Without one, does nothing. */
TOKEN_TRIE_API void token_trie_stream_cancel(struct token_trie_stream * stream);

/* Fills *state. Refused while another call is in progress. Calls on other threads are never refused because of it. */
TOKEN_TRIE_API int32_t token_trie_stream_get_state(struct token_trie_stream * stream,
                                                   struct token_trie_stream_state * state);

/*
 * Frees the stream; NULL and closed streams are ignored. If another thread is in a call, that call is cancelled,
 * and close waits for it. Several threads may close. After the return, this library does not use the caller's model,
 * which may be freed, and no call of the stream can begin. A close from inside a call (from its callback, or from
 * llama.cpp's log callback on its thread) returns at once: the call is cancelled, and the stream is freed when the call
 * returns. Do not free the model before that. Do not close a stream on a thread that a call of the stream waits for.
 */
TOKEN_TRIE_API void token_trie_stream_close(struct token_trie_stream * stream);

/*
 * Answers many prompts at once, in one context. Tokens with which several prompts begin are evaluated once. The other
 * tokens of all prompts go through the context in full batches. Each prompt is answered as soon as its own results are
 * there:
 *
 *     struct token_trie_batch * batch = token_trie_batch_open(model, &context_params, &params);
 *     for (size_t i = 0; i < n; ++i) {
 *         token_trie_batch_submit(batch, prompts[i], n_tokens[i], &query, &tickets[i]);
 *     }
 *     struct token_trie_answer * answer = NULL;
 *     while (token_trie_batch_next(batch, 0, -1, &answer, NULL) == 0 && answer != NULL) {
 *         struct token_trie_answer_info info = {sizeof info};
 *         token_trie_answer_get_info(answer, &info);
 *         use(info.ticket, info.leaf);
 *         token_trie_answer_free(answer);
 *     }
 *     token_trie_batch_close(batch);
 *
 * A batch has no thread of its own. The threads that wait in token_trie_batch_next do the work: one of them at a time
 * makes the passes, for the prompts of all. Submit, next, cancel and close may be called from any thread at any time.
 * An answer is the same as from a stream, except for llama.cpp's rounding, which depends on the number of rows in a
 * pass and on where a sequence's cells are in the cache.
 */
struct token_trie_batch;

/* Options. Set size to sizeof(struct token_trie_batch_params), and all other members to zero for the defaults. */
struct token_trie_batch_params {
    size_t size;
    int32_t n_parallel; /* number of sequence ids, at least 2. Each prompt uses one. Scores and searches use more, as
                           long as some are free. Of a model with states (recurrent or hybrid), a prompt has two of
                           twice as many. 0: the maximum, which is 64, or less if the logits or states of that many
                           are large */
    int32_t n_batch;    /* the largest number of tokens in a pass; 0: 256. Never more than the context's n_ubatch */
    struct llama_adapter_lora * const * adapters; /* adapters of the context; must outlive the batch */
    const float * adapter_scales;                 /* one for each adapter; NULL: 1 */
    size_t n_adapters;
    int32_t n_chunk; /* for callers that wait for each answer: a prompt with more new tokens than this is long, and
                        short prompts go first. In a pass of their own, all long prompts together get as many rows as
                        take the time of n_chunk / 2 rows at the beginning of a prompt; in a pass with other rows, a
                        quarter of that; after 32 passes without a short prompt, whole passes. An eighth of the context
                        is reserved for short prompts. Values above n_batch count as n_batch. 0: no limit, which takes
                        the least time in total */
    uint64_t max_state_bytes; /* as in token_trie_stream_params */
    int32_t n_ctx_first;      /* tokens that the context holds at first; above the context's n_ctx: as many as that. 0:
                                 all of them, and the context does not grow */
};

/*
 * Opens a batch on a model, with its own context. context_params->n_ctx is the number of tokens that all prompts in
 * progress and their answers can hold together; a shared beginning counts once. Memory for params->n_ctx_first of them
 * is allocated now. When prompts need more, the batch makes a larger context, copies all that the old one holds, and
 * frees it. If there is no memory for that, they wait as in a full context, and a prompt that does not fit alone gets
 * TOKEN_TRIE_ERROR_MEMORY. Model and adapters must outlive the batch. Returns NULL on failure.
 */
TOKEN_TRIE_API struct token_trie_batch * token_trie_batch_open(struct llama_model * model,
                                                               const struct llama_context_params * context_params,
                                                               const struct token_trie_batch_params * params);

/*
 * Adds a prompt to those that wait, and sets *ticket to its number, from 1 on. Fails at once if the prompt cannot be
 * answered: its tokens or its set do not fit the vocabulary, or prompt and answer do not fit the context. Each
 * submitted prompt gets an answer. If memory runs out later, the answer has the status TOKEN_TRIE_ERROR_MEMORY.
 */
TOKEN_TRIE_API int32_t token_trie_batch_submit(struct token_trie_batch * batch,
                                               const llama_token * tokens,
                                               size_t n_tokens,
                                               const struct token_trie_query * query,
                                               int64_t * ticket);

/*
 * Waits for the answer to a ticket, and takes it. Ticket 0 takes the first answer that is ready. Several threads may
 * wait, each for its own answer.
 *
 * timeout_ms  the longest wait, without the time of a pass that this thread makes; 0: only looks; negative: no limit
 * answer      set to the answer, which the caller owns (token_trie_answer_free); NULL: no prompt is waiting or
 *             in progress, the time is over, or failure
 * is_pending  NULL, or set: true if there is no answer yet, but will be
 *
 * Returns TOKEN_TRIE_OK also if the prompt failed: the info of its answer has the status. Fails with
 * TOKEN_TRIE_ERROR_MEMORY if there is no memory for the answer, which can then still be taken; with
 * TOKEN_TRIE_ERROR_ARGUMENT for a ticket that was never given, or whose answer was taken; with
 * TOKEN_TRIE_ERROR_CANCELLED if the batch is closed meanwhile; and with TOKEN_TRIE_ERROR_BUSY from llama.cpp's log
 * callback on the thread that makes a pass.
 */
TOKEN_TRIE_API int32_t token_trie_batch_next(struct token_trie_batch * batch,
                                             int64_t ticket,
                                             int32_t timeout_ms,
                                             struct token_trie_answer ** answer,
                                             bool * is_pending);

/*
 * Copies up to `capacity` of the tokens that a TEXT has generated so far, beginning with index `from`. *n is set to the
 * number of copied tokens, which is 0 for other modes, and if there are no more yet.
 *
 * The answer may have fewer tokens: when a stop string is found, its beginning and what follows are removed. Fails with
 * TOKEN_TRIE_ERROR_ARGUMENT for a ticket that was never given, or whose answer was taken.
 */
TOKEN_TRIE_API int32_t token_trie_batch_get_tokens(
    struct token_trie_batch * batch, int64_t ticket, size_t from, llama_token * tokens, size_t capacity, size_t * n);

/* Ends a prompt; the status of its answer is TOKEN_TRIE_ERROR_CANCELLED. An answer that is ready is kept. */
TOKEN_TRIE_API void token_trie_batch_cancel(struct token_trie_batch * batch, int64_t ticket);

/*
 * Frees the batch and its context; NULL and closed batches are ignored. A pass or submit in progress ends first.
 * Answers that were not taken are lost, and token_trie_batch_next fails on the threads that wait in it. A close from
 * inside a pass or a submit (from llama.cpp's log callback on its thread) returns at once, and the context is freed
 * when that ends.
 */
TOKEN_TRIE_API void token_trie_batch_close(struct token_trie_batch * batch);

/* Fills *stats with the counts of the process-wide cache of tries. */
TOKEN_TRIE_API int32_t token_trie_cache_get_stats(struct token_trie_cache_stats * stats);

/* Empties the cache. A trie in use stays with its users. */
TOKEN_TRIE_API void token_trie_cache_clear(void);

/*
 * Tells whether the llama.cpp loaded in this process is the one that this library was compiled against, by its ggml's
 * version and commit and the sizes of its structs: TOKEN_TRIE_OK, or TOKEN_TRIE_ERROR_LLAMA with the difference in the
 * message. The samplers of this library work in both cases.
 */
TOKEN_TRIE_API int32_t token_trie_check_llama(void);

/*
 * The message of the last failure on this thread, "" if none. Valid until the next failure on this thread. Never NULL.
 * At most 1023 bytes.
 */
TOKEN_TRIE_API const char * token_trie_last_error(void);

/* The enum token_trie_status of that failure, for functions that return a pointer; TOKEN_TRIE_OK if none. */
TOKEN_TRIE_API int32_t token_trie_last_status(void);

/* This library's version, as in "1.0.0". Never NULL. */
TOKEN_TRIE_API const char * token_trie_version(void);

#ifdef __cplusplus
}
#endif

#endif /* TOKEN_TRIE_H */
