#include "trie/views.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

namespace token_trie {

// NOLINTBEGIN(misc-no-recursion): of a joined trie into its parts, which are not joined
namespace {

std::uint32_t find_between(const TokenSpan & span, const Token * low, const Token * high, Token token) noexcept {
    const Token * at = std::lower_bound(low, high, token);
    return at != span.end() && *at == token ? static_cast<std::uint32_t>(at - span.begin()) : span.size;
}

// Begins where it would be if they were spread evenly, and goes on from there in steps that double.
[[gnu::noinline]] std::uint32_t find_in_wide(const TokenSpan & span, Token token) noexcept {
    const Token first = span.data[0];
    const Token last = span.data[span.size - 1];
    if (token < first || token > last) {
        return span.size;
    }
    const auto width = static_cast<std::uint64_t>(std::max(1, last - first));
    const Token * low = span.begin();
    const Token * high = span.end();
    const Token * guess = low + static_cast<std::uint64_t>(token - first) * (span.size - 1) / width;
    std::ptrdiff_t step = 16;
    if (*guess < token) {
        for (low = guess + 1; high - low > step && low[step] < token; step *= 2) {
            low += step;
        }
        high = high - low > step ? low + step + 1 : high;
    } else {
        for (high = guess + 1; high - low > step && high[-1 - step] >= token; step *= 2) {
            high -= step;
        }
        low = high - low > step ? high - step : low;
    }
    return find_between(span, low, high, token);
}

}  // namespace

std::uint32_t TokenSpan::find(Token token) const noexcept {
    constexpr std::uint32_t wide = 64;  // four cache lines
    return size > wide ? find_in_wide(*this, token) : find_between(*this, begin(), end(), token);
}

void LeafList::append(LeafList more) {
    const std::size_t n_before = tokens.size();
    tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.end());
    std::transform(more.offsets.begin() + 1, more.offsets.end(), std::back_inserter(offsets),
                   [n_before](std::uint64_t offset) { return n_before + offset; });
    std::move(more.names.begin(), more.names.end(), std::back_inserter(names));
}

NodeId Trie::descend(const Token * tokens, std::size_t n) const {
    NodeId node = kRoot;
    for (std::size_t i = 0; i < n && node != kNoNode; ++i) {
        node = child(node, tokens[i]);
    }
    return node;
}

std::shared_ptr<const Trie> Trie::of(std::shared_ptr<const CompactTree> compact,
                                     std::string vocab,
                                     std::vector<Alias> aliases) {
    std::shared_ptr<Trie> trie(new Trie);
    const CompactTree::Shape & shape = compact->shape();
    trie->n_nodes_ = static_cast<std::uint32_t>(compact->n_nodes());
    trie->n_leaves_ = static_cast<std::uint32_t>(shape.n_members);
    trie->n_tokens_ = shape.n_tokens;
    trie->max_length_ = shape.max_length;
    trie->max_token_ = shape.max_token;
    trie->compact_ = std::move(compact);
    trie->vocab_ = std::move(vocab);
    trie->aliases_ = std::move(aliases);
    return trie;
}

std::shared_ptr<const Trie> Trie::laid_out(const std::shared_ptr<const Trie> & trie, Layout layout) {
    const bool has_layout = layout == Layout::by_size || (trie->compact_ != nullptr) == (layout == Layout::compact);
    if (!trie->is_view() && has_layout) {
        return trie;
    }
    const bool is_named = trie->is_view() || trie->has_names();
    LeafList leaves;
    std::vector<LeafId> numbers(trie->n_leaves(), kNoLeaf);
    LeafId n = 0;
    for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
        if (!trie->has_leaf(leaf)) {
            continue;
        }
        numbers[leaf] = n++;
        if (is_named) {
            leaves.names.push_back(trie->name(leaf));
        } else {
            // Leaves without tokens are left out, and count.
            for (const std::size_t row = std::stoul(trie->name(leaf)); leaves.size() < row;) {
                leaves.end_leaf();
            }
        }
        const std::vector<Token> sequence = trie->sequence(leaf);
        leaves.tokens.insert(leaves.tokens.end(), sequence.begin(), sequence.end());
        leaves.end_leaf();
    }
    leaves.vocab = trie->vocab();
    const std::shared_ptr<Trie> made = std::const_pointer_cast<Trie>(build(std::move(leaves), layout));
    for (const Alias & alias : trie->aliases()) {
        if (numbers[alias.leaf] != kNoLeaf) {
            made->aliases_.push_back({alias.name, numbers[alias.leaf]});
        }
    }
    return made;
}

NodeId Trie::leaf_node(LeafId leaf) const {
    if (joined_ != nullptr) {
        return joined_->leaf_node(leaf);
    }
    return compact_ != nullptr ? compact_->leaf_node(leaf) : leaf_nodes_[leaf];
}

