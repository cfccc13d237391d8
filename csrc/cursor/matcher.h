#pragma once

#include "cursor/cursor.h"

#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// A cursor as engines of constrained decoding drive one: it refuses what is not allowed where a cursor is led astray,
// it takes tokens back, and it says what is legal next as a mask, of a bit a token.
//
// Taking back is walking again, from a copy of the cursor that is kept every so many tokens:
//
//     tokens     0 ........ 255 | 256 ....... 511 | 512 ... 600
//     snapshots                 0                 1               rollback to 530: snapshot 1, and 18 tokens again
//
// so that lists and markers need nothing of their own. Tokens after the end of the span are counted alone.
class Matcher {
   public:
    // Throws Error (vocab) if a token of the set or its rules is none of n_vocab, which is positive.
    Matcher(Cursor cursor, std::int32_t n_vocab);

    // False, and nothing changes, for a token that is not allowed. Throws Error: vocab for one outside the vocabulary;
    // argument for one that ends nothing, after the end.
    bool accept(Token token);
    // How many of these are accepted, one after the other, up to the first that is not; after the end, end tokens
    // are. Throws Error (vocab), and then nothing has changed.
    std::size_t accept_all(const Token * tokens, std::size_t n);
    // Throws Error (argument) if there are not so many.
    void rollback(std::uint64_t n);
    void reset() noexcept;

    // Throws what accept would throw.
    void check(Token token) const;
    void check_rollback(std::uint64_t n) const;

    // Ended by an end token; then these alone are legal. A span without any is released: then every token is.
    bool is_terminated() const noexcept { return cursor_.state() == State::complete && !ends().empty(); }
    // Valid until the next change.
    AllowedSet allowed() const { return is_terminated() ? AllowedSet{false, {}, ends()} : cursor_.allowed(); }
    // Calls visit(token) for each token that is legal, ascending.
    template <typename Visit>
    void for_each_allowed(const Visit & visit) const {
        const AllowedSet set = allowed();
        if (!set.everything) {
            set.for_each(visit);
            return;
        }
        const Token * except = set.except.begin();
        for (Token token = 0; token < n_vocab_; ++token) {
            if (except != set.except.end() && *except == token) {
                ++except;
            } else {
                visit(token);
            }
        }
    }
    // The only tokens that there are, one after the other, n at most: up to a branch point, or where the span ends,
    // the end token not included.
    std::vector<Token> forced(std::size_t n) const;

    std::int32_t n_vocab() const noexcept { return n_vocab_; }
    std::size_t n_words() const noexcept { return (static_cast<std::size_t>(n_vocab_) + 31) / 32; }
    // Sets bit t % 32 of words[t / 32] where token t is legal, and clears the others. Bits beyond the vocabulary mean
    // nothing. Returns false where every token is legal.
    bool fill(std::int32_t * words) const noexcept;
    std::uint64_t n_accepted() const noexcept { return tokens_.size() + n_after_end_; }
    const Cursor & cursor() const noexcept { return cursor_; }

   private:
    TokenSpan ends() const noexcept { return cursor_.follow().end_tokens(); }
    bool take(Token token);

    Cursor cursor_;
    std::int32_t n_vocab_;
    std::vector<Token> tokens_;      // up to the end of the span
    std::vector<Cursor> snapshots_;  // after every kStride of them
    std::uint64_t n_after_end_ = 0;
};

}  // namespace token_trie
