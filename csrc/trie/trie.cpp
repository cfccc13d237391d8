#include "trie/filter.h"

#include <algorithm>
#include <iterator>

namespace token_trie {

std::uint32_t TokenSpan::find(Token token) const noexcept {
    const Token * at = std::lower_bound(begin(), end(), token);
    return at != end() && *at == token ? static_cast<std::uint32_t>(at - begin()) : size;
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
    if (trie->is_filtered()) {
        return laid_out(kept_alone(trie), layout);
    }
    if (!trie->is_tree() || layout == Layout::by_size || (trie->compact_ != nullptr) == (layout == Layout::compact)) {
        return trie;
    }
    LeafList leaves;
    for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
        if (trie->has_names()) {
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
    made->aliases_ = trie->aliases_;
    return made;
}

std::shared_ptr<const Trie> Trie::filtered(const std::shared_ptr<const Trie> & trie, const std::uint8_t * keep) {
    if (!trie->is_tree()) {
        throw Error(Status::argument, "a set of texts in any tokenization has no filter; use only or without");
    }
    const std::shared_ptr<const Trie> base = trie->is_filtered() ? trie : laid_out(trie, Layout::compact);
    if (base->compact_ == nullptr) {
        throw Error(Status::limit, "a set of token ids from 4194304 on has no filter");
    }
    const std::uint64_t n = base->n_leaves_;
    const CompactTree & tree = *base->compact_;
    auto [words, ones] = bits_of_bytes(keep, n);
    if (tree.shape().is_ordered == 0) {
        const Bits by_leaf({words.data(), words.size()}, n, ones);
        BitsBuilder by_member;
        for (std::uint64_t member = 0; member < n; ++member) {
            by_member.push(by_leaf[tree.leaf_of(member)]);
        }
        ones = by_member.n_ones();
        words = by_member.take();
    }
    if (trie->is_filtered()) {
        const Bits mine({words.data(), words.size()}, n, ones);
        BitsBuilder both;
        for (std::uint64_t member = 0; member < n; ++member) {
            both.push(mine[member] && trie->filter_->kept()[member]);
        }
        ones = both.n_ones();
        words = both.take();
    }
    if (ones == 0) {
        throw Error(Status::argument, "no member of the set is left");
    }
    const std::shared_ptr<Trie> out(new Trie(*base));
    out->filter_ = std::make_shared<const Filter>(base->compact_, std::move(words), ones);
    return out;
}

std::shared_ptr<const Trie> Trie::kept_alone(const std::shared_ptr<const Trie> & trie) {
    if (!trie->is_filtered()) {
        return trie;
    }
    LeafList leaves;
    std::vector<std::uint32_t> numbers(trie->n_leaves(), kNoLeaf);
    for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
        if (trie->has_leaf(leaf)) {
            numbers[leaf] = static_cast<std::uint32_t>(leaves.names.size());
            leaves.names.push_back(trie->name(leaf));
            const std::vector<Token> sequence = trie->sequence(leaf);
            leaves.tokens.insert(leaves.tokens.end(), sequence.begin(), sequence.end());
            leaves.end_leaf();
        }
    }
    leaves.vocab = trie->vocab();
    const std::shared_ptr<Trie> made = std::const_pointer_cast<Trie>(build(std::move(leaves)));
    for (const Alias & alias : trie->aliases()) {
        if (numbers[alias.leaf] != kNoLeaf) {
            made->aliases_.push_back({alias.name, numbers[alias.leaf]});
        }
    }
    return made;
}

std::uint32_t Trie::n_members() const noexcept {
    return filter_ != nullptr ? static_cast<std::uint32_t>(filter_->n_kept()) : n_leaves_;
}

bool Trie::has_leaf(LeafId leaf) const { return filter_ == nullptr || filter_->has_leaf(leaf); }

TokenSpan Trie::compact_children(NodeId node) const {
    return filter_ != nullptr ? filter_->children(node) : compact_->children(node);
}
NodeId Trie::compact_child(NodeId node, Token token) const {
    return filter_ != nullptr ? filter_->child(node, token) : compact_->child(node, token);
}
EdgeId Trie::filtered_edge_at(NodeId node, std::uint32_t i) const { return filter_->edge_at(node, i); }
LeafId Trie::compact_leaf(NodeId node) const noexcept {
    return filter_ != nullptr ? filter_->leaf(node) : compact_->leaf(node);
}
EdgeId Trie::compact_first_edge(NodeId node) const noexcept { return compact_->first_edge(node); }
NodeId Trie::compact_target(EdgeId edge) const noexcept { return compact_->target(edge); }

NodeId Trie::source(EdgeId edge) const noexcept {
    if (compact_ != nullptr) {
        return compact_->source(edge);
    }
    const auto next = std::upper_bound(nodes_.begin(), nodes_.end(), edge,
                                       [](EdgeId value, const Node & n) { return value < n.first; });
    return static_cast<NodeId>(next - nodes_.begin()) - 1;
}

EdgeId Trie::edge_to(NodeId node) const noexcept {
    return compact_ != nullptr ? compact_->edge_to(node) : is_tree() ? node : entries_[node];
}

Token Trie::token_of(EdgeId edge) const noexcept {
    return compact_ != nullptr ? compact_->token_of(edge) : tokens_[edge - 1];
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

std::string_view Trie::text(LeafId leaf) const noexcept {
    if (is_tree()) {
        return {};
    }
    return {texts_.data() + text_offsets_[leaf], text_offsets_[leaf + 1] - text_offsets_[leaf]};
}

bool Trie::has_names() const noexcept { return compact_ != nullptr ? compact_->has_names() : !name_offsets_.empty(); }

const char * Trie::stored_name(LeafId leaf) const noexcept {
    if (compact_ != nullptr) {
        return compact_->stored_name(leaf);
    }
    return has_names() ? names_.data() + name_offsets_[leaf] : nullptr;
}

std::string Trie::name(LeafId leaf) const {
    if (compact_ != nullptr) {
        return compact_->name(leaf);
    }
    if (has_names()) {
        return names_.substr(name_offsets_[leaf], name_offsets_[leaf + 1] - name_offsets_[leaf] - 1);
    }
    return std::to_string(rows_.empty() ? leaf : rows_[leaf]);
}

std::size_t Trie::structure_bytes() const noexcept {
    if (compact_ != nullptr) {
        return compact_->n_bytes() - compact_->shape().n_name_bytes + (filter_ == nullptr ? 0 : filter_->n_bytes());
    }
    return nodes_.size() * sizeof(Node) + tokens_.size() * sizeof(Token) + leaf_nodes_.size() * sizeof(NodeId) +
           targets_.size() * sizeof(NodeId) + entries_.size() * sizeof(std::uint32_t);
}

std::size_t Trie::total_bytes() const noexcept {
    std::size_t bytes = structure_bytes() + (compact_ == nullptr ? 0 : compact_->shape().n_name_bytes) + names_.size() +
                        name_offsets_.size() * sizeof(std::uint64_t) + rows_.size() * sizeof(std::uint32_t) +
                        vocab_.size() + lexicon_.size() + texts_.size() + text_offsets_.size() * sizeof(std::uint64_t);
    for (const Alias & alias : aliases_) {
        bytes += sizeof(Alias) + alias.name.size();
    }
    return bytes;
}

}  // namespace token_trie
