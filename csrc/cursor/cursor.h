#pragma once

#include "cursor/remainder.h"
#include "trie/trie.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// A sequence of tokens to be found in a longer one, read token by token, by the algorithm of Knuth, Morris and Pratt.
// Remembered of what was read is one number, the tokens of the marker that are at its end:
//
//     marker    A A B        read      A A A B
//     fallback  0 1 0        place   0 1 2 2 3 = found
class Marker {
   public:
    explicit Marker(std::vector<Token> tokens);

    bool empty() const noexcept { return tokens_.empty(); }
    std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(tokens_.size()); }
    const std::vector<Token> & tokens() const noexcept { return tokens_; }
    // The place after one more token; where place is the size, nothing goes on.
    std::uint32_t step(std::uint32_t place, Token token) const noexcept;

   private:
    std::vector<Token> tokens_;
    // For each place but the first: the place of the longest shorter beginning that is there too.
    std::vector<std::uint32_t> fallback_;
};

enum class OnComplete { release = TOKEN_TRIE_RELEASE, end = TOKEN_TRIE_END, restart = TOKEN_TRIE_RESTART };
enum class State {
    constrained = TOKEN_TRIE_CONSTRAINED,
    complete = TOKEN_TRIE_COMPLETE,
    escaped = TOKEN_TRIE_ESCAPED,
    thinking = TOKEN_TRIE_THINKING
};
// Why a span is over after the member finished last.
enum class Ending {
    none = TOKEN_TRIE_ENDING_NONE,
    token = TOKEN_TRIE_ENDING_TOKEN,
    max_items = TOKEN_TRIE_ENDING_MAX_ITEMS,
    none_left = TOKEN_TRIE_ENDING_NONE_LEFT,
    max_span = TOKEN_TRIE_ENDING_MAX_SPAN
};

// The rules for what may follow a finished leaf, and the members that are left at first; immutable and shared like the
// trie it was made for.
class FollowSet {
   public:
    struct Options {
        OnComplete on_complete = OnComplete::release;
        std::vector<Token> end_tokens;
        std::vector<Token> separator;
        std::int32_t max_items = 0;
        std::int32_t min_items = 0;
        bool unique = false;
        // NOLINTBEGIN(readability-redundant-member-init): for callers that name only the first members
        std::vector<std::string> exclude{};
        std::vector<Token> start_after{};
        std::int64_t max_before = -1;     // negative: no limit
        std::vector<Token> not_before{};  // tokens that are not legal before start_after, save its own
        std::int32_t max_span = 0;        // tokens after which no further item begins; 0: no limit
        // NOLINTEND(readability-redundant-member-init)

        // Throws Error (argument) if they leave no way to end, contradict each other, or hold a negative token or
        // count.
        void check() const;
    };

    // Checks the options first. Throws Error (argument) too for a name in exclude that no member has, and if fewer
    // members are left than asked for. With unique or exclude, one pass over the trie.
    FollowSet(const Trie & trie, Options options);

    OnComplete on_complete() const noexcept { return options_.on_complete; }
    TokenSpan end_tokens() const noexcept { return span(options_.end_tokens); }
    const std::vector<Token> & separator() const noexcept { return options_.separator; }
    bool unique() const noexcept { return options_.unique; }
    bool more_items_after(std::int32_t n) const noexcept {
        return options_.on_complete == OnComplete::restart && (options_.max_items == 0 || n < options_.max_items);
    }
    bool may_end_after(std::int32_t n) const noexcept { return n >= options_.min_items; }
    // Tokens that may come after the nth item, the item's own continuations apart, where the list may end there and no
    // member is out. Empty means any: release.
    TokenSpan after(std::int32_t n) const noexcept { return more_items_after(n) ? span(next_) : end_tokens(); }
    const Marker & marker() const noexcept { return marker_; }
    TokenSpan not_before() const noexcept { return span(options_.not_before); }
    // Whether a span of n tokens begins no further item.
    bool is_long(std::int64_t n) const noexcept { return options_.max_span > 0 && n >= options_.max_span; }
    // Negative: no limit.
    std::int64_t max_before() const noexcept { return options_.max_before; }
    // Whether the marker must come, after n tokens without it.
    bool must_start_after(std::int64_t n) const noexcept {
        return options_.max_before >= 0 && n >= options_.max_before;
    }
    // The members left before the first item; null: all of them, now and later.
    const std::shared_ptr<const Remainder> & left() const noexcept { return left_; }

   private:
    static TokenSpan span(const std::vector<Token> & v) noexcept {
        return {v.data(), static_cast<std::uint32_t>(v.size())};
    }

    Options options_;
    std::vector<Token> next_;  // end tokens and what begins a further item, ascending
    Marker marker_;
    std::shared_ptr<const Remainder> left_;
};

