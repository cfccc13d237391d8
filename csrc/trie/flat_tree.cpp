#include "trie/flat_tree.h"

#include <limits>

namespace token_trie {

NodeId FlatTree::parent(NodeId node) const noexcept {
    const auto next = std::upper_bound(parts_.nodes.begin(), parts_.nodes.end(), node,
                                       [](NodeId value, const Node & n) { return value < n.first; });
    return static_cast<NodeId>(next - parts_.nodes.begin()) - 1;
}

std::uint16_t FlatTree::tokens_to_end(NodeId node) const noexcept {
    // The nodes of each depth below a node are neighbours.
    std::uint16_t n = 0;
    NodeId begin = node;
    NodeId end = node + 1;
    const auto ends_leaf = [&] {
        return std::any_of(parts_.nodes.begin() + begin, parts_.nodes.begin() + end,
                           [](const Node & each) { return each.leaf != kNoLeaf; });
    };
    for (; !ends_leaf(); ++n) {
        begin = parts_.nodes[begin].first;
        end = parts_.nodes[end].first;
    }
    return n;
}

std::vector<double> FlatTree::greatest_below(const std::vector<double> & of_leaves) const {
    std::vector<double> out(n_nodes(), -std::numeric_limits<double>::infinity());
    for (NodeId node = n_nodes(); node-- > 0;) {
        for (NodeId below = parts_.nodes[node].first; below < parts_.nodes[node + 1].first; ++below) {
            out[node] = std::max(out[node], out[below]);
        }
        if (leaf(node) != kNoLeaf) {
            out[node] = std::max(out[node], of_leaves[leaf(node)]);
        }
    }
    return out;
}

std::vector<Token> FlatTree::sequence(LeafId leaf) const {
    std::vector<Token> out;
    for (NodeId node = leaf_node(leaf); node != kRoot; node = parent(node)) {
        out.push_back(token(node));
    }
    std::reverse(out.begin(), out.end());
    return out;
}

std::size_t FlatTree::structure_bytes() const noexcept {
    return parts_.nodes.size() * sizeof(Node) + parts_.tokens.size() * sizeof(Token) +
           parts_.leaf_nodes.size() * sizeof(NodeId);
}

std::size_t FlatTree::name_bytes() const noexcept {
    return parts_.names.text.size() + parts_.names.offsets.size() * sizeof(std::uint64_t) +
           parts_.names.rows.size() * sizeof(std::uint32_t);
}

}  // namespace token_trie
