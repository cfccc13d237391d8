#include "trie/trie.h"

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

NodeId Trie::descend(const Token * tokens, std::size_t n) const noexcept {
    NodeId node = kRoot;
    for (std::size_t i = 0; i < n && node != kNoNode; ++i) {
        node = child(node, tokens[i]);
    }
    return node;
}

NodeId Trie::source(EdgeId edge) const noexcept {
    const auto next = std::upper_bound(nodes_.begin(), nodes_.end(), edge,
                                       [](EdgeId value, const Node & n) { return value < n.first; });
    return static_cast<NodeId>(next - nodes_.begin()) - 1;
}

std::vector<Token> Trie::sequence(LeafId leaf) const {
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

const char * Trie::stored_name(LeafId leaf) const noexcept {
    return has_names() ? names_.data() + name_offsets_[leaf] : nullptr;
}

std::string Trie::name(LeafId leaf) const {
    if (has_names()) {
        return names_.substr(name_offsets_[leaf], name_offsets_[leaf + 1] - name_offsets_[leaf] - 1);
    }
    return std::to_string(rows_.empty() ? leaf : rows_[leaf]);
}

std::size_t Trie::structure_bytes() const noexcept {
    return nodes_.size() * sizeof(Node) + tokens_.size() * sizeof(Token) + leaf_nodes_.size() * sizeof(NodeId) +
           targets_.size() * sizeof(NodeId) + entries_.size() * sizeof(std::uint32_t);
}

std::size_t Trie::total_bytes() const noexcept {
    std::size_t bytes = structure_bytes() + names_.size() + name_offsets_.size() * sizeof(std::uint64_t) +
                        rows_.size() * sizeof(std::uint32_t) + vocab_.size() + lexicon_.size() + texts_.size() +
                        text_offsets_.size() * sizeof(std::uint64_t);
    for (const Alias & alias : aliases_) {
        bytes += sizeof(Alias) + alias.name.size();
    }
    return bytes;
}

}  // namespace token_trie