// The tokens legal next: all of them, save some before the span begins, or the union of runs. Of a cursor, valid until
// it steps.
struct AllowedSet {
    bool everything = false;
    TokenSpan children;
    TokenSpan follow;
    // Where members are out:
    TokenSpan children_out{};  // a part of children
    TokenSpan beginnings{};    // the first tokens of further items, where they are not part of follow
    TokenSpan beginnings_out{};
    // Where everything is:
    TokenSpan except{};

    bool is_children_alone() const noexcept {
        return !everything && follow.empty() && children_out.empty() && beginnings.empty();
    }
    // At least as many as there are.
    std::size_t max_size() const noexcept {
        return std::size_t{children.size} - children_out.size + follow.size + beginnings.size - beginnings_out.size;
    }
    bool contains(Token token) const noexcept {
        if (everything) {
            return !except.contains(token);
        }
        return (children.contains(token) && !children_out.contains(token)) || follow.contains(token) ||
               (beginnings.contains(token) && !beginnings_out.contains(token));
    }
    // The only token there is, -1 if there are several.
    Token only() const {
        if (everything || max_size() > 3) {  // each token may be in all three runs
            return -1;
        }
        Token found = -1;
        const bool alone = for_each([&](Token token) { return std::exchange(found, token) < 0; });
        return alone ? found : -1;
    }

    // Calls visit(token) in ascending order, each token once, to the end where that returns nothing, else until it
    // returns false; returns whether it never did.
    template <typename Visit>
    bool for_each(Visit && visit) const {
        const auto goes_on = [&visit](Token token) {
            if constexpr (std::is_void_v<decltype(visit(token))>) {
                visit(token);
                return true;
            } else {
                return visit(token);
            }
        };
        return children_out.empty() && beginnings.empty() ? for_each_of_two(goes_on) : for_each_of_three(goes_on);
    }

   private:
    template <typename Visit>
    bool for_each_of_two(Visit && visit) const {
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

    template <typename Visit>
    bool for_each_of_three(Visit && visit) const {
        struct Run {
            const Token * at;
            const Token * end;
            const Token * out;  // tokens that are out, in the same order
            const Token * out_end;
            std::int64_t next() {
                for (; out != out_end && *at == *out; ++at, ++out) {
                }
                return at == end ? kNone : *at;
            }
        };
        Run runs[] = {{children.begin(), children.end(), children_out.begin(), children_out.end()},
                      {follow.begin(), follow.end(), nullptr, nullptr},
                      {beginnings.begin(), beginnings.end(), beginnings_out.begin(), beginnings_out.end()}};
        for (;;) {
            Run * run = runs;
            std::int64_t limit = kNone;  // tokens below it can be visited in a row
            for (Run & other : runs) {
                if (&other != run) {
                    const bool is_less = other.next() < run->next();
                    limit = std::min(limit, is_less ? run->next() : other.next());
                    run = is_less ? &other : run;
                }
            }
            const std::int64_t token = run->next();
            if (token == kNone) {
                return true;
            }
            for (Run & other : runs) {
                other.at += &other != run && other.next() == token ? 1 : 0;
            }
            limit = run->out == run->out_end ? limit : std::min(limit, std::int64_t{*run->out});
            do {
                if (!visit(*run->at++)) {
                    return false;
                }
            } while (run->at != run->end && *run->at < limit);
        }
    }

    static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
};

// One sequence's position in a trie. Copies share the trie, the follow set, and what is left of the members.
//
// Where a token could mean two things after a finished leaf, the leaf's own continuation wins over a separator or a new
// item, and these over an end token.
class Cursor {
   public:
    // Trie and follow set must not be null.
    Cursor(std::shared_ptr<const Trie> trie, std::shared_ptr<const FollowSet> follow)
        : trie_(std::move(trie)), follow_(std::move(follow)) {
        reset();
    }

    // While thinking or constrained: what may come next. Otherwise everything.
    AllowedSet allowed() const;

    // While thinking: the token that brings the marker nearest.
    AllowedSet next_of_marker() const noexcept;

    // Whether token, next, would end the span after a finished leaf: no part of a member, nor of a separator.
    bool ends_with(Token token) const {
        return state_ == State::constrained && meaning(token).kind == Meaning::Kind::end;
    }

    // Whether token, next, completes the marker.
    bool begins_span(Token token) const noexcept {
        return state_ == State::thinking && follow_->marker().step(in_marker_, token) == follow_->marker().size();
    }

    // Steps on. A token outside the allowed set ends the span and returns false. Allocates where a member is finished
    // under unique, and nowhere else; without the memory, nothing has changed.
    bool accept(Token token) { return accept_child(token) || accept_any(token); }

