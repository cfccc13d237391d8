#pragma once

#include "trie/compact_tree.h"
#include "trie/non_copyable.h"

#include <atomic>

namespace [[gnu::visibility("default")]] token_trie {

// Some of the members of a compact tree: a bit a member, in the order of their tokens, so that what is left below a
// node is the next bit of a range, and nothing is built anew. The children that are left of an inner node are listed
// when they are first asked for, and kept: a node visited again costs what it does without a filter.
//
//     kept  0 1 2 3 4     node 1 has members 1 .. 4: its children are those whose own range has a one
//           0 1 0 0 1
//
// Any number of threads may ask at a time. Listing allocates: children and what goes with them throw std::bad_alloc.
class Filter : NonCopyable {
   public:
    // Leaves whose byte is not 0 and, of a filter of the same tree before it, those it has. One pass over the bytes.
    Filter(const std::shared_ptr<const CompactTree> & tree, const std::uint8_t * keep, const Filter * before);
    ~Filter();

    std::uint64_t n_kept() const noexcept { return kept_.n_ones(); }
    bool has_leaf(LeafId leaf) const { return kept_[tree_->member_of(leaf)]; }

    // As those of Trie; of a node that no kept member passes through, nothing.
    TokenSpan children(NodeId node) const;
    NodeId child_at(NodeId node, std::uint32_t i) const;
    NodeId child(NodeId node, Token token) const;
    LeafId leaf(NodeId node) const noexcept;
    std::size_t n_bytes() const noexcept;

   private:
    // The children that are left of an inner node.
    struct Listed {
        NodeId node = kNoNode;
        std::vector<Token> tokens;
        std::vector<EdgeId> edges;
        Listed * next = nullptr;

        TokenSpan span() const noexcept { return {tokens.data(), static_cast<std::uint32_t>(tokens.size())}; }
    };
    struct Kept {
        std::vector<std::uint64_t> words;  // of Bits
        std::uint64_t n_ones;
    };
    static constexpr std::size_t kBuckets = 4096;

    static Kept kept_of(const CompactTree & tree, const std::uint8_t * keep, const Filter * before);
    Filter(std::shared_ptr<const CompactTree> tree, Kept kept);
    // Valid as long as this.
    const Listed & listed(NodeId inner_node) const;
    std::unique_ptr<Listed> list(NodeId inner_node) const;

    const std::shared_ptr<const CompactTree> tree_;
    const std::vector<std::uint64_t> words_;
    const Bits kept_;
    mutable std::vector<std::atomic<Listed *>> buckets_;  // chains by node, in which none is taken out
};

}  // namespace token_trie
