#pragma once

#include "support.h"

#include <algorithm>
#include <optional>

namespace token_trie::test {

// What design and header promise of a cursor, told a second time in the plainest way: a set of sequences, searched from
// one end to the other for each question.
class Oracle {
   public:
    Oracle(std::set<Tokens> members, FollowSet::Options options)
        : members_(std::move(members)), options_(std::move(options)) {}

    // nullopt: every token.
    std::optional<std::set<Token>> allowed() const {
        if (state_ != State::walking) {
            return std::nullopt;
        }
        if (!due_.empty()) {
            return std::set<Token>{due_.front()};
        }
        std::set<Token> out = continuations(item_);
        if (members_.count(item_) > 0) {
            const std::set<Token> follow = after_item();
            if (follow.empty()) {
                return std::nullopt;
            }
            out.insert(follow.begin(), follow.end());
        }
        return out;
    }

    bool accept(Token token) {
        if (state_ != State::walking) {
            return true;
        }
        if (!due_.empty()) {
            const bool right = due_.front() == token;
            due_.erase(due_.begin());
            state_ = right ? State::walking : State::escaped;
            return right;
        }
        if (continuations(item_).count(token) > 0) {
            grow(token);
        } else if (members_.count(item_) == 0) {
            state_ = State::escaped;
        } else if (after_item().empty()) {
            state_ = State::complete;
        } else if (starts_another(token)) {
            ++finished_before_;
            item_.clear();
            if (options_.separator.empty()) {
                grow(token);
            } else {
                due_.assign(options_.separator.begin() + 1, options_.separator.end());
            }
        } else {
            state_ = is_end(token) ? State::complete : State::escaped;
        }
        return state_ != State::escaped;
    }

    State state() const { return state_; }
    std::int32_t n_items() const { return finished_before_ + (members_.count(item_) > 0 ? 1 : 0); }
    // The member under way or finished last; empty between two.
    const Tokens & item() const { return item_; }

   private:
    std::set<Token> continuations(const Tokens & prefix) const {
        std::set<Token> out;
        for (const Tokens & member : members_) {
            if (member.size() > prefix.size() && std::equal(prefix.begin(), prefix.end(), member.begin())) {
                out.insert(member[prefix.size()]);
            }
        }
        return out;
    }

    bool is_end(Token token) const {
        return std::find(options_.end_tokens.begin(), options_.end_tokens.end(), token) != options_.end_tokens.end();
    }

    bool more_items() const { return options_.max_items == 0 || n_items() < options_.max_items; }

    bool starts_another(Token token) const {
        if (options_.on_complete != OnComplete::restart || !more_items()) {
            return false;
        }
        return options_.separator.empty() ? continuations({}).count(token) > 0 : options_.separator.front() == token;
    }

    // Empty: any token.
    std::set<Token> after_item() const {
        std::set<Token> out;
        if (options_.on_complete != OnComplete::release) {
            out.insert(options_.end_tokens.begin(), options_.end_tokens.end());
        }
        if (options_.on_complete == OnComplete::restart && more_items()) {
            out.merge(options_.separator.empty() ? continuations({}) : std::set<Token>{options_.separator.front()});
        }
        return out;
    }

    void grow(Token token) {
        item_.push_back(token);
        if (members_.count(item_) > 0 && continuations(item_).empty() && after_item().empty()) {
            state_ = State::complete;
        }
    }

    std::set<Tokens> members_;
    FollowSet::Options options_;
    Tokens item_;  // the member under way
    Tokens due_;   // what is left of a separator under way
    std::int32_t finished_before_ = 0;
    State state_ = State::walking;
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
        }
    }
};

}  // namespace token_trie::test
