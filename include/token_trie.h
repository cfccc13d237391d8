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
 * and the bytes of its text (numbers as 32-bit little-endian); where present, any other vocabulary is refused. What a
 * token is for (control, end of generation) is no part of it, as sequences mean the same whatever it is: a payload made
 * with a base model fits the models tuned from it, and every release of llama.cpp.
 *
 * Members may also be given as texts, which any tokens may spell:
 *
 *     {"descriptors": [{"tokenization": "any", "leaves": [{"name": "yes", "text": " yes"},
 *                                                         {"name": "no", "text": " no"}]}]}
 *
 * In place of the tree there is then a graph, made for the vocabulary of the model at hand, which is needed, and shared
 * by all that use the payload with a vocabulary whose tokens have the same texts and spell the same; the rest is as
 * above. A text is what follows the prompt, a space before a word included. A token spells what llama_token_to_piece
 * gives without special text, as in llama.cpp's own grammars, but control tokens never spell anything. "tokenization"
 * is "canonical" where it is left out; descriptors of both kinds do not make one set. A vocabulary is prepared once a
 * process (tenths of a second for 262,144 tokens); each sampler made from such a payload looks through its tokens again
 * (hundredths of one), a stream once.
 *
 * Limits: 1 GiB a payload, 64 levels of nesting, 65,535 bytes a name or text, 65,535 tokens a leaf, 2^32 - 2 nodes;
 * texts of 2^28 bytes together, and 2^27 edges of their graph.
 *
 * Errors: a function that fails returns NULL or a negative enum token_trie_status, changes nothing, and leaves a
 * message for token_trie_last_error() of the calling thread. Nothing here throws, prints, or ends the process, but
 * llama.cpp underneath does: it logs (llama_log_set), prints what is wrong with a grammar, and ends the process where
 * memory runs out, where a context or model is freed or used elsewhere while a stream is open on it, and where a
 * sampler chain is set on a backend that has been set on one before. A model file is trusted as llama.cpp trusts it.
 *
 * Threads: a sampler is used by one thread at a time, as everywhere in llama.cpp, and so is a matcher. All else may be
 * called from any; a stream that is in a call refuses another with TOKEN_TRIE_ERROR_BUSY, token_trie_stream_cancel,
 * _close and _get_vocab excepted. Calls from llama.cpp's log callback are calls like others; where it runs on the
 * thread that is in a call of a stream, that stream refuses them too, and a close frees it when that call returns.
 *
 * Strings are UTF-8 and end in NUL unless a length goes with them; lengths are in bytes.
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
    TOKEN_TRIE_ERROR_PAYLOAD = -2,   /* the payload is not what this header describes */
    TOKEN_TRIE_ERROR_VOCAB = -3,     /* the tokens do not fit the vocabulary, or a text cannot be spelled in it */
    TOKEN_TRIE_ERROR_LIMIT = -4,     /* larger than the limits above */
    TOKEN_TRIE_ERROR_LLAMA = -5,     /* another llama.cpp is loaded than the one compiled against */
    TOKEN_TRIE_ERROR_MEMORY = -6,    /* out of memory */
    TOKEN_TRIE_ERROR_INTERNAL = -7,  /* a defect in this library; please report it */
    TOKEN_TRIE_ERROR_CONTEXT = -8,   /* the context is full, or llama_decode failed */
    TOKEN_TRIE_ERROR_CANCELLED = -9, /* a prefill, score or search was cancelled */
    TOKEN_TRIE_ERROR_GRAMMAR = -10,  /* a grammar does not parse, or does not fit the text so far */
    TOKEN_TRIE_ERROR_BUSY = -11      /* the stream is in a call already, or its context in another stream */
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
    const char * path;              /* only the payload's descriptors of this path; NULL for all of them as one set */
    const llama_token * end_tokens; /* END, RESTART: tokens that end the span; NULL for the vocabulary's own */
    size_t n_end_tokens;
    const llama_token * separator; /* RESTART: tokens between two members; NULL for none */
    size_t n_separator;
    int32_t max_items; /* RESTART: members in the list at most, 0 for no limit; behind the last one an end token,
                          or where there are none (null vocab), anything as after RELEASE */
    int32_t reserved;  /* not read */
    int32_t min_items; /* RESTART: members in the list at least; no end token before */
    int32_t unique;    /* RESTART: not 0: no member twice, nor what only leads to those that have been; behind the last
                          one that there is, the list ends as behind max_items. A text is one member in all its
                          spellings. A step costs no more for it, a finished member a copy of what is out so far */
    const char * const * exclude; /* names of members that are out from the beginning; NULL for none. Costs a pass over
                                     the set */
    size_t n_exclude;
    const llama_token * start_after; /* the span begins behind this sequence of tokens, wherever it comes; until then
                                        any token is free, save the vocabulary's end-of-generation tokens (with a null
                                        vocab: end_tokens) that are no part of it; NULL to begin at once */
    size_t n_start_after;
    int32_t max_before; /* with start_after: free tokens at most, beginnings of it included; what is missing of it then
                           is forced. 0: all of it at once; negative: no limit */
    int32_t max_span;   /* RESTART: tokens, from the beginning of the span, after which the member under way is the last
                           one, min_items permitting: a span that was forgotten open ends, with a warning to llama.cpp's
                           log. 0: 500; negative: no limit. A list without end tokens is not ended so */
};

/* Where a sampler stands. */
enum token_trie_state {
    TOKEN_TRIE_WALKING = 0,  /* inside the set: the next token is constrained */
    TOKEN_TRIE_COMPLETE = 1, /* ended as it should: released, or an end token was accepted */
    TOKEN_TRIE_ESCAPED = 2,  /* a token outside the allowed set was accepted; no constraint since */
    TOKEN_TRIE_THINKING = 3  /* before start_after */
};

/* Why a span is over behind the member finished last; known as soon as nothing but its end may come. */
enum token_trie_ending {
    TOKEN_TRIE_ENDING_NONE = 0,      /* it is not: a member may go on or begin; or the span was escaped from */
    TOKEN_TRIE_ENDING_TOKEN = 1,     /* what ends it came; under END and RELEASE also where nothing else may come */
    TOKEN_TRIE_ENDING_MAX_ITEMS = 2, /* RESTART: there are max_items members */
    TOKEN_TRIE_ENDING_NONE_LEFT = 3, /* RESTART, unique: all members there are have been */
    TOKEN_TRIE_ENDING_MAX_SPAN = 4   /* RESTART: it had become as long as max_span */
};