std::vector<Token> Trie::sequence(LeafId leaf) const {
    const auto [trie, own] = owner(leaf);
    if (trie->compact_ != nullptr) {
        return trie->compact_->sequence(own);
    }
    std::vector<Token> out;
    for (NodeId node = trie->leaf_nodes_[own]; node != kRoot; node = trie->parent(node)) {
        out.push_back(trie->token(node));
    }
    std::reverse(out.begin(), out.end());
    return out;
}

bool Trie::has_names() const noexcept {
    if (joined_ != nullptr) {
        return joined_->base()->has_names() || joined_->more()->has_names();
    }
    return compact_ != nullptr ? compact_->has_names() : !name_offsets_.empty();
}

// Where it is joined, its part that has a leaf, and the leaf's number there.
std::pair<const Trie *, LeafId> Trie::owner(LeafId leaf) const noexcept {
    return joined_ != nullptr ? joined_->owner(leaf) : std::pair(this, leaf);
}

const char * Trie::stored_name(LeafId leaf) const noexcept {
    const auto [trie, own] = owner(leaf);
    if (trie->compact_ != nullptr) {
        return trie->compact_->stored_name(own);
    }
    return trie->has_names() ? trie->names_.data() + trie->name_offsets_[own] : nullptr;
}

std::string Trie::name(LeafId leaf) const {
    if (const char * const stored = stored_name(leaf)) {
        return stored;
    }
    const auto [trie, own] = owner(leaf);
    if (trie->compact_ != nullptr) {
        return std::to_string(trie->compact_->row(own));
    }
    return std::to_string(trie->rows_.empty() ? own : trie->rows_[own]);
}

std::size_t Trie::structure_bytes() const noexcept {
    if (joined_ != nullptr) {
        return joined_->base()->structure_bytes() + joined_->more()->structure_bytes() + joined_->n_bytes();
    }
    if (compact_ != nullptr) {
        return compact_->n_bytes() - compact_->shape().n_name_bytes + (filter_ == nullptr ? 0 : filter_->n_bytes());
    }
    return nodes_.size() * sizeof(Node) + tokens_.size() * sizeof(Token) + leaf_nodes_.size() * sizeof(NodeId);
}

std::size_t Trie::total_bytes() const noexcept {
    if (joined_ != nullptr) {
        return joined_->base()->total_bytes() + joined_->more()->total_bytes() + joined_->n_bytes();
    }
    std::size_t bytes = structure_bytes() + (compact_ == nullptr ? 0 : compact_->shape().n_name_bytes) + names_.size() +
                        name_offsets_.size() * sizeof(std::uint64_t) + rows_.size() * sizeof(std::uint32_t) +
                        vocab_.size();
    for (const Alias & alias : aliases_) {
        bytes += sizeof(Alias) + alias.name.size();
    }
    return bytes;
}

// Tries that are views of others: filtered, joined.

std::shared_ptr<const Trie> Trie::laid_out_for_view(const std::shared_ptr<const Trie> & trie) {
    std::shared_ptr<const Trie> out = trie->filter_ != nullptr ? trie : laid_out(trie, Layout::compact);
    throw_if(out->compact_ == nullptr, Status::limit, "a set of token ids from 4194304 on has no views");
    return out;
}

std::shared_ptr<const Trie> Trie::left_of(const std::shared_ptr<const Trie> & trie, const std::uint8_t * keep) {
    if (trie->joined_ != nullptr) {
        return join(left_of(trie->joined_->base(), keep),
                    left_of(trie->joined_->more(), keep + trie->joined_->base()->n_leaves()));
    }
    const std::shared_ptr<const Trie> base = laid_out_for_view(trie);
    const auto out = std::make_shared<Trie>(*base);
    out->filter_ = std::make_shared<const Filter>(base->compact_, keep, trie->filter_.get());
    return out;
}

std::shared_ptr<const Trie> Trie::filtered(const std::shared_ptr<const Trie> & trie, const std::uint8_t * keep) {
    std::shared_ptr<const Trie> out = left_of(trie, keep);
    throw_if(out->n_members() == 0, Status::argument, "no member of the set is left");
    return out;
}

std::shared_ptr<const Trie> Trie::join(std::shared_ptr<const Trie> base, std::shared_ptr<const Trie> more) {
    const std::shared_ptr<Trie> out(new Trie);
    out->compact_ = base->compact_;
    out->n_nodes_ = base->n_nodes() + more->n_nodes();
    out->n_leaves_ = base->n_leaves() + more->n_leaves();
    out->n_tokens_ = base->n_tokens() + more->n_tokens();
    out->max_length_ = std::max(base->max_length(), more->max_length());
    out->max_token_ = std::max(base->max_token(), more->max_token());
    out->vocab_ = base->vocab();
    out->aliases_ = base->aliases();
    for (const Alias & alias : more->aliases()) {
        out->aliases_.push_back({alias.name, base->n_leaves() + alias.leaf});
    }
    out->joined_ = std::make_shared<const Joined>(std::move(base), std::move(more));
    return out;
}

