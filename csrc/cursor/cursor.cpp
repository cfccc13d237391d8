#include "cursor/cursor.h"

namespace [[gnu::visibility("default")]] token_trie {
namespace {

template <typename Id>
void sort_unique(std::vector<Id> & ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

// The leaves with these names, or names that gave way to theirs, each once.
std::vector<LeafId> leaves_of(const Trie & trie, const std::vector<std::string> & names) {
    const std::vector<std::pair<std::size_t, LeafId>> found = trie.leaves_named(names);
    std::vector<LeafId> leaves;
    std::size_t n_known = 0;  // names found so far; found is in their order
    for (const auto & [i, leaf] : found) {
        if (i > n_known) {
            break;
        }
        n_known = i + 1;
        leaves.push_back(leaf);
    }
    if (n_known < names.size()) {
        throw Error(Status::argument, "exclude[", n_known, "]: ", quote(names[n_known]), " is no member of the set");
    }
    sort_unique(leaves);
    return leaves;
}

}  // namespace

Marker::Marker(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
    fallback_.reserve(tokens_.size());
    for (const Token token : tokens_) {
        fallback_.push_back(fallback_.empty() ? 0 : step(fallback_.back(), token));
    }
}

std::uint32_t Marker::step(std::uint32_t place, Token token) const noexcept {
    while (place > 0 && tokens_[place] != token) {
        place = fallback_[place - 1];
    }
    return place + (tokens_[place] == token ? 1 : 0);
}

void FollowSet::Options::check() const {
    const bool restart = on_complete == OnComplete::restart;
    for (const std::vector<Token> * tokens : {&end_tokens, &separator, &start_after}) {
        throw_if(std::any_of(tokens->begin(), tokens->end(), [](Token t) { return t < 0; }), Status::argument,
                 "end_tokens, separator and start_after hold token ids, which are not negative");
    }
    for (const auto & [name, n] :
         {std::pair("max_items", max_items), std::pair("min_items", min_items), std::pair("max_span", max_span)}) {
        throw_if(n < 0, Status::argument, name, ": ", n, " is negative");
    }
    check_rules({
        {!restart && (max_items != 0 || !separator.empty()),
         "separator and max_items go with on_complete restart alone"},
        {!restart && (min_items != 0 || unique), "min_items and unique go with on_complete restart alone"},
        {on_complete == OnComplete::release && !end_tokens.empty(), "end_tokens go with on_complete end or restart"},
        {on_complete == OnComplete::end && end_tokens.empty(),
         "on_complete end needs end_tokens or a vocabulary that has some"},
        {restart && end_tokens.empty() && max_items == 0 && !unique,
         "on_complete restart needs end_tokens, a vocabulary that has some, max_items, or unique: "
         "the list could never end"},
    });
    throw_if(max_items != 0 && min_items > max_items, Status::argument, "min_items: ", min_items,
             " is more than max_items, ", max_items);
}

FollowSet::FollowSet(const Trie & trie, Options options) : options_(std::move(options)), marker_(options_.start_after) {
    options_.check();
    sort_unique(options_.end_tokens);
    std::vector<Token> & out = options_.not_before;
    for (const Token token : marker_.tokens()) {
        out.erase(std::remove(out.begin(), out.end(), token), out.end());
    }
    sort_unique(out);
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
    if (!options_.unique && options_.exclude.empty()) {
        return;
    }
    const std::vector<LeafId> excluded = leaves_of(trie, options_.exclude);
    const std::size_t n = trie.n_members() - excluded.size();
    throw_if(n == 0, Status::argument, "exclude: no member of the set is left");
    throw_if(options_.unique && static_cast<std::size_t>(options_.min_items) > n, Status::argument,
             "min_items: ", options_.min_items, " without repeats, but there are ", n, " members");
    left_ = Remainder::of(trie, excluded);
    options_.exclude = {};
}

NodeId Cursor::child(NodeId node, Token token, const Remainder * left) const {
    const NodeId next = trie_->child(node, token);
    return left != nullptr && left->is_out(node, token) ? kNoNode : next;
}

// Whether another item may follow the nth.
bool Cursor::has_more(const Remainder * left_after, std::int32_t n) const noexcept {
    return follow_->more_items_after(n) && (left_after == nullptr || !left_after->empty()) &&
           (!follow_->is_long(n_span_) || follow_->end_tokens().empty() || !follow_->may_end_after(n));
}

Ending Cursor::ending() const {
    if (!at_leaf_ || state_ == State::escaped) {
        return Ending::none;
    }
    const bool more = has_more(left_after_.get(), n_items());
    const std::uint32_t n_out = left_ == nullptr ? 0 : left_->children_out(node_).size;
    if (state_ == State::constrained && (more || trie_->children(node_).size > n_out)) {
        return Ending::none;
    }
    if (more || follow_->on_complete() != OnComplete::restart) {
        return Ending::token;
    }
    return !follow_->more_items_after(n_items())            ? Ending::max_items
           : left_after_ != nullptr && left_after_->empty() ? Ending::none_left
                                                            : Ending::max_span;
}

AllowedSet Cursor::allowed() const {
    AllowedSet set;
    if (state_ == State::thinking && follow_->must_start_after(n_thought_)) {
        return next_of_marker();
    }
    if (state_ != State::constrained) {
        set.everything = true;
        set.except = state_ == State::thinking ? follow_->not_before() : TokenSpan{};
        return set;
    }
    const std::vector<Token> & separator = follow_->separator();
    if (in_separator_ > 0) {
        set.follow = {&separator[in_separator_], 1};
        return set;
    }
    set.children = trie_->children(node_);
    if (left_ != nullptr) {
        set.children_out = left_->children_out(node_);
    }
    if (!at_leaf_) {
        return set;
    }
    const bool may_end = follow_->may_end_after(n_items());
    if (!has_more(left_after_.get(), n_items())) {
        set.follow = follow_->end_tokens();
        set.everything = set.follow.empty();
    } else if (may_end && (left_after_ == nullptr || !separator.empty())) {
        set.follow = follow_->after(n_items());
    } else if (!separator.empty()) {
        set.follow = {separator.data(), 1};
    } else {
        set.follow = may_end ? follow_->end_tokens() : TokenSpan{};
        set.beginnings = trie_->children(kRoot);
        if (left_after_ != nullptr) {
            set.beginnings_out = left_after_->children_out(kRoot);
        }
    }
    return set;
}

AllowedSet Cursor::next_of_marker() const noexcept {
    AllowedSet set;
    set.follow = {&follow_->marker().tokens()[in_marker_], 1};
    return set;
}

Cursor::Meaning Cursor::meaning(Token token) const {
    const std::vector<Token> & separator = follow_->separator();
    if (in_separator_ > 0) {
        return {separator[in_separator_] == token ? Meaning::Kind::in_separator : Meaning::Kind::none};
    }
    if (const NodeId next = child(node_, token, left_.get()); next != kNoNode) {
        return {Meaning::Kind::child, next};
    }
    if (!at_leaf_) {
        return {Meaning::Kind::none};
    }
    const bool more = has_more(left_after_.get(), n_items());
    if (more && !separator.empty() && separator.front() == token) {
        return {Meaning::Kind::separator};
    }
    if (more && separator.empty()) {
        if (const NodeId next = child(kRoot, token, left_after_.get()); next != kNoNode) {
            return {Meaning::Kind::beginning, next};
        }
    }
    const TokenSpan ends = follow_->end_tokens();
    const bool is_end =
        more ? follow_->may_end_after(n_items()) && ends.contains(token) : ends.empty() || ends.contains(token);
    return {is_end ? Meaning::Kind::end : Meaning::Kind::none};
}

bool Cursor::accept_any(Token token) {
    if (state_ == State::thinking) {
        return think(token);
    }
    if (state_ != State::constrained) {
        return true;
    }
    const Meaning is = meaning(token);
    switch (is.kind) {
        case Meaning::Kind::none: state_ = State::escaped; return false;
        case Meaning::Kind::child: enter(is.node, n_before_, left_); break;
        case Meaning::Kind::beginning: enter(is.node, n_items(), left_after_); break;
        case Meaning::Kind::separator:
            n_before_ = n_items();
            node_ = kRoot;
            at_leaf_ = false;
            left_ = std::move(left_after_);
            in_separator_ = follow_->separator().size() > 1 ? 1 : 0;
            break;
        case Meaning::Kind::in_separator:
            in_separator_ = in_separator_ + 1 == follow_->separator().size() ? 0 : in_separator_ + 1;
            break;
        case Meaning::Kind::end: state_ = State::complete; break;
    }
    ++n_span_;
    return true;
}

bool Cursor::think(Token token) {
    if (!allowed().contains(token)) {
        state_ = State::escaped;
        return false;
    }
    ++n_thought_;
    in_marker_ = follow_->marker().step(in_marker_, token);
    state_ = in_marker_ == follow_->marker().size() ? State::constrained : State::thinking;
    return true;
}

void Cursor::enter(NodeId node, std::int32_t n_before, const std::shared_ptr<const Remainder> & left) {
    const LeafId leaf = left == nullptr || left->has_member_at(*trie_, node) ? trie_->leaf(node) : kNoLeaf;
    const bool at_leaf = leaf != kNoLeaf;
    // First what may fail.
    std::shared_ptr<const Remainder> after = at_leaf && follow_->unique() ? left->without(*trie_, leaf) : left;
    if (&left != &left_) {
        left_ = left;
    }
    left_after_ = at_leaf ? std::move(after) : nullptr;
    node_ = node;
    leaf_ = leaf;
    n_before_ = n_before;
    at_leaf_ = at_leaf;
    if (at_leaf && follow_->end_tokens().empty() && !has_more(left_after_.get(), n_items()) &&
        allowed().max_size() == 0) {
        state_ = State::complete;
    }
}

void check_tokens(const Token * tokens, std::size_t n, std::int32_t n_vocab, const std::string & what) {
    const Token * const wrong =
        std::find_if(tokens, tokens + n, [n_vocab](Token token) { return token < 0 || token >= n_vocab; });
    if (wrong != tokens + n) {
        throw Error(Status::vocab, what, "[", wrong - tokens, "]: ", *wrong, " is outside the vocabulary (", n_vocab,
                    " tokens)");
    }
}

void check_tokens(const Trie & trie, std::int32_t n_vocab) {
    for (LeafId leaf = 0; trie.max_token() >= n_vocab && leaf < trie.n_leaves(); ++leaf) {
        const std::vector<Token> tokens = trie.sequence(leaf);
        check_tokens(tokens.data(), tokens.size(), n_vocab, "leaf " + quote(trie.name(leaf)) + ": tokens");
    }
}

void check_tokens(const FollowSet & follow, std::int32_t n_vocab) {
    check_tokens(follow.end_tokens().data, follow.end_tokens().size, n_vocab, "end_tokens");
    check_tokens(follow.separator(), n_vocab, "separator");
    check_tokens(follow.marker().tokens(), n_vocab, "start_after");
}

}  // namespace token_trie
