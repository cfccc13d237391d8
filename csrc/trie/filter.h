#pragma once

#include "trie/compact_tree.h"

#include <atomic>

namespace [[gnu::visibility("default")]] token_trie {

// A view over a compact tree that keeps some of its members: a bit a member, in the order of their tokens, so that what
// is left below a node is the next bit of a range, and nothing is built anew. The children that are left of an inner
// node are listed when they are first asked for, and kept: a node visited again costs what it does without a filter.
//
//     kept  0 1 2 3 4     node 1 has members 1 .. 4: its children are those whose own range has a one
//           0 1 0 0 1
//
// Any number of threads may ask at a time. A node that no kept member passes through has no children.
class Filter final : public Trie {
   public:
    // Keeps leaves whose byte is not 0, as far as an earlier filter of the same tree has them. One pass over the bytes.
    Filter(const std::shared_ptr<const CompactTree> & tree, const std::uint8_t * keep, const Filter * before);
    ~Filter() override;

    const std::shared_ptr<const CompactTree> & tree() const noexcept { return tree_; }

    TokenSpan children(NodeId node) const override;
    NodeId child(NodeId node, Token token) const override;
    NodeId child_at(NodeId node, std::uint32_t i) const override;
    LeafId leaf(NodeId node) const noexcept override;
    NodeId parent(NodeId node) const noexcept override { return tree_->parent(node); }
    Token token(NodeId node) const noexcept override { return tree_->token(node); }
    std::uint16_t tokens_to_end(NodeId node) const override { return tree_->tokens_to_end(node); }
    NodeId n_inner() const noexcept override { return tree_->n_inner(); }
    LeafId leaf_below(NodeId tail_node) const noexcept override { return tree_->leaf_below(tail_node); }
    std::vector<double> greatest_below(const std::vector<double> & of_leaves) const override;
    NodeId leaf_node(LeafId leaf) const override { return tree_->leaf_node(leaf); }
    std::vector<Token> sequence(LeafId leaf) const override { return tree_->sequence(leaf); }
    bool has_leaf(LeafId leaf) const override { return kept_[tree_->member_of(leaf)]; }
    const char * stored_name(LeafId leaf) const noexcept override { return tree_->stored_name(leaf); }
    std::uint64_t row(LeafId leaf) const noexcept override { return tree_->row(leaf); }
    std::size_t structure_bytes() const noexcept override;

   private:
    // The children that are left of an inner node.
    struct Listed {
        NodeId node = kNoNode;
        std::vector<Token> tokens;
        std::vector<EdgeId> edges;
        Listed * next = nullptr;

        TokenSpan span() const noexcept { return {tokens.data(), static_cast<std::uint32_t>(tokens.size())}; }
    };
    static constexpr std::size_t kBuckets = 4096;

    static BitsBuilder kept_of(const CompactTree & tree, const std::uint8_t * keep, const Filter * before);
    Filter(const std::shared_ptr<const CompactTree> & tree, BitsBuilder kept);
    // Valid as long as this.
    const Listed & listed(NodeId inner_node) const;
    std::unique_ptr<Listed> list(NodeId inner_node) const;
    bool has_layout(Layout /*layout*/) const noexcept override { return false; }
    std::size_t name_bytes() const noexcept override { return tree_->shape().n_name_bytes; }

    const std::shared_ptr<const CompactTree> tree_;
    const std::vector<std::uint64_t> words_;
    const Bits kept_;
    mutable std::vector<std::atomic<Listed *>> buckets_;  // chains by node, in which none is taken out
};

}  // namespace token_trie
