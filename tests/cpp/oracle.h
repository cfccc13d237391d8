#pragma once

#include "support.h"

#include <algorithm>
#include <optional>

namespace token_trie::test {

// A second cursor, in the plainest way, that does what design and header promise: a set of sequences, searched from
// one end to the other for each question.
class Oracle {
   public:
    // Without the members that are excluded, which options name in a way that is the trie's to know.
    Oracle(std::set<Tokens> members, FollowSet::Options options)
        : left_(std::move(members)), options_(std::move(options)) {}

    // nullopt: every token.
    std::optional<std::set<Token>> allowed() const {
        if (state_ != State::constrained) {
            return std::nullopt;
        }
        if (!due_.empty()) {
            return std::set<Token>{due_.front()};
        }
        std::set<Token> out = continuations(left_, item_);
        if (is_finished()) {
            const std::set<Token> follow = after_item();
            if (follow.empty()) {
                return std::nullopt;
            }
            out.insert(follow.begin(), follow.end());
        }
        return out;
    }

    bool accept(Token token) {
        if (state_ != State::constrained) {
            return true;
        }
        if (!due_.empty()) {
            const bool right = due_.front() == token;
            due_.erase(due_.begin());
            state_ = right ? State::constrained : State::escaped;
            return right;
        }
        if (continuations(left_, item_).count(token) > 0) {
            grow(token);
        } else if (!is_finished()) {
            state_ = State::escaped;
        } else if (after_item().empty()) {
            state_ = State::complete;
        } else if (starts_another(token)) {
            ++finished_before_;
            left_ = left_behind();
            item_.clear();
            if (options_.separator.empty()) {
                grow(token);
            } else {
                due_.assign(options_.separator.begin() + 1, options_.separator.end());
            }
        } else {
            state_ = ends().count(token) > 0 ? State::complete : State::escaped;
        }
        return state_ != State::escaped;
    }

    State state() const { return state_; }
    std::int32_t n_items() const { return finished_before_ + (is_finished() ? 1 : 0); }
    bool is_finished() const { return left_.count(item_) > 0; }
    // The member under way or finished last; empty between two.
    const Tokens & item() const { return item_; }

   private:
    static std::set<Token> continuations(const std::set<Tokens> & members, const Tokens & prefix) {
        std::set<Token> out;
        for (const Tokens & member : members) {
            if (member.size() > prefix.size() && std::equal(prefix.begin(), prefix.end(), member.begin())) {
                out.insert(member[prefix.size()]);
            }
        }
        return out;
    }

    // The members that may come after a finished one.
    std::set<Tokens> left_behind() const {
        std::set<Tokens> left = left_;
        if (options_.unique) {
            left.erase(item_);
        }
        return left;
    }

    // The tokens that may begin behind a finished member, a separator or another member.
    std::set<Token> beginnings() const {
        const bool full = options_.max_items != 0 && n_items() >= options_.max_items;
        if (options_.on_complete != OnComplete::restart || full || left_behind().empty()) {
            return {};
        }
        return options_.separator.empty() ? continuations(left_behind(), {}) : std::set{options_.separator.front()};
    }

    std::set<Token> ends() const {
        if (n_items() < options_.min_items) {
            return {};
        }
        return {options_.end_tokens.begin(), options_.end_tokens.end()};
    }

    bool starts_another(Token token) const { return beginnings().count(token) > 0; }

    // Empty: any token.
    std::set<Token> after_item() const {
        std::set<Token> out = ends();
        out.merge(beginnings());
        return out;
    }

    void grow(Token token) {
        item_.push_back(token);
        if (is_finished() && continuations(left_, item_).empty() && after_item().empty()) {
            state_ = State::complete;
        }
    }

    std::set<Tokens> left_;  // for the item under way
    FollowSet::Options options_;
    Tokens item_;  // the member under way
    Tokens due_;   // the rest of a separator under way
    std::int32_t finished_before_ = 0;
    State state_ = State::constrained;
};

// A random set with options to go with it, over the tokens 0 .. n_tokens. Separators and end tokens are drawn from the
// same tokens as members, so that they collide.
struct RandomCase {
    std::set<Tokens> members;
    FollowSet::Options options;

    RandomCase(std::mt19937 & rng, Token n_tokens) {
        const auto below = [&rng](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(rng); };
        const auto tokens = [&](std::size_t n) {
            Tokens out(n);
            for (Token & token : out) {
                token = static_cast<Token>(below(static_cast<std::size_t>(n_tokens)));
            }
            return out;
        };
        members = random_members(rng, 1 + below(12), 1 + below(4), n_tokens);
        options.on_complete = static_cast<OnComplete>(below(3));
        if (options.on_complete == OnComplete::end) {
            options.end_tokens = tokens(1 + below(3));
        } else if (options.on_complete == OnComplete::restart) {
            options.separator = tokens(below(4));
            options.max_items = static_cast<std::int32_t>(below(4));
            options.end_tokens = tokens(options.max_items == 0 ? 1 + below(3) : below(3));
            options.unique = below(2) == 0;
            options.min_items = static_cast<std::int32_t>(below(4));
        }
        limit_min_items(members.size());
    }

    // Takes members out, by the names that they have in an unnamed trie, and leaves one at least.
    void exclude_some(std::mt19937 & rng) {
        const std::set<Tokens> all = members;
        std::size_t i = 0;
        for (const Tokens & member : all) {
            if (members.size() > 1 && rng() % 3 == 0) {
                options.exclude.push_back(std::to_string(i));
                members.erase(member);
            }
            ++i;
        }
        limit_min_items(members.size());
    }

    void limit_min_items(std::size_t n_members) {
        if (options.max_items > 0) {
            options.min_items = std::min(options.min_items, options.max_items);
        }
        if (options.unique) {
            options.min_items = std::min(options.min_items, static_cast<std::int32_t>(n_members));
        }
    }
};

}  // namespace token_trie::test
