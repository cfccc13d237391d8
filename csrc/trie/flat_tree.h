#pragma once

#include "trie/trie.h"

namespace token_trie {

// The layout of a small tree. Nodes are numbered level by level, so the children of one node are neighbours, and node
// n + 1's children begin where node n's end. No pointers, no per-node objects:
//
//     leaves  D=[5]  A=[7]  B=[7,8]  C=[7,9]            node    0    1    2    3    4   end
//                                                       first   1    3    3    5    5    5    children of n are
//                 0                                                                           first[n] .. first[n+1]
//               5/ \7                                   leaf    -    D    A    B    C    -
//               1   2                                   token        5    7    8    9         token that leads to n
//                 8/ \9
//                 3   4                                 leaf_node  D:1  A:2  B:3  C:4
//
// first and leaf share a cache line, as a step needs both: 8 bytes a node, 4 for its token, 4 a leaf; 16 at the most.
// A parent is found by binary search in first, which never decreases.
class FlatTree final : public Trie {
   public:
    struct Node {
        std::uint32_t first;
        LeafId leaf;
    };
    struct Names {
        std::string text;                    // each name followed by a NUL
        std::vector<std::uint64_t> offsets;  // n_leaves + 1, or empty: no names
        std::vector<std::uint32_t> rows;     // unnamed leaves: their rows, where these are not 0, 1, 2, ...
    };
    struct Parts {
        std::vector<Node> nodes;         // n_nodes + 1
        std::vector<Token> tokens;       // n_nodes - 1: nothing leads to the root
        std::vector<NodeId> leaf_nodes;  // n_leaves
        Names names;
    };

    FlatTree(Facts facts, Parts parts) : Trie(std::move(facts)), parts_(std::move(parts)) {}

    TokenSpan children(NodeId node) const noexcept override {
        const std::uint32_t first = parts_.nodes[node].first;
        return {parts_.tokens.data() + (first - 1), parts_.nodes[node + 1].first - first};
    }
    NodeId child(NodeId node, Token token) const noexcept override {
        const TokenSpan span = children(node);
        const std::uint32_t at = span.find(token);
        return at == span.size ? kNoNode : child_at(node, at);
    }
    NodeId child_at(NodeId node, std::uint32_t i) const noexcept override { return parts_.nodes[node].first + i; }
    LeafId leaf(NodeId node) const noexcept override { return parts_.nodes[node].leaf; }
    NodeId parent(NodeId node) const noexcept override;
    Token token(NodeId node) const noexcept override { return parts_.tokens[node - 1]; }
    std::uint16_t tokens_to_end(NodeId node) const noexcept override;

    NodeId n_inner() const noexcept override { return n_nodes(); }
    LeafId leaf_below(NodeId /*node*/) const noexcept override { return kNoLeaf; }
    std::vector<double> greatest_below(const std::vector<double> & of_leaves) const override;

    NodeId leaf_node(LeafId leaf) const noexcept override { return parts_.leaf_nodes[leaf]; }
    std::vector<Token> sequence(LeafId leaf) const override;
    bool has_leaf(LeafId /*leaf*/) const noexcept override { return true; }
    const char * stored_name(LeafId leaf) const noexcept override {
        return parts_.names.offsets.empty() ? nullptr : parts_.names.text.data() + parts_.names.offsets[leaf];
    }
    std::uint64_t row(LeafId leaf) const noexcept override {
        return parts_.names.rows.empty() ? leaf : parts_.names.rows[leaf];
    }
    std::size_t structure_bytes() const noexcept override;

   private:
    bool has_layout(Layout layout) const noexcept override { return layout != Layout::compact; }
    std::size_t name_bytes() const noexcept override;

    const Parts parts_;
};

}  // namespace token_trie
