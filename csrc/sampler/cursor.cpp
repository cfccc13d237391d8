#include "sampler/cursor.h"

#include <algorithm>

namespace token_trie {
namespace {

void sort_unique(std::vector<Token> & tokens) {
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
}

}  // namespace

void FollowSet::Options::check() const {
    const bool restart = on_complete == OnComplete::restart;
    for (const std::vector<Token> * tokens : {&end_tokens, &separator}) {
        if (std::any_of(tokens->begin(), tokens->end(), [](Token t) { return t < 0; })) {
            throw Error(Status::argument, "end_tokens and separator hold token ids, which are not negative");
        }
    }
    if (max_items < 0) {
        throw Error(Status::argument, "max_items: " + std::to_string(max_items) + " is negative");
    }
    if (!restart && (max_items != 0 || !separator.empty())) {
        throw Error(Status::argument, "separator and max_items go with on_complete restart alone");
    }
    if (on_complete == OnComplete::release && !end_tokens.empty()) {
        throw Error(Status::argument, "end_tokens go with on_complete end or restart");
    }
    if (on_complete == OnComplete::end && end_tokens.empty()) {
        throw Error(Status::argument, "on_complete end needs end_tokens or a vocabulary that has some");
    }
    if (restart && end_tokens.empty() && max_items == 0) {
        throw Error(Status::argument,
                    "on_complete restart needs end_tokens, a vocabulary that has some, or max_items: "
                    "the list could never end");
    }
}

FollowSet::FollowSet(const Trie & trie, Options options) : options_(std::move(options)) {
    options_.check();
    sort_unique(options_.end_tokens);
    next_ = options_.end_tokens;
    if (options_.on_complete == OnComplete::restart) {
        if (options_.separator.empty()) {
            const TokenSpan root = trie.children(kRoot);
            next_.insert(next_.end(), root.begin(), root.end());
        } else {
            next_.push_back(options_.separator.front());
        }
        sort_unique(next_);
    }
}

AllowedSet Cursor::allowed() const noexcept {
    AllowedSet set;
    if (state_ != State::walking) {
        set.everything = true;
    } else if (in_separator_ > 0) {
        set.follow = {&follow_->separator()[in_separator_], 1};
    } else {
        set.children = trie_->children(node_);
        if (trie_->leaf(node_) != kNoLeaf) {
            set.follow = follow_->after(n_items());
            set.everything = set.follow.empty();
        }
    }
    return set;
}

bool Cursor::accept(Token token) noexcept {
    if (state_ != State::walking) {
        return true;
    }
    if (in_separator_ > 0) {
        const std::vector<Token> & separator = follow_->separator();
        if (separator[in_separator_] == token) {
            in_separator_ = in_separator_ + 1 == separator.size() ? 0 : in_separator_ + 1;
            return true;
        }
    } else {
        const NodeId next = trie_->child(node_, token);
        if (next != kNoNode) {
            enter(next);
            return true;
        }
        if (trie_->leaf(node_) != kNoLeaf && leave(token)) {
            return true;
        }
    }
    state_ = State::escaped;
    return false;
}

void Cursor::enter(NodeId node) noexcept {
    node_ = node;
    leaf_ = trie_->leaf(node);
    if (leaf_ != kNoLeaf && trie_->children(node).empty() && follow_->after(n_items()).empty()) {
        state_ = State::complete;
    }
}

// From a finished leaf to what follows it; false if token does not.
bool Cursor::leave(Token token) noexcept {
    const std::int32_t n = n_items();
    if (follow_->after(n).empty()) {
        state_ = State::complete;
        return true;
    }
    if (follow_->on_complete() == OnComplete::restart && follow_->more_items_after(n)) {
        const std::vector<Token> & separator = follow_->separator();
        if (!separator.empty() && separator.front() == token) {
            n_before_ = n;
            node_ = kRoot;
            in_separator_ = separator.size() > 1 ? 1 : 0;
            return true;
        }
        const NodeId next = separator.empty() ? trie_->child(kRoot, token) : kNoNode;
        if (next != kNoNode) {
            n_before_ = n;
            enter(next);
            return true;
        }
    }
    if (follow_->end_tokens().contains(token)) {
        state_ = State::complete;
        return true;
    }
    return false;
}

void Cursor::reset() noexcept {
    node_ = kRoot;
    leaf_ = kNoLeaf;
    n_before_ = 0;
    in_separator_ = 0;
    state_ = State::walking;
}

}  // namespace token_trie
