#pragma once

#include "trie/trie.h"

#include <memory>

namespace [[gnu::visibility("default")]] token_trie {

// The values of enum token_trie_on_complete and enum token_trie_state, which csrc/abi checks against these.
enum class OnComplete { release = 0, end = 1, restart = 2 };
enum class State { walking = 0, complete = 1, escaped = 2 };

// What may follow a finished leaf; immutable and shared like the trie it was made for.
class FollowSet {
   public:
    struct Options {
        OnComplete on_complete = OnComplete::release;
        std::vector<Token> end_tokens;
        std::vector<Token> separator;
        std::int32_t max_items = 0;

        // Throws Error (argument) if they leave no way to end, or hold a negative token or count.
        void check() const;
    };

    // Checks the options first.
    FollowSet(const Trie & trie, Options options);

    OnComplete on_complete() const noexcept { return options_.on_complete; }
    TokenSpan end_tokens() const noexcept { return span(options_.end_tokens); }
    const std::vector<Token> & separator() const noexcept { return options_.separator; }
    bool more_items_after(std::int32_t n) const noexcept { return options_.max_items == 0 || n < options_.max_items; }
    // Tokens that may come after the nth item, the item's own continuations apart. Empty means any: release.
    TokenSpan after(std::int32_t n_items) const noexcept {
        return more_items_after(n_items) ? span(next_) : end_tokens();
    }

   private:
    static TokenSpan span(const std::vector<Token> & v) noexcept {
        return {v.data(), static_cast<std::uint32_t>(v.size())};
    }

    Options options_;
    std::vector<Token> next_;  // end tokens and what begins a further item, ascending
};

// The tokens legal next: all of them, or the union of two spans.
struct AllowedSet {
    bool everything = false;
    TokenSpan children;
    TokenSpan follow;

    bool contains(Token token) const noexcept {
        return everything || children.contains(token) || follow.contains(token);
    }

    // Calls visit(token) in ascending order, each token once, until it returns false; returns whether it never did.
    template <typename Visit>
    bool for_each(Visit && visit) const {
        const Token * a = children.begin();
        const Token * b = follow.begin();
        while (b != follow.end()) {
            if (a != children.end() && *a <= *b) {
                b += *a == *b ? 1 : 0;
                if (!visit(*a++)) {
                    return false;
                }
            } else if (!visit(*b++)) {
                return false;
            }
        }
        while (a != children.end()) {
            if (!visit(*a++)) {
                return false;
            }
        }
        return true;
    }
};

// One sequence's position in a trie. Copies share the trie and the follow set.
//
// Where a token could mean two things after a finished leaf, the leaf's own continuation wins over a separator or a new
// item, and these over an end token.
class Cursor {
   public:
    // Trie and follow set must not be null.
    Cursor(std::shared_ptr<const Trie> trie, std::shared_ptr<const FollowSet> follow)
        : trie_(std::move(trie)), follow_(std::move(follow)) {}

    // While walking: what may come next. Otherwise everything.
    AllowedSet allowed() const noexcept;

    // Whether token, next, would end the span behind a finished leaf: no part of a member, nor of a separator.
    bool ends_with(Token token) const noexcept {
        Cursor next = *this;
        return next.accept(token) && next.state_ == State::complete && next.node_ == node_ &&
               next.n_before_ == n_before_;
    }

    // Steps on. A token outside the allowed set ends the span and returns false.
    bool accept(Token token) noexcept;

    void reset() noexcept;

    State state() const noexcept { return state_; }
    // The leaf finished last; kNoLeaf while one is under way, be it a longer one from a finished one.
    LeafId leaf() const noexcept { return leaf_; }
    // Leaves finished, the one under way not counted.
    std::int32_t n_items() const noexcept { return n_before_ + (trie_->leaf(node_) != kNoLeaf ? 1 : 0); }
    NodeId node() const noexcept { return node_; }
    const Trie & trie() const noexcept { return *trie_; }
    const FollowSet & follow() const noexcept { return *follow_; }

   private:
    void enter(NodeId node) noexcept;
    bool leave(Token token) noexcept;

    std::shared_ptr<const Trie> trie_;
    std::shared_ptr<const FollowSet> follow_;
    NodeId node_ = kRoot;
    LeafId leaf_ = kNoLeaf;
    std::int32_t n_before_ = 0;       // leaves finished before the one that node_ is in
    std::uint32_t in_separator_ = 0;  // separator tokens accepted, while more of them are due
    State state_ = State::walking;
};

}  // namespace token_trie
