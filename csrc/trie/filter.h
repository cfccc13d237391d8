#pragma once

#include "trie/compact_tree.h"
#include "trie/joined.h"

namespace token_trie {

// Some of the members of a compact tree: a bit a member, in the order of their tokens, so that what is left below a
// node is the next bit of a range, and nothing is built anew. The children that are left of an inner node are listed
// when they are first asked for, and kept: a node visited again costs what it does without a filter.
//
//     kept  0 1 2 3 4     node 1 has members 1 .. 4: its children are those whose own range has a one
//           0 1 0 0 1
//
// Any number of threads may ask at a time. Listing allocates: children and what goes with them throw std::bad_alloc.
class Filter {
   public:
    // Leaves whose byte is not 0 and, of a filter of the same tree before it, those it has. One pass over the bytes.
    Filter(const std::shared_ptr<const CompactTree> & tree, const std::uint8_t * keep, const Filter * before);

    std::uint64_t n_kept() const noexcept { return kept_.n_ones(); }
    bool has_leaf(LeafId leaf) const { return kept_[tree_->member_of(leaf)]; }

    // As those of Trie; of a node that no kept member passes through, nothing.
    TokenSpan children(NodeId node) const;
    EdgeId edge_at(NodeId node, std::uint32_t i) const;
    NodeId child(NodeId node, Token token) const;
    LeafId leaf(NodeId node) const noexcept;
    std::size_t n_bytes() const noexcept;

   private:
    using Listed = ListedChildren::Listed;
    struct Kept {
        std::vector<std::uint64_t> words;  // of Bits
        std::uint64_t n_ones;
    };

    static Kept kept_of(const CompactTree & tree, const std::uint8_t * keep, const Filter * before);
    Filter(std::shared_ptr<const CompactTree> tree, Kept kept);
    const Listed & listed(NodeId inner_node) const {
        return listed_.of(inner_node, [this](Listed & out) { list(out); });
    }
    void list(Listed & out) const;

    const std::shared_ptr<const CompactTree> tree_;
    const std::vector<std::uint64_t> words_;
    const Bits kept_;
    const ListedChildren listed_;
};

}  // namespace token_trie
