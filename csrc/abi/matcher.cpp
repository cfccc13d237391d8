#include "cursor/matcher.h"

#include "abi/constraint.h"
#include "abi/guard.h"
#include "abi/structs.h"

struct token_trie_matcher {
    token_trie::Matcher matcher;
};

namespace {

using namespace token_trie;

template <typename Handle>
auto & of(Handle * matcher) {
    require_not_null(matcher, "matcher");
    return matcher->matcher;
}

Matcher make_matcher(const llama_vocab * address,
                     std::int32_t n_vocab,
                     const Set & set,
                     const token_trie_params & params) {
    const Vocab vocab(address);
    throw_if(n_vocab < 0 || (n_vocab == 0 && address == nullptr), Status::argument, "n_vocab: ", n_vocab,
             " is no size of a vocabulary");
    throw_if(n_vocab > 0 && n_vocab < vocab.size(), Status::argument, "n_vocab: ", n_vocab,
             " is less than the vocabulary has (", vocab.size(), " tokens)");
    return {make_constraint(vocab, set, params).cursor, n_vocab == 0 ? vocab.size() : n_vocab};
}

}  // namespace

extern "C" {

token_trie_matcher * token_trie_matcher_init(const llama_vocab * vocab,
                                             int32_t n_vocab,
                                             const token_trie_set * set,
                                             const token_trie_params * params) {
    return guard_pointer<token_trie_matcher *>([&] {
        return std::make_unique<token_trie_matcher>(
                   token_trie_matcher{make_matcher(vocab, n_vocab, to_set(set), read_struct(params, "params"))})
            .release();
    });
}

token_trie_matcher * token_trie_matcher_clone(const token_trie_matcher * matcher) {
    return guard_pointer<token_trie_matcher *>(
        [&] { return std::make_unique<token_trie_matcher>(token_trie_matcher{of(matcher)}).release(); });
}

void token_trie_matcher_free(token_trie_matcher * matcher) { const std::unique_ptr<token_trie_matcher> freed(matcher); }

int32_t token_trie_matcher_accept(token_trie_matcher * matcher,
                                  const llama_token * tokens,
                                  size_t n,
                                  size_t * n_accepted) {
    return guard([&] {
        require_array(tokens, n, "tokens");
        require_not_null(n_accepted, "n_accepted");
        *n_accepted = of(matcher).accept_all(tokens, n);
    });
}

int32_t token_trie_matcher_rollback(token_trie_matcher * matcher, size_t n) {
    return guard([&] { of(matcher).rollback(n); });
}

int32_t token_trie_matcher_is_terminated(const token_trie_matcher * matcher, bool * is_terminated) {
    return guard([&] {
        require_not_null(is_terminated, "is_terminated");
        *is_terminated = of(matcher).is_terminated();
    });
}

int32_t token_trie_matcher_fill_masks(const token_trie_matcher * const * matchers,
                                      size_t n,
                                      const size_t * rows,
                                      int32_t * masks,
                                      size_t n_rows,
                                      size_t n_words,
                                      bool * is_needed) {
    return guard([&] {
        if (n > 0) {
            require_not_null(static_cast<const void *>(matchers), "matchers");
            require_not_null(masks, "masks");
        }
        const auto row_of = [&](std::size_t i) { return rows == nullptr ? i : rows[i]; };
        for (std::size_t i = 0; i < n; ++i) {
            throw_if(matchers[i] == nullptr, Status::argument, "matchers[", i, "]: null");
            throw_if(row_of(i) >= n_rows, Status::argument, "rows[", i, "]: ", row_of(i), " of ", n_rows, " rows");
            throw_if(matchers[i]->matcher.n_words() != n_words, Status::argument, "n_words: ", n_words,
                     ", but a row of matchers[", i, "] has ", matchers[i]->matcher.n_words());
        }
        for (std::size_t i = 0; i < n; ++i) {
            const bool is_constrained = matchers[i]->matcher.fill(masks + row_of(i) * n_words);
            if (is_needed != nullptr) {
                is_needed[i] = is_constrained;
            }
        }
    });
}

int32_t token_trie_matcher_get_allowed(const token_trie_matcher * matcher,
                                       llama_token * tokens,
                                       size_t capacity,
                                       size_t * n) {
    return guard([&] {
        require_array(tokens, capacity, "tokens");
        require_not_null(n, "n");
        std::size_t found = 0;
        of(matcher).for_each_allowed([&](Token token) {
            if (found < capacity) {
                tokens[found] = token;
            }
            ++found;
        });
        *n = found;
    });
}

int32_t token_trie_matcher_get_forced(const token_trie_matcher * matcher,
                                      llama_token * tokens,
                                      size_t capacity,
                                      size_t * n) {
    return guard([&] { write_tokens(of(matcher).forced(capacity), tokens, capacity, n); });
}

}  // extern "C"