std::shared_ptr<const Trie> Trie::joined(const std::shared_ptr<const Trie> & base,
                                         const std::shared_ptr<const Trie> & more,
                                         const std::uint8_t * keep) {
    for (const std::shared_ptr<const Trie> & trie : {base, more}) {
        throw_if(trie->joined_ != nullptr, Status::argument, "sets are joined of two that are laid out");
    }
    throw_if(more->max_token() >= kMaxCompactToken, Status::limit, "token ", more->max_token(),
             " is too large for a file of a set");
    throw_if(!base->vocab().empty() && !more->vocab().empty() && base->vocab() != more->vocab(), Status::vocab,
             "the sets belong to different vocabularies");
    const std::shared_ptr<const Trie> laid = laid_out_for_view(base);
    std::shared_ptr<const Trie> out = join(keep == nullptr ? laid : left_of(laid, keep), more);
    throw_if(out->n_members() == 0, Status::argument, "no member of the set is left");
    return out;
}

std::uint32_t Trie::n_members() const noexcept {
    if (joined_ != nullptr) {
        return joined_->base()->n_members() + joined_->more()->n_members();
    }
    return filter_ != nullptr ? static_cast<std::uint32_t>(filter_->n_kept()) : n_leaves_;
}

bool Trie::has_leaf(LeafId leaf) const {
    const auto [trie, own] = owner(leaf);
    return trie->filter_ == nullptr || trie->filter_->has_leaf(own);
}

TokenSpan Trie::compact_children(NodeId node) const {
    return joined_ != nullptr   ? joined_->children(node)
           : filter_ != nullptr ? filter_->children(node)
                                : compact_->children(node);
}
NodeId Trie::compact_child(NodeId node, Token token) const {
    return joined_ != nullptr   ? joined_->child(node, token)
           : filter_ != nullptr ? filter_->child(node, token)
                                : compact_->child(node, token);
}
EdgeId Trie::viewed_edge_at(NodeId node, std::uint32_t i) const {
    return joined_ != nullptr ? joined_->edge_at(node, i) : filter_->edge_at(node, i);
}
LeafId Trie::compact_leaf(NodeId node) const noexcept {
    return joined_ != nullptr ? joined_->leaf(node) : filter_ != nullptr ? filter_->leaf(node) : compact_->leaf(node);
}
EdgeId Trie::compact_first_edge(NodeId node) const noexcept { return compact_->first_edge(node); }
NodeId Trie::compact_target(EdgeId edge) const noexcept {
    return joined_ != nullptr ? joined_->target(edge) : compact_->target(edge);
}

NodeId Trie::source(EdgeId edge) const noexcept {
    if (compact_ != nullptr) {
        return joined_ != nullptr ? joined_->source(edge) : compact_->source(edge);
    }
    const auto next = std::upper_bound(nodes_.begin(), nodes_.end(), edge,
                                       [](EdgeId value, const Node & n) { return value < n.first; });
    return static_cast<NodeId>(next - nodes_.begin()) - 1;
}

EdgeId Trie::edge_to(NodeId node) const noexcept {
    if (compact_ != nullptr) {
        return joined_ != nullptr ? joined_->edge_to(node) : compact_->edge_to(node);
    }
    return node;
}

Token Trie::token_of(EdgeId edge) const noexcept {
    if (compact_ != nullptr) {
        return joined_ != nullptr ? joined_->token_of(edge) : compact_->token_of(edge);
    }
    return tokens_[edge - 1];
}

std::vector<std::pair<std::size_t, LeafId>> Trie::leaves_named(const std::vector<std::string> & names) const {
    std::unordered_multimap<std::string_view, std::size_t> wanted;
    for (std::size_t i = 0; i < names.size(); ++i) {
        wanted.emplace(names[i], i);
    }
    std::vector<std::pair<std::size_t, LeafId>> out;
    const auto look_at = [&](std::string_view name, LeafId leaf) {
        const auto [begin, end] = wanted.equal_range(name);
        for (auto at = begin; at != end; ++at) {
            out.emplace_back(at->second, leaf);
        }
    };
    for (LeafId leaf = 0; leaf < n_leaves() && !wanted.empty(); ++leaf) {
        if (has_leaf(leaf)) {
            const char * const stored = stored_name(leaf);
            stored != nullptr ? look_at(stored, leaf) : look_at(name(leaf), leaf);
        }
    }
    for (const Alias & alias : aliases()) {
        if (has_leaf(alias.leaf)) {
            look_at(alias.name, alias.leaf);
        }
    }
    std::sort(out.begin(), out.end());
    return out;
}

// NOLINTEND(misc-no-recursion)

}  // namespace token_trie