/* Set size to sizeof(struct token_trie_sampler_state) before the call. */
struct token_trie_sampler_state {
    size_t size;
    int32_t state;          /* enum token_trie_state */
    int32_t n_items;        /* members finished so far */
    const char * leaf_name; /* the member finished last, NULL while another is under way and for one without a name;
                               valid until the sampler is freed */
    int64_t leaf;           /* its index in the set, -1 if none */
    uint64_t n_escaped;     /* accepts of a token outside the allowed set */
    uint64_t n_restored;    /* applies where upstream samplers had cut every allowed token away */
    uint64_t n_closed;      /* spans that max_span ended */
    int32_t ending;         /* enum token_trie_ending */
    uint64_t n_applied;     /* applies in all, which is: on the host */
    uint64_t n_in_graph;    /* batches for which the constraint was put into the compute graph instead */
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
 * A set: what answers may be, read once and used by any number of samplers, matchers, streams and batches, which share
 * it. It never changes and may be used by any threads. Handles to it are counted: whoever has one frees it, in any
 * order, and what was made with a set does not need its handle.
 *
 *     struct token_trie_set * set = token_trie_set_read(vocab, 0, json, strlen(json));
 *     struct token_trie_params params = {sizeof params, .on_complete = TOKEN_TRIE_END, .path = "action"};
 *     token_trie_stream_set_token_trie_ext(stream, set, &params);
 *     token_trie_set_free(set);
 *
 * Where a set is used, tokens and fingerprint are compared with the vocabulary there.
 */
struct token_trie_set;

/*
 * Reads all of a payload: each path is a set to be used by params.path, and all together are one.
 *
 * vocab    the model's, for texts in any tokenization; NULL where there are none
 * n_vocab  refuses tokens from n_vocab on; 0 for vocab's number, or with a null vocab for no such check
 *
 * Returns a handle that the caller owns, NULL on failure. Tries come from the cache and go there, one a path.
 */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_read(const struct llama_vocab * vocab,
                                                           int32_t n_vocab,
                                                           const char * payload_json,
                                                           size_t payload_len);

/*
 * Makes a set of token sequences: member i is tokens[offsets[i]] up to tokens[offsets[i + 1]], of n_members. What a
 * payload's leaves are told above holds for them.
 *
 * offsets      n_members + 1 of them, ascending from 0
 * names        one a member; NULL: its position, "0", "1", ...
 * fingerprint  of the vocabulary, as a payload's "vocab"; NULL if it is not known
 */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_from_tokens(const llama_token * tokens,
                                                                  const uint64_t * offsets,
                                                                  size_t n_members,
                                                                  const char * const * names,
                                                                  const char * fingerprint);

/*
 * Makes a set of texts, which are their names too. Each begins where the vocabulary's tokenizer has it begin alone: a
 * space before a word is part of the text.
 *
 * any  false: the tokens that the tokenizer makes of a text; true: any tokens that spell it
 */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_from_texts(const struct llama_vocab * vocab,
                                                                 const char * const * texts,
                                                                 size_t n_texts,
                                                                 bool any);

/* The set of one path of a payload, as a handle of its own that the caller owns too. NULL on failure. */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_select(const struct token_trie_set * set, const char * path);

/*
 * Opens a set in a file, which `token-trie build` or TokenTrie.save in Python wrote: mapped, read-only, shared with all
 * who map it, in milliseconds whatever its size. The file may be replaced or deleted meanwhile, but not be written
 * into. What is no such file is refused by name; damage that only its checksums tell makes answers wrong, but no call
 * leaves the file.
 */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_open(const char * path);

/*
 * Some of a set's members, without building another: member i is left if keep[i] is not 0, of n_members, which is the
 * set's own number of them. Those left keep their indices, so that n_members stays, and n_left of struct
 * token_trie_set_info tells how many they are; those of a filtered set that are out stay out. keep is copied, a bit a
 * member. Refused for texts in any tokenization, and where none is left.
 */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_filter(const struct token_trie_set * set,
                                                             const unsigned char * keep,
                                                             size_t n_members);

/* Counts one handle more, which is the same pointer; NULL gives NULL. */
TOKEN_TRIE_API struct token_trie_set * token_trie_set_retain(struct token_trie_set * set);

/* Gives a handle back; the set goes with the last, and with what uses it. NULL is ignored. */
TOKEN_TRIE_API void token_trie_set_free(const struct token_trie_set * set);

/* What a set has, all paths together. Set size to sizeof(struct token_trie_set_info) before the call. */
struct token_trie_set_info {
    size_t size;
    uint64_t n_members;  /* filtered out or not: indices are below it */
    uint64_t n_nodes;    /* the root included */
    uint64_t max_tokens; /* of the longest member, in its longest spelling */
    uint64_t n_bytes;    /* of memory, names included */
    uint64_t n_paths;    /* 0 where it was not read from a payload */
    int32_t any;         /* not 0: members are texts, in any tokenization */
    uint64_t n_left;     /* of n_members, those that are not filtered out */
};

/* Fills *info. Fails where descriptors of tokens and of texts do not make one set, and a path is to be selected. */
TOKEN_TRIE_API int32_t token_trie_set_get_info(const struct token_trie_set * set, struct token_trie_set_info * info);

/* The path number i, in byte order, valid as long as the set; NULL on failure. */
TOKEN_TRIE_API const char * token_trie_set_get_path(const struct token_trie_set * set, size_t i);

/*
 * Member i's name into *name, which may be NULL: NULL if it has none of its own, else valid as long as the set; and up
 * to `capacity` of its tokens, of which *n tells how many there are; in any tokenization, those of a shortest spelling.
 * Fails for an index from the set's n_members on, and for a member that is filtered out.
 */
TOKEN_TRIE_API int32_t token_trie_set_get_member(
    const struct token_trie_set * set, size_t i, const char ** name, llama_token * tokens, size_t capacity, size_t * n);

/*
 * Makes a sampler from a payload, with the defaults of struct token_trie_params: on completion, release.
 *
 * vocab                 the model's; NULL for no range check and no end-of-generation tokens, and no texts
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
 * The same with a set and every option. With TOKEN_TRIE_END and TOKEN_TRIE_RESTART and no
 * end_tokens, the vocabulary is scanned for its end-of-generation tokens (a millisecond or two for 262,144 tokens).
 */
TOKEN_TRIE_API struct llama_sampler * llama_sampler_init_token_trie_ext(const struct llama_vocab * vocab,
                                                                        const struct token_trie_set * set,
                                                                        const struct token_trie_params * params);

/*
 * Makes what lets a trie sampler be part of the compute graph, where the logits are, and be followed by nothing but the
 * token's 4 bytes. It goes to the end of the trie's chain, which is set on the backend:
 *
 *     struct llama_sampler * tail = llama_sampler_init_token_trie_tail(trie, vocab);
 *     llama_sampler_chain_add(chain, trie);
 *     llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));  // not in greedy mode, where the trie selects
 *     llama_sampler_chain_add(chain, tail);
 *     llama_set_sampler(ctx, 0, chain);                               // before the prompt is decoded
 *     llama_sampler_sample(chain, ctx, -1);                           // as ever; the trie's apply is not called
 *
 * trie   a sampler made here, which has no tail
 * vocab  the model's
 *
 * Of equal logits, and where one is NaN, the backend's argmax decides; temp, top_p, min_p and dist draw what they draw
 * on the host, and llama.cpp's top_k, which does not sort there, other members of the set. Where nothing has selected,
 * the tail takes the best candidate. Without a tail, a trie stays on the host.
 *
 * It stays there with its tail, and answers the same, where the device lacks an operation, where another llama.cpp is
 * loaded than the one compiled against or one without these callbacks, where a sampler before it in the chain stays
 * there, where the context has n_outputs_max_per_seq other than 1, as there is one output of a sequence in a batch, and
 * where the span has start_after.
 * token_trie_sampler_get_state tells. A trie is part of one graph in its life; in a second chain it stays on the host,
 * and so do clones.
 *
 * llama.cpp ends the process where a chain is set a second time, also for another sequence, where a sampler stands
 * behind the tail, and where one that truncates stands before a trie made with another model's vocab. It uses what has
 * been freed where a chain that is set, or a member of it, is freed before the context or before the chain is replaced.
 *
 * Returns a sampler that the caller owns, NULL on failure.
 */
TOKEN_TRIE_API struct llama_sampler * llama_sampler_init_token_trie_tail(struct llama_sampler * trie,
                                                                         const struct llama_vocab * vocab);

/*
 * Fills *state with where a sampler stands. The sampler must be one made here, not the chain it was added to.
 */
TOKEN_TRIE_API int32_t token_trie_sampler_get_state(const struct llama_sampler * sampler,
                                                    struct token_trie_sampler_state * state);

/*
 * A matcher is for a host that has logits of its own, from whatever engine: it tells what of a set is legal next, as a
 * mask of a bit a token or as a list, and takes tokens in and back.
 *
 *     struct token_trie_params params = {sizeof params, .on_complete = TOKEN_TRIE_END, .end_tokens = &eos,
 *                                        .n_end_tokens = 1};
 *     struct token_trie_matcher * matcher = token_trie_matcher_init(NULL, n_vocab, json, strlen(json), &params);
 *     const struct token_trie_matcher * one = matcher;
 *     token_trie_matcher_fill_masks(&one, 1, NULL, mask, 1, (n_vocab + 31) / 32, NULL);
 *     ...                                                      // what the mask leaves out gets no probability
 *     token_trie_matcher_accept(matcher, token, &accepted);
 *     token_trie_matcher_free(matcher);
 *
 * A token that is not allowed is not accepted, and the matcher stays where it is. When an end token was accepted the
 * matcher is terminated, and from then on end tokens alone are legal. Where a span ends without one
 * (TOKEN_TRIE_RELEASE, a list without end tokens) every token is legal from then on.
 */
struct token_trie_matcher;

/*
 * Makes a matcher at the beginning of a set.
 *
 * vocab    the model's, for its end-of-generation tokens and the fingerprint; may be NULL: no llama.cpp model is needed
 * n_vocab  tokens of the vocabulary, which is what a row of a mask has bits for; with a vocab, 0 for its own number, or
 *          more where the logits are padded
 * params   as of a sampler; mode is not of use
 *
 * Returns a matcher that the caller owns (token_trie_matcher_free), NULL on failure. vocab is not used later.
 */
TOKEN_TRIE_API struct token_trie_matcher * token_trie_matcher_init(const struct llama_vocab * vocab,
                                                                   int32_t n_vocab,
                                                                   const struct token_trie_set * set,
                                                                   const struct token_trie_params * params);

/* Another matcher where this one stands, which the caller owns too. The set is shared. NULL on failure. */
TOKEN_TRIE_API struct token_trie_matcher * token_trie_matcher_clone(const struct token_trie_matcher * matcher);

/* Frees a matcher; NULL is ignored. */
TOKEN_TRIE_API void token_trie_matcher_free(struct token_trie_matcher * matcher);

/* Back to the beginning. */
TOKEN_TRIE_API int32_t token_trie_matcher_reset(struct token_trie_matcher * matcher);

/*
 * Steps over a token; *accepted tells whether it was allowed. Fails with TOKEN_TRIE_ERROR_VOCAB for a token outside the
 * vocabulary, and with TOKEN_TRIE_ERROR_ARGUMENT for one that is no end token on a terminated matcher.
 */
TOKEN_TRIE_API int32_t token_trie_matcher_accept(struct token_trie_matcher * matcher,
                                                 llama_token token,
                                                 bool * accepted);

/*
 * Steps over n tokens up to the first that is not allowed; *n_accepted tells how many these were. Fails, and takes
 * none, with TOKEN_TRIE_ERROR_VOCAB where any of them is outside the vocabulary.
 */
TOKEN_TRIE_API int32_t token_trie_matcher_accept_tokens(struct token_trie_matcher * matcher,
                                                        const llama_token * tokens,
                                                        size_t n,
                                                        size_t * n_accepted);

/*
 * Takes back the last n tokens accepted, be they all; fails with TOKEN_TRIE_ERROR_ARGUMENT where there are fewer. Costs
 * at most 255 tokens accepted again.
 */
TOKEN_TRIE_API int32_t token_trie_matcher_rollback(struct token_trie_matcher * matcher, size_t n);

/* Tells whether an end token was accepted. */
TOKEN_TRIE_API int32_t token_trie_matcher_is_terminated(const struct token_trie_matcher * matcher,
                                                        bool * is_terminated);

/*
 * Fills a row of bits for each of n matchers: token t is bit t % 32 of word t / 32, 1 where it is legal. Bits beyond
 * the vocabulary mean nothing.
 *
 * rows       the row that each one fills; NULL for the row of its number
 * masks      n_rows rows of n_words words, one behind the other; rows that no matcher fills are left alone
 * n_words    (n_vocab + 31) / 32 of every matcher
 * is_needed  NULL, or set for each matcher: false where every token is legal, so that its row need not be applied
 *
 * Costs the writing of the rows and a step for each legal token. On failure nothing is written.
 */
TOKEN_TRIE_API int32_t token_trie_matcher_fill_masks(const struct token_trie_matcher * const * matchers,
                                                     size_t n,
                                                     const size_t * rows,
                                                     int32_t * masks,
                                                     size_t n_rows,
                                                     size_t n_words,
                                                     bool * is_needed);

/* Copies up to `capacity` of the tokens that are legal next, ascending, and tells in *n how many there are. */
TOKEN_TRIE_API int32_t token_trie_matcher_get_allowed(const struct token_trie_matcher * matcher,
                                                      llama_token * tokens,
                                                      size_t capacity,
                                                      size_t * n);

/*
 * Copies up to `capacity` tokens that have to come next, each the only legal one behind those before it, and tells in
 * *n how many were copied. An end token is not among them. Changes nothing; costs a step a token.
 */
TOKEN_TRIE_API int32_t token_trie_matcher_get_forced(const struct token_trie_matcher * matcher,
                                                     llama_token * tokens,
                                                     size_t capacity,
                                                     size_t * n);

/*
 * A stream generates text token by token on a context of its own, under a trie, under a grammar, or free.
 *
 *     struct token_trie_stream_params params = {sizeof params};
 *     struct token_trie_stream * stream = token_trie_stream_open_file("model.gguf", &params);
 *     token_trie_stream_prefill(stream, tokens, n_tokens);
 *     token_trie_stream_set_token_trie(stream, json, strlen(json), TOKEN_TRIE_GREEDY);
 *     token_trie_stream_generate(stream, 32, 0.0f, 1.0f, on_token, NULL);   // an action
 *     token_trie_stream_clear_token_trie(stream);
 *     token_trie_stream_generate(stream, 100, 0.7f, 0.95f, on_token, NULL); // free text after it
 *     token_trie_stream_close(stream);
 *
 * Forced tokens, the only ones allowed where they stand, are never sampled and never evaluated alone. They are passed
 * on at once and evaluated in one batch with the next branch point's; after the last branch point nothing is evaluated
 * until a later call needs it. So a decision costs as many forward passes as it has branch points after its first
 * token's, and a pass whose branch point allows few tokens is cut short: see token_trie_stream_context_params.
 *
 * A closed or null stream is refused with TOKEN_TRIE_ERROR_ARGUMENT.
 */
struct token_trie_stream;

/*
 * Where a stream with contexts of its own chooses under a trie. Inside the compute graph, where the logits are, the
 * best token and its probability leave the device, 8 bytes; where it is drawn, or penalties are on, the logits of the
 * allowed tokens, their number rounded up to a power of 2, if that is at most a sixteenth of the vocabulary. Whatever
 * else a stream does, free text, scores and searches among it, fetches whole rows. Tokens are the same, as far
 * as the backend's argmax takes the first of equals; logprob is computed in floats.
 *
 * It stays on the host, and state.n_on_device tells, where llama.cpp has no samplers inside the graph, of a model that
 * is not attention alone, of params with one sequence id, and on a caller's context (token_trie_stream_open).
 */
enum token_trie_device_sampling {
    TOKEN_TRIE_DEVICE_AUTO = 0, /* where the model's last layer is on a device; not where its params had a cb_eval */
    TOKEN_TRIE_DEVICE_ON = 1,   /* on any backend, the CPU's included */
    TOKEN_TRIE_DEVICE_OFF = 2
};

/* Set size to sizeof(struct token_trie_stream_params) and the rest to zero for the defaults. */
struct token_trie_stream_params {
    size_t size;
    /* token_trie_stream_open_file alone: */
    int32_t n_ctx;        /* tokens; 0: as many as the model was trained with, and at most 16 times as many */
    int32_t n_batch;      /* tokens evaluated at once; 0: llama.cpp's default */
    int32_t n_threads;    /* 0: llama.cpp's default; at most GGML_MAX_N_THREADS */
    int32_t n_gpu_layers; /* layers on a GPU; negative: all of them */
    /* sampling, beside what token_trie_stream_generate takes: */
    uint32_t seed;          /* the same seed draws the same tokens; 0xFFFFFFFF: another each time */
    int32_t top_k;          /* 0: off */
    float min_p;            /* 0: off */
    int32_t penalty_last_n; /* generated tokens that the penalties look back on; 0: off */
    float penalty_repeat;   /* 0 or 1: off */
    float penalty_freq;     /* 0: off */
    float penalty_present;  /* 0: off */
    int32_t
        step_by_step; /* not 0: evaluate every token alone, forced ones too, and whole. Slower; on quantized models,
                         whose logits change a little with the size of a batch, bit-exact to other one-token loops */
    /* token_trie_stream_open_model alone: the adapters that every context it makes gets; to outlive the stream */
    struct llama_adapter_lora * const * adapters;
    const float * adapter_scales; /* one an adapter; NULL: 1 */
    size_t n_adapters;
    int32_t device_sampling; /* enum token_trie_device_sampling */
};

/* A token passed on by token_trie_stream_generate, valid during the callback, or by token_trie_stream_next. */
struct token_trie_token {
    size_t size;
    llama_token id;    /* -1: none */
    int32_t forced;    /* 1: the only token allowed here; 0: chosen */
    float logprob;     /* natural logarithm of its share among the allowed tokens, by the model's own logits;
                          0 if forced, NaN in free text */
    size_t text_len;   /* bytes */
    const char * text; /* whole UTF-8 characters: what this token completes, "" if it ends inside a character */
};

/*
 * Returns whether to go on. Must not throw. Of the stream it may call token_trie_stream_cancel and
 * token_trie_stream_close; other calls are refused.
 */
typedef bool (*token_trie_on_token)(const struct token_trie_token * token, void * user);

/* Why token_trie_stream_generate returned. */
enum token_trie_stop {
    TOKEN_TRIE_STOP_NONE = 0,       /* it never did, or by an error */
    TOKEN_TRIE_STOP_MAX_TOKENS = 1, /* max_tokens are out */
    TOKEN_TRIE_STOP_COMPLETE = 2,   /* the span is complete */
    TOKEN_TRIE_STOP_END = 3,        /* free text ended in an end-of-generation token */
    TOKEN_TRIE_STOP_CALLBACK = 4,   /* the callback returned false */
    TOKEN_TRIE_STOP_CANCELLED = 5,  /* token_trie_stream_cancel */
    TOKEN_TRIE_STOP_STRING = 6      /* token_trie_stream_generate_until found one of its texts */
};

/* Where a stream stands. Set size to sizeof(struct token_trie_stream_state) before the call. Counts are since opening.
 */
struct token_trie_stream_state {
    size_t size;
    int32_t stop;    /* enum token_trie_stop */
    int32_t span;    /* enum token_trie_state, -1 without a trie */
    int32_t n_items; /* members finished in this span */
    int64_t leaf;    /* the member finished last, its index in the set; -1 if none */
    const char *
        leaf_name;       /* its name, NULL if none; valid until the trie is replaced or cleared, or the stream closed */
    double logprob;      /* of this span: the sum over its branch points, ends among them */
    uint64_t n_tokens;   /* in the sequence, prompt included */
    uint64_t n_cached;   /* of them evaluated */
    uint64_t n_forced;   /* tokens under a trie that were forced, */
    uint64_t n_branches; /* chosen at a branch point (ends among them), */
    uint64_t n_free;     /* and tokens of free text */
    uint64_t n_passes;   /* forward passes of generate */
    uint64_t decode_ns;  /* time of generate in forward passes, in nanoseconds: llama_decode, and the rows of the output
                            matrix that are multiplied behind it where only a few tokens are allowed */
    uint64_t generate_ns;   /* time of generate in all, callbacks included */
    uint64_t n_context;     /* tokens that the context holds at most; one that the stream made grows */
    uint64_t n_context_max; /* to so many */
    uint64_t cache_bytes;   /* of that context's cache, of all its layers and kinds of state, as llama.cpp has allocated
                               it; 0 until something is evaluated, and where its params had a cb_eval before */
    uint64_t n_imported;    /* tokens of token_trie_stream_import_prefix */
    uint64_t n_closed;      /* spans that max_span ended */
    int32_t ending;         /* enum token_trie_ending, of this span */
    uint64_t n_on_device;   /* forward passes whose branch point was decided by what the device alone had gathered */
};

/*
 * Sets what a stream wants of a context on this model in *params, which come from llama_context_default_params or hold
 * what the caller wants: no embeddings, causal attention, no samplers on the backend, one cache for all sequences and
 * up to 64 of these for token_trie_stream_score, a whole cache for sliding windows, and a cb_eval. Through that one, a
 * pass ends before the model's output matrix where no more than a sixteenth of the vocabulary is allowed, and only the
 * logits of these tokens are computed, by llama.cpp's kernels. With a vocabulary of 262,144 tokens and a small model
 * that halves the pass. Passes stay whole where the matrix is not in plain memory, as on a GPU, where the graph goes on
 * behind it, as under an adapter for that matrix, and where *params have a cb_eval already, which stays. Fails, and
 * leaves *params, on a model without a decoder or a tokenizer.
 */
TOKEN_TRIE_API int32_t token_trie_stream_context_params(const struct llama_model * model,
                                                        struct llama_context_params * params);

/*
 * Opens a stream on a context that the caller made for it, which has to outlive it and be left alone until it is
 * closed. One stream a context. Any context of a decoder with a tokenizer will do; the best is one of params that
 * token_trie_stream_context_params has prepared. Returns NULL on failure.
 *
 * The first call that evaluates something empties the context's memory and makes the context a stream's: its attention
 * is causal and it gives no embeddings from then on. Samplers on its backend (llama_set_sampler) keep the logits there
 * and are taken off before each pass, also later ones. Adapters are the caller's to set, between calls, and count from
 * the next pass on, not for tokens that are evaluated already. It holds the tokens of one sequence:
 * llama_n_ctx_seq, where llama.cpp has that, and otherwise llama_n_ctx.
 */
TOKEN_TRIE_API struct token_trie_stream * token_trie_stream_open(struct llama_context * ctx,
                                                                 const struct token_trie_stream_params * params);

/*
 * Opens a stream on a model, with contexts of its own, which token_trie_stream_context_params is applied to. The model
 * and params->adapters have to outlive it. *context_params are copied; their n_ctx is the most that the stream holds, 0
 * for what the model was trained with, rounded up to a multiple of 256. Returns NULL on failure.
 *
 * The context is small at first. Where a call needs a larger one, that is made, the sequence is copied over,
 * and the old one is freed; what is answered is what a context of full size would have answered. A call that finds no
 * memory for it fails with TOKEN_TRIE_ERROR_MEMORY and loses nothing. Of a model with sliding windows, copying keeps
 * the windows at the end of the sequence alone, so that a later prefill which shares less evaluates from the beginning.
 */
TOKEN_TRIE_API struct token_trie_stream * token_trie_stream_open_model(
    struct llama_model * model,
    const struct llama_context_params * context_params,
    const struct token_trie_stream_params * params);

/* The same on a model file, which the stream has for itself. Returns NULL on failure. */
TOKEN_TRIE_API struct token_trie_stream * token_trie_stream_open_file(const char * gguf_path,
                                                                      const struct token_trie_stream_params * params);

/*
 * Makes a second stream that goes on from where this one stands, as this one would: same sequence, trie, grammar, place
 * in both, and draws; its counts begin at 0. Close it like any other, and either of the two first: what they stand on
 * stays until the last is closed, a caller's context and model too. Returns NULL on failure.
 *
 * The two share the context, and the cache of what their sequences begin with alike, which takes nothing to evaluate
 * and no further memory; each may be forked again, and n_context_max is what all of them hold together. Where llama.cpp
 * cannot share (recurrent and hybrid models, a context that is not of token_trie_stream_context_params), the stream
 * that rests is a copy of its state, put back when its turn comes. Where the context grows, a fork evaluates again what
 * it does not share with the stream whose turn it is.
 *
 * Threads: as they share a context, a stream is refused with TOKEN_TRIE_ERROR_BUSY while a fork of it is in a call,
 * too, and token_trie_stream_close waits for such a call, without cancelling it.
 */
TOKEN_TRIE_API struct token_trie_stream * token_trie_stream_fork(struct token_trie_stream * stream);

/* The vocabulary of the stream's model, for llama_tokenize and the like; NULL on failure. Valid until it is closed. */
TOKEN_TRIE_API const struct llama_vocab * token_trie_stream_get_vocab(struct token_trie_stream * stream);

/*
 * Makes the sequence these n tokens and evaluates them; what it begins with of them already is kept and not evaluated
 * again. Grammar and trie start anew. On failure, and when cancelled, the sequence is what it was.
 */
TOKEN_TRIE_API int32_t token_trie_stream_prefill(struct token_trie_stream * stream,
                                                 const llama_token * tokens,
                                                 size_t n);

/*
 * Puts tokens in the place of all behind the first n_kept of the sequence: goes on from it, takes back its end, or
 * both. Nothing is evaluated until what follows is, and then in one batch with it. Trie and grammar begin anew, as
 * after a prefill. Fails with the sequence as it was where n_kept is above its length, a token outside the vocabulary,
 * or the whole too long for the context. n may be 0.
 */
TOKEN_TRIE_API int32_t token_trie_stream_splice(struct token_trie_stream * stream,
                                                size_t n_kept,
                                                const llama_token * tokens,
                                                size_t n);

/* Copies up to `capacity` tokens of the sequence, and tells in *n how many there are. tokens may be NULL for none. */
TOKEN_TRIE_API int32_t token_trie_stream_get_tokens(struct token_trie_stream * stream,
                                                    llama_token * tokens,
                                                    size_t capacity,
                                                    size_t * n);

/*
 * Copies what sequence number `sequence` of another context on the same model holds of these n tokens, so that a
 * prefill that begins with them need not evaluate them. The sequence has to hold them at positions 0 to n - 1,
 * evaluated as the stream would have, under the same params and adapters, and may hold more. Does nothing where the
 * stream holds as many of them itself. Nothing changes but what is evaluated again: the stream's own sequence is what
 * it was, and `from` is only read. Nobody may compute in it during the call.
 *
 * Costs a copy of all that the sequence holds, milliseconds for a thousand tokens. Fails where it cannot be: with
 * TOKEN_TRIE_ERROR_ARGUMENT for another model or sequence, and with TOKEN_TRIE_ERROR_CONTEXT where the caches are of
 * other types or layouts (flash attention, unified or not), where the sequence holds less, or more than the stream
 * can hold, and, of sliding windows and of recurrent states, where it holds more than these n tokens, as these cannot
 * be cut off. The stream's cache is then what it was.
 */
TOKEN_TRIE_API int32_t token_trie_stream_import_prefix(struct token_trie_stream * stream,
                                                       struct llama_context * from,
                                                       int32_t sequence,
                                                       const llama_token * tokens,
                                                       size_t n);

/*
 * Puts what is generated from here on under a grammar, in llama.cpp's GBNF; gbnf NULL for none. root is the rule to
 * begin with, NULL for "root". A trie takes the grammar's place as long as one is set; afterwards the grammar goes on
 * behind the trie's tokens, and generate fails with TOKEN_TRIE_ERROR_GRAMMAR if these do not fit it. Of a grammar that
 * does not parse, llama.cpp prints the reason to stderr.
 */
TOKEN_TRIE_API int32_t token_trie_stream_set_grammar(struct token_trie_stream * stream,
                                                     const char * gbnf,
                                                     const char * root);

/*
 * Puts what is generated from here on under a trie, from its root. On completion the span ends and generate returns
 * (TOKEN_TRIE_END); a further generate begins a new span. End-of-generation tokens that end a span are not passed on
 * and not put into the sequence. On failure the trie before stays.
 */
TOKEN_TRIE_API int32_t token_trie_stream_set_token_trie(struct token_trie_stream * stream,
                                                        const char * payload_json,
                                                        size_t payload_len,
                                                        int mode);

/* The same with a set and every option. Under TOKEN_TRIE_RELEASE, generate goes on with free text behind the member. */
TOKEN_TRIE_API int32_t token_trie_stream_set_token_trie_ext(struct token_trie_stream * stream,
                                                            const struct token_trie_set * set,
                                                            const struct token_trie_params * params);

/* A member that a span has produced. Set size to sizeof(struct token_trie_item) before the call. */
struct token_trie_item {
    size_t size;
    int64_t leaf;           /* its index in the set */
    const char * leaf_name; /* NULL if none; valid until the trie is replaced or cleared, or the stream closed */
    uint64_t begin;         /* the place of its first token in the sequence */
    uint64_t end;           /* and of what is behind its last */
    double logprob;         /* the sum over its branch points */
};

/*
 * Fills *item with member i of this span, of those finished so far, which token_trie_stream_state counts as n_items.
 * The last of them may still go on, and be another one then.
 */
TOKEN_TRIE_API int32_t token_trie_stream_get_item(struct token_trie_stream * stream,
                                                  size_t i,
                                                  struct token_trie_item * item);

/* Takes the trie away, if there is one. */
TOKEN_TRIE_API int32_t token_trie_stream_clear_token_trie(struct token_trie_stream * stream);

/* Begins the stream's draws anew from a seed, as in struct token_trie_stream_params. */
TOKEN_TRIE_API int32_t token_trie_stream_set_seed(struct token_trie_stream * stream, uint32_t seed);

/*
 * Generates at most max_tokens tokens and passes each to on_token, which may be NULL, with user.
 *
 * temperature  0 takes the best token; above 0 draws, in free text and under a trie in sampled mode
 * top_p        in (0, 1]; 1 is off
 *
 * Returns TOKEN_TRIE_OK however it stopped; token_trie_stream_get_state tells why. On failure the tokens passed on so
 * far are part of the sequence, and a further call goes on behind them. Costs one forward pass per branch point and per
 * token of free text, the first after a prefill excepted.
 */
TOKEN_TRIE_API int32_t token_trie_stream_generate(struct token_trie_stream * stream,
                                                  int32_t max_tokens,
                                                  float temperature,
                                                  float top_p,
                                                  token_trie_on_token on_token,
                                                  void * user);

/*
 * The same, until one of some texts has been written, wherever in a token it begins: the first of them ends it, and is
 * taken out of the sequence again. Under a trie with start_after, text is what comes before the span: where that
 * begins, it ends too, with TOKEN_TRIE_STOP_COMPLETE, also where the tokens of start_after spell one of the texts. What
 * stands before a text in its first token is tokenized anew, as it stands inside a text. The token that completes it is
 * not passed on; those before, in which it may begin, have been.
 *
 * stop_string  NULL, or set to the number of the text that was found, -1 if none was
 *
 * What stands before it may take more tokens so; where max_tokens or the context allow less, it is cut behind
 * the last whole character that has some, and the stop is TOKEN_TRIE_STOP_MAX_TOKENS. Where one is found, trie and
 * grammar begin anew, as behind token_trie_stream_splice. Fails on an empty text.
 */
TOKEN_TRIE_API int32_t token_trie_stream_generate_until(struct token_trie_stream * stream,
                                                        int32_t max_tokens,
                                                        float temperature,
                                                        float top_p,
                                                        const char * const * stop_strings,
                                                        size_t n_stop_strings,
                                                        token_trie_on_token on_token,
                                                        void * user,
                                                        int32_t * stop_string);

/*
 * The same for one token, without a callback, for hosts that call C better than C calls them:
 *
 *     struct token_trie_token token = {sizeof token};
 *     int32_t stop = TOKEN_TRIE_STOP_MAX_TOKENS;
 *     while (stop == TOKEN_TRIE_STOP_MAX_TOKENS && token_trie_stream_next(stream, 0.0f, 1.0f, &token, &stop) == 0) {
 *         fwrite(token.text, 1, token.text_len, stdout);
 *     }
 *
 * Set token->size to sizeof(struct token_trie_token) before the call. Where there is no token, its id is -1 and its
 * text "". *stop is TOKEN_TRIE_STOP_MAX_TOKENS as long as more may follow, otherwise why not; the last token may come
 * along with that. The text is valid until the next call on the stream, or until it is closed. On failure nothing is
 * written.
 */
TOKEN_TRIE_API int32_t token_trie_stream_next(
    struct token_trie_stream * stream, float temperature, float top_p, struct token_trie_token * token, int32_t * stop);

/* What a leaf's score has beside the probability of its tokens. */
enum token_trie_leaf_end {
    TOKEN_TRIE_LEAF_ANY = 0,     /* nothing: what comes behind does not matter */
    TOKEN_TRIE_LEAF_LONGEST = 1, /* that no token comes next by which a longer member goes on. Members are then events
                                    that exclude each other */
    TOKEN_TRIE_LEAF_FOLLOW = 2   /* that a token of the follow set comes next: under TOKEN_TRIE_END an end token */
};

/* What to score, and how. Set size to sizeof(struct token_trie_score_params) and the rest to zero for the defaults. */
struct token_trie_score_params {
    size_t size;
    int32_t leaf_end; /* enum token_trie_leaf_end */
    int32_t branches; /* not 0: probabilities renormalized over the allowed set, and that at branch points alone: what a
                         decoder in sampled mode draws, ends as there. Cheaper, as nothing is evaluated that leaves
                         no choice behind it */
    const llama_token * prefix; /* score behind these tokens instead of the stream's sequence; NULL for the sequence */
    size_t n_prefix;
    const struct token_trie_set * set;           /* score this one instead of the one that is set; NULL for that */
    const struct token_trie_params * set_params; /* of that one; NULL: all its members, on completion TOKEN_TRIE_END */
    /* token_trie_stream_search alone: */
    int32_t beam_width; /* nodes of one depth that the search goes on from; 0: best first, which is exact */
    uint64_t max_nodes; /* to evaluate; 0: no limit. What is found until then is the result, one member at least */
    int32_t timeout_ms; /* likewise, since the search began, looked at between batches; 0: no limit */
    const double * leaf_weights; /* NULL, or finite nats, one a member, by index: the search ranks by score plus weight,
                                    such as those of a calibration. Borrowed for the call, as prefix is */
    size_t n_leaf_weights;
};

/* What it took. Set size to sizeof(struct token_trie_score_stats) before the call. */
struct token_trie_score_stats {
    size_t size;
    uint64_t n_found;     /* token_trie_stream_search: members found */
    uint64_t n_evaluated; /* nodes of the trie that were evaluated, the root excepted; nodes that were evaluated
                             again, for the sake of others below them, count again */
    uint64_t n_passes;    /* batches of them */
    double gap;           /* token_trie_stream_search: nats that a member not looked at may be above the last one found,
                             at most. 0: the members found are the best. inf: fewer were found than asked for. This and
                             the rivals count leaf_weights in */
    uint64_t decode_ns;   /* nanoseconds of the call inside llama.cpp's forward passes */
    double rival_min;     /* token_trie_stream_search: the best member beside those found scores at least this; -inf if
                             none is known, or there is none */
    double rival_max;     /* and at most this; the same as rival_min where that member was looked at */
    double mass_max;      /* token_trie_stream_search: the probability that what the model writes here is of the set, at
                             most, whatever the weights */
};

/*
 * Scores every member of a set, behind the stream's sequence. The stream stays as it is: sequence, cache, span, draws.
 *
 * leaves  n_leaves natural logarithms of probabilities, by the members' index in the set
 * nodes   NULL, or n_nodes of them: of each node's token behind its parent. Node 0 is the root (0 here), its children
 *         are next in ascending order of their tokens, then theirs, level by level
 * stats   NULL, or filled
 *
 * Nodes are evaluated as tree-shaped batches on the context's unified cache, so that what members share is evaluated
 * once; a context of one sequence id, and models that are not attention alone, take one node at a time. Nothing is
 * evaluated whose logits no score needs, such as most members' last tokens. Texts in any tokenization are refused, and
 * so are sets with unique, exclude or min_items. On failure the buffers hold nothing of use and the stream is as it
 * was.
 */
TOKEN_TRIE_API int32_t token_trie_stream_score(struct token_trie_stream * stream,
                                               const struct token_trie_score_params * params,
                                               double * leaves,
                                               size_t n_leaves,
                                               double * nodes,
                                               size_t n_nodes,
                                               struct token_trie_score_stats * stats);

/*
 * Finds the n_best most probable members of a set, by the scores of token_trie_stream_score, evaluating none of the
 * nodes but those that may matter: for sets too large to score whole. Equal scores are ranked by their tokens.
 *
 * leaves, logprobs  n_best each, best first; stats->n_found of them are filled. Logprobs are the model's own, without
 *                   leaf_weights
 * stats             NULL, or filled
 *
 * Best first is a search that goes on from the most probable node each time and ends when none left can lead to a
 * better member. A batch has nodes that may prove needless, where that is likely to save a pass. The stream stays as it
 * is. With leaf_weights, most probable means best by score plus weight, which is proved as well: what a node can lead
 * to has the best weight below it at most. Reading them takes a pass over the trie's nodes.
 */
TOKEN_TRIE_API int32_t token_trie_stream_search(struct token_trie_stream * stream,
                                                const struct token_trie_score_params * params,
                                                int64_t * leaves,
                                                double * logprobs,
                                                size_t n_best,
                                                struct token_trie_score_stats * stats);

/*
 * Copies the hidden state of the sequence's last token: what the model's output matrix is multiplied with, normalized,
 * of which a linear classifier can be made. It costs nothing where the token was just evaluated, and its evaluation
 * where it was not; the sequence stays.
 *
 * state  room for *n floats; NULL to be told how many there are, the model's n_embd
 * n      set to how many there are
 *
 * Fails with TOKEN_TRIE_ERROR_ARGUMENT where nothing was prefilled, or there is less room, and with
 * TOKEN_TRIE_ERROR_CONTEXT for models whose graph does not end in one product, and contexts that report their passes to
 * a callback of somebody else.
 */
TOKEN_TRIE_API int32_t token_trie_stream_get_hidden_state(struct token_trie_stream * stream, float * state, size_t * n);

/* Ends a prefill, score, search or generate that another thread is in, within one forward pass; else does nothing. */
TOKEN_TRIE_API void token_trie_stream_cancel(struct token_trie_stream * stream);

/* Fills *state. Refused while another call is under way, and keeps none from beginning. */
TOKEN_TRIE_API int32_t token_trie_stream_get_state(struct token_trie_stream * stream,
                                                   struct token_trie_stream_state * state);

/*
 * Frees the stream; NULL and closed ones are ignored. A call that another thread is in, from the reading of its payload
 * on, is cancelled and waited for, also where several threads close. Once this has returned, nothing here touches the
 * context, which may be freed, and no call of the stream begins. From within a call (its callback, or llama.cpp's log
 * callback on its thread) this returns at once, that call is cancelled, and the stream is freed when it returns; leave
 * the context alone until then. Do not call it from a thread that a call of the stream waits for.
 */
TOKEN_TRIE_API void token_trie_stream_close(struct token_trie_stream * stream);

/*
 * Many prompts at once, in one context. What some of them begin with is evaluated once, what differs goes through the
 * context in full batches, and each is answered as soon as its own rows tell:
 *
 *     struct token_trie_batch * batch = token_trie_batch_open(model, &context_params, &params);
 *     for (size_t i = 0; i < n; ++i) {
 *         token_trie_batch_submit(batch, &prompts[i], &tickets[i]);
 *     }
 *     struct token_trie_batch_answer * answer = NULL;
 *     while (token_trie_batch_next(batch, 0, -1, &answer, NULL) == 0 && answer != NULL) {
 *         struct token_trie_batch_figures figures = {sizeof figures};
 *         token_trie_batch_answer_get_figures(answer, &figures);
 *         use(figures.ticket, figures.leaf);
 *         token_trie_batch_answer_free(answer);
 *     }
 *     token_trie_batch_close(batch);
 *
 * There is no thread behind it: one of those that wait in token_trie_batch_next does the work of all. Submit, wait,
 * cancel and close may come from any thread at any time. An answer is what a stream alone would give, up to what
 * llama.cpp's rounding depends on: how many rows a pass has, and where in the cache a sequence's cells lie.
 */
struct token_trie_batch;

/* Options. Set size to sizeof(struct token_trie_batch_params) and the rest to zero for the defaults. */
struct token_trie_batch_params {
    size_t size;
    int32_t n_parallel; /* sequence ids, at least 2: a prompt takes one, and a tree of answers more as long as there are
                           some; 0, and no more than: 64, or less where the logits of so many are large */
    int32_t n_batch;    /* tokens of a pass at most; 0: 256, and no more than the context's n_ubatch */
    struct llama_adapter_lora * const * adapters; /* that the context gets; to outlive the batch */
    const float * adapter_scales;                 /* one each; NULL: 1 */
    size_t n_adapters;
    int32_t n_chunk; /* for answers that are waited for one by one: prompts of which more tokens than these are new
                        leave others their turn: in a pass, of all such as many rows as take the time of half so many at
                        the beginning of a prompt, or of a quarter of these beside others; where no others come, all.
                        An eighth of the context is kept from them. 0: what takes the least time for all */
};

enum token_trie_batch_mode {
    TOKEN_TRIE_BATCH_GREEDY = 0,  /* the best token at each branch point */
    TOKEN_TRIE_BATCH_SAMPLED = 1, /* one drawn there */
    TOKEN_TRIE_BATCH_BEST = 2,    /* the most probable members, as of token_trie_stream_search */
    TOKEN_TRIE_BATCH_SCORES = 3,  /* the score of each member, as of token_trie_stream_score */
    TOKEN_TRIE_BATCH_TEXT = 4,    /* free text, as of token_trie_stream_generate_until */
    TOKEN_TRIE_BATCH_STATE = 5    /* nothing but the hidden state, as of token_trie_stream_get_hidden_state; without a
                                     set */
};

/* A prompt and what may answer it. Set size and the rest to zero for the defaults. What pointers point to is copied. */
struct token_trie_batch_prompt {
    size_t size;
    const llama_token * tokens; /* one at least */
    size_t n_tokens;
    const struct token_trie_set * set;
    const struct token_trie_params * set_params; /* NULL: all its members, on completion TOKEN_TRIE_END, which is the
                                                    only one here; mode is not read. start_after: GREEDY and SAMPLED,
                                                    with a limit, and TEXT */
    int32_t mode;                                /* enum token_trie_batch_mode */
    uint32_t seed;                               /* SAMPLED and what is free: as in struct token_trie_stream_params */
    float temperature;                           /* SAMPLED and what is free: 0 takes the best */
    float top_p;                                 /* SAMPLED and what is free: 0 for 1 */
    int32_t leaf_end;                            /* BEST, SCORES: as in struct token_trie_score_params, and so on */
    int32_t branches;
    int32_t beam_width;          /* BEST */
    uint64_t max_nodes;          /* BEST */
    int32_t timeout_ms;          /* BEST */
    size_t n_best;               /* BEST: 0 for 1 */
    const double * leaf_weights; /* BEST */
    size_t n_leaf_weights;
    /* TEXT, which has no set, or one with start_after: then it ends behind that, and no member follows. A request
       that comes next, behind the prompt and all of its tokens, goes before others, of whom nobody is overtaken without
       end, and finds them evaluated, unless others took their cells.
     */
    int32_t max_tokens;
    const char * const * stop_strings; /* as of token_trie_stream_generate_until */
    size_t n_stop_strings;
    const char * gbnf;  /* without a set: as of token_trie_stream_set_grammar; NULL for none */
    const char * root;  /* NULL for "root" */
    int32_t with_state; /* not 0: the hidden state behind the prompt is part of the answer, in any mode */
};

/*
 * An answer, which owns what it holds, also when the batch is closed. What its functions return is valid until it is
 * freed; any threads may call them.
 */
struct token_trie_batch_answer;

/* What an answer says in numbers. Set size to sizeof(struct token_trie_batch_figures) before the call. */
struct token_trie_batch_figures {
    size_t size;
    int64_t ticket;
    int32_t status;      /* enum token_trie_status, of this prompt alone */
    int32_t stop;        /* GREEDY, SAMPLED, TEXT: enum token_trie_stop */
    int32_t stop_string; /* TEXT: the number of the one found; -1 if none was */
    int64_t leaf;        /* the best, or the only one: its index in the set; -1 if none */
    double logprob;      /* its score; of what is generated, the sum over its branch points */
    double gap;          /* BEST: as in struct token_trie_score_stats, and so on */
    double rival_min;
    double rival_max;
    double mass_max;
    uint64_t n_shared;    /* tokens of the prompt that were evaluated for another */
    uint64_t n_branches;  /* GREEDY, SAMPLED */
    uint64_t n_forced;    /* GREEDY, SAMPLED, TEXT */
    uint64_t n_free;      /* GREEDY, SAMPLED, TEXT: tokens of free text */
    uint64_t n_evaluated; /* tokens behind the prompt */
    uint64_t n_passes;    /* that had some of them, and others' */
    uint64_t prompt_ns;   /* from the prompt's first pass to its last */
    uint64_t decide_ns;   /* from there on */
};

/* Frees an answer; NULL is ignored. */
TOKEN_TRIE_API void token_trie_batch_answer_free(struct token_trie_batch_answer * answer);

/* Fills *figures. */
TOKEN_TRIE_API int32_t token_trie_batch_answer_get_figures(const struct token_trie_batch_answer * answer,
                                                           struct token_trie_batch_figures * figures);

/* Why the prompt has failed, "" where it has not; NULL on failure. */
TOKEN_TRIE_API const char * token_trie_batch_answer_get_message(const struct token_trie_batch_answer * answer);

/*
 * The members found, best first, and how many there are in *n. NULL where there are none, as of SCORES, and on failure.
 */
TOKEN_TRIE_API const int64_t * token_trie_batch_answer_get_leaves(const struct token_trie_batch_answer * answer,
                                                                  size_t * n);

/* The scores of these; of SCORES, those of all members, by index. Likewise. */
TOKEN_TRIE_API const double * token_trie_batch_answer_get_logprobs(const struct token_trie_batch_answer * answer,
                                                                   size_t * n);

/* GREEDY, SAMPLED, TEXT: the tokens that were taken, an end-of-generation token left out. Likewise. */
TOKEN_TRIE_API const llama_token * token_trie_batch_answer_get_tokens(const struct token_trie_batch_answer * answer,
                                                                      size_t * n);

/* STATE, and where it was asked for: the hidden state behind the prompt, and its width in *n. Likewise. */
TOKEN_TRIE_API const float * token_trie_batch_answer_get_state(const struct token_trie_batch_answer * answer,
                                                               size_t * n);

/*
 * Opens a batch on a model, with a context of its own, for which all memory is taken now: context_params->n_ctx tokens
 * are what the prompts under way and their answers may take together, a beginning that they share counted once. Model
 * and adapters must outlive the batch. Fails for models whose sequences cannot share cells: recurrent and hybrid ones.
 */
TOKEN_TRIE_API struct token_trie_batch * token_trie_batch_open(struct llama_model * model,
                                                               const struct llama_context_params * context_params,
                                                               const struct token_trie_batch_params * params);

/*
 * Puts a prompt among those that wait, and its number, from 1 on, into *ticket. Fails at once on what cannot be
 * answered: tokens or a set that do not fit the vocabulary, or both together the context. What is submitted has an
 * answer, be it TOKEN_TRIE_ERROR_MEMORY where memory runs out on its way.
 */
TOKEN_TRIE_API int32_t token_trie_batch_submit(struct token_trie_batch * batch,
                                               const struct token_trie_batch_prompt * prompt,
                                               int64_t * ticket);

/*
 * Waits for the answer to a ticket, or with 0 for any, the one that was there first, and takes it. Several threads may
 * wait, each for its own.
 *
 * timeout_ms  to wait at most, apart from a pass that it makes itself; 0 to look; negative: no limit
 * answer      set to the answer, which the caller owns (token_trie_batch_answer_free); NULL: nothing is out, or not in
 *             time, or on failure
 * is_out      NULL, or set: true where there is no answer yet, but will be
 *
 * Returns TOKEN_TRIE_OK also where the prompt has failed: its figures tell. Fails with TOKEN_TRIE_ERROR_MEMORY where
 * there is none for it, and keeps the answer; with TOKEN_TRIE_ERROR_ARGUMENT for a ticket that is not out; with
 * TOKEN_TRIE_ERROR_CANCELLED where the batch is closed meanwhile; with TOKEN_TRIE_ERROR_BUSY from llama.cpp's log
 * callback on the thread that makes a pass.
 */
TOKEN_TRIE_API int32_t token_trie_batch_next(struct token_trie_batch * batch,
                                             int64_t ticket,
                                             int32_t timeout_ms,
                                             struct token_trie_batch_answer ** answer,
                                             bool * is_out);

/*
 * Copies what a TEXT under way has so far, of its tokens those from the so-and-so-many-th on.
 *
 * n  how many there is room for; set to how many were copied: 0 of other modes, and where there are no more yet
 *
 * The answer may have fewer: without a stop string whose beginning is among them, and what follows that. Fails with
 * TOKEN_TRIE_ERROR_ARGUMENT for a ticket that is not out.
 */
TOKEN_TRIE_API int32_t token_trie_batch_get_text(
    struct token_trie_batch * batch, int64_t ticket, size_t from, llama_token * tokens, size_t * n);

/* Ends a prompt, whose answer is then TOKEN_TRIE_ERROR_CANCELLED; one that has an answer keeps it. */
TOKEN_TRIE_API void token_trie_batch_cancel(struct token_trie_batch * batch, int64_t ticket);

/*
 * Frees the batch and its context; NULL and closed ones are ignored. A pass under way ends first, and so does a submit;
 * answers that nobody has taken are lost, and who waits for one is told. From within a pass or a submit (llama.cpp's
 * log callback on its thread) this returns at once, and the context is freed when that ends.
 */
TOKEN_TRIE_API void token_trie_batch_close(struct token_trie_batch * batch);

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

/* The enum token_trie_status of that failure, for functions that return a pointer; TOKEN_TRIE_OK if none. */
TOKEN_TRIE_API int32_t token_trie_last_status(void);

/* This library's version, as in "0.1.0". */
TOKEN_TRIE_API const char * token_trie_version(void);

#ifdef __cplusplus
}
#endif

#endif /* TOKEN_TRIE_H */
