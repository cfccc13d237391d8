#include "trie/filter.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

namespace token_trie {

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

std::shared_ptr<const Trie> Trie::filtered(const std::shared_ptr<const Trie> & trie, const std::uint8_t * keep) {
    const std::shared_ptr<const Trie> base = trie->is_view() ? trie : laid_out(trie, Layout::compact);
    throw_if(base->compact_ == nullptr, Status::limit, "a set of token ids from 4194304 on has no filter");
    const auto out = std::make_shared<Trie>(*base);
    out->filter_ = std::make_shared<const Filter>(base->compact_, keep, base->filter_.get());
    throw_if(out->n_members() == 0, Status::argument, "no member of the set is left");
    return out;
}

TokenSpan Trie::compact_children(NodeId node) const {
    return filter_ != nullptr ? filter_->children(node) : compact_->children(node);
}

NodeId Trie::compact_child(NodeId node, Token token) const {
    return filter_ != nullptr ? filter_->child(node, token) : compact_->child(node, token);
}

NodeId Trie::compact_child_at(NodeId node, std::uint32_t i) const {
    return filter_ != nullptr ? filter_->child_at(node, i) : compact_->child_at(node, i);
}

LeafId Trie::compact_leaf(NodeId node) const noexcept {
    return filter_ != nullptr ? filter_->leaf(node) : compact_->leaf(node);
}

NodeId Trie::parent(NodeId node) const noexcept {
    if (compact_ != nullptr) {
        return compact_->parent(node);
    }
    const auto next = std::upper_bound(nodes_.begin(), nodes_.end(), node,
                                       [](NodeId value, const Node & n) { return value < n.first; });
    return static_cast<NodeId>(next - nodes_.begin()) - 1;
}

Token Trie::token(NodeId node) const noexcept {
    return compact_ != nullptr ? compact_->token(node) : tokens_[node - 1];
}

std::uint16_t Trie::tokens_to_end(NodeId node) const {
    if (compact_ != nullptr) {
        return compact_->tokens_to_end(node);
    }
    // The nodes of each depth below a node are neighbours.
    std::uint16_t n = 0;
    NodeId begin = node;
    NodeId end = node + 1;
    const auto ends_leaf = [&] {
        return std::any_of(nodes_.begin() + begin, nodes_.begin() + end,
                           [](const Node & each) { return each.leaf != kNoLeaf; });
    };
    for (; !ends_leaf(); ++n) {
        begin = nodes_[begin].first;
        end = nodes_[end].first;
    }
    return n;
}

NodeId Trie::leaf_node(LeafId leaf) const {
    return compact_ != nullptr ? compact_->leaf_node(leaf) : leaf_nodes_[leaf];
}

std::vector<Token> Trie::sequence(LeafId leaf) const {
    if (compact_ != nullptr) {
        return compact_->sequence(leaf);
    }
    std::vector<Token> out;
    for (NodeId node = leaf_nodes_[leaf]; node != kRoot; node = parent(node)) {
        out.push_back(token(node));
    }
    std::reverse(out.begin(), out.end());
    return out;
}

bool Trie::has_names() const noexcept { return compact_ != nullptr ? compact_->has_names() : !name_offsets_.empty(); }

const char * Trie::stored_name(LeafId leaf) const noexcept {
    if (compact_ != nullptr) {
        return compact_->stored_name(leaf);
    }
    return has_names() ? names_.data() + name_offsets_[leaf] : nullptr;
}

std::string Trie::name(LeafId leaf) const {
    if (const char * const stored = stored_name(leaf)) {
        return stored;
    }
    return std::to_string(compact_ != nullptr ? compact_->row(leaf) : rows_.empty() ? leaf : rows_[leaf]);
}

std::uint32_t Trie::n_members() const noexcept {
    return filter_ != nullptr ? static_cast<std::uint32_t>(filter_->n_kept()) : n_leaves_;
}

bool Trie::has_leaf(LeafId leaf) const { return filter_ == nullptr || filter_->has_leaf(leaf); }

std::size_t Trie::structure_bytes() const noexcept {
    if (compact_ != nullptr) {
        return compact_->n_bytes() - compact_->shape().n_name_bytes + (filter_ == nullptr ? 0 : filter_->n_bytes());
    }
    return nodes_.size() * sizeof(Node) + tokens_.size() * sizeof(Token) + leaf_nodes_.size() * sizeof(NodeId);
}

std::size_t Trie::total_bytes() const noexcept {
    std::size_t bytes = structure_bytes() + (compact_ == nullptr ? 0 : compact_->shape().n_name_bytes) + names_.size() +
                        name_offsets_.size() * sizeof(std::uint64_t) + rows_.size() * sizeof(std::uint32_t) +
                        vocab_.size();
    for (const Alias & alias : aliases_) {
        bytes += sizeof(Alias) + alias.name.size();
    }
    return bytes;
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

}  // namespace token_trie