    // Ends the span as a token outside the allowed set does.
    void escape() noexcept { state_ = State::escaped; }
    // Whether the span, which is as long as max_span, begins no further item once there are as many as there must be. A
    // list without end tokens ends after max_items or where none is left, and in no other way.
    bool is_closed() const noexcept {
        return follow_->is_long(n_span_) && !follow_->end_tokens().empty() &&
               follow_->more_items_after(n_before_ + 1) && is_active();
    }
    void reset() noexcept {
        if (left_ != follow_->left()) {
            left_ = follow_->left();
        }
        left_after_.reset();
        node_ = kRoot;
        leaf_ = kNoLeaf;
        n_before_ = 0;
        in_separator_ = 0;
        in_marker_ = 0;
        n_thought_ = 0;
        n_span_ = 0;
        at_leaf_ = false;
        state_ = follow_->marker().empty() ? State::constrained : State::thinking;
    }

    State state() const noexcept { return state_; }
    // Whether the span is still to begin or to end.
    bool is_active() const noexcept { return state_ == State::constrained || state_ == State::thinking; }
    // The leaf finished last; kNoLeaf while one is under way, be it a longer one from a finished one.
    LeafId leaf() const noexcept { return leaf_; }
    // Why the span is over, or has nothing but its end before it; none while a member may go on or another begin.
    Ending ending() const;
    // Leaves finished before the one that is under way or finished last.
    std::int32_t n_before() const noexcept { return n_before_; }
    // Leaves finished, the one under way not counted.
    std::int32_t n_items() const noexcept { return n_before_ + (at_leaf_ ? 1 : 0); }
    NodeId node() const noexcept { return node_; }
    const Trie & trie() const noexcept { return *trie_; }
    const std::shared_ptr<const Trie> & shared_trie() const noexcept { return trie_; }
    const FollowSet & follow() const noexcept { return *follow_; }

   private:
    // The meaning of a token at the node: the first that applies.
    struct Meaning {
        enum class Kind { none, child, separator, in_separator, beginning, end };
        Kind kind = Kind::none;
        NodeId node = kNoNode;  // where a child or a beginning leads
    };

    // Most steps of most cursors: a child, where nothing is out, nor ever will be. Otherwise false, and nothing is
    // done.
    bool accept_child(Token token) {
        if (state_ != State::constrained || left_ != nullptr || in_separator_ != 0) {
            return false;
        }
        // First what may fail.
        const NodeId node = trie_->child(node_, token);
        if (node == kNoNode) {
            return false;
        }
        const LeafId leaf = trie_->leaf(node);
        const bool at_leaf = leaf != kNoLeaf;
        const bool completes = at_leaf && follow_->end_tokens().empty() && !follow_->more_items_after(n_before_ + 1) &&
                               trie_->children(node).empty();
        ++n_span_;
        node_ = node;
        leaf_ = leaf;
        at_leaf_ = at_leaf;
        if (completes) {
            state_ = State::complete;
        }
        return true;
    }
    bool accept_any(Token token);
    bool think(Token token);
    Meaning meaning(Token token) const;
    NodeId child(NodeId node, Token token, const Remainder * left) const;
    bool has_more(const Remainder * left_after, std::int32_t n) const noexcept;
    void enter(NodeId node, std::int32_t n_before, const std::shared_ptr<const Remainder> & left);

    std::shared_ptr<const Trie> trie_;
    std::shared_ptr<const FollowSet> follow_;
    std::shared_ptr<const Remainder> left_;        // for the item that node_ is in
    std::shared_ptr<const Remainder> left_after_;  // for the next one, at a finished leaf
    NodeId node_ = kRoot;
    LeafId leaf_ = kNoLeaf;
    std::int32_t n_before_ = 0;       // leaves finished before the one that node_ is in
    std::uint32_t in_separator_ = 0;  // separator tokens accepted, while more of them are due
    std::uint32_t in_marker_ = 0;     // tokens of the marker that are at the end of what was thought
    std::int64_t n_thought_ = 0;
    std::int64_t n_span_ = 0;  // tokens since the span began
    bool at_leaf_ = false;     // whether the item that node_ is in is a finished one
    State state_ = State::constrained;
};

// Throws Error (vocab) if a token is none of n_vocab, naming it what[i].
void check_tokens(const Token * tokens, std::size_t n, std::int32_t n_vocab, const std::string & what);
inline void check_tokens(const std::vector<Token> & tokens, std::int32_t n_vocab, const char * what) {
    check_tokens(tokens.data(), tokens.size(), n_vocab, what);
}
// The same of the tokens of a set, naming the leaf, and of its rules.
void check_tokens(const Trie & trie, std::int32_t n_vocab);
void check_tokens(const FollowSet & follow, std::int32_t n_vocab);

}  // namespace token_trie
