#pragma once

#include "trie/compact_tree.h"
#include "trie/non_copyable.h"
#include "trie/trie.h"

#include <atomic>

namespace [[gnu::visibility("default")]] token_trie {

// The children of nodes whose children have to be found out: listed when they are first asked for, and kept, so that a
// node visited again costs what it does in a tree that has them. Any number of threads may ask at a time. Listing
// allocates, and throws std::bad_alloc.
class ListedChildren : NonCopyable {
   public:
    struct Listed {
        NodeId node = kNoNode;
        std::vector<Token> tokens;
        std::vector<EdgeId> edges;
        Listed * next = nullptr;

        TokenSpan span() const noexcept { return {tokens.data(), static_cast<std::uint32_t>(tokens.size())}; }
        void push(Token token, EdgeId edge) {
            tokens.push_back(token);
            edges.push_back(edge);
        }
    };

    ListedChildren() : buckets_(kBuckets) {}
    ~ListedChildren();

    // list(out) fills in the tokens, ascending, and the edges of out.node. Valid as long as this.
    template <typename List>
    const Listed & of(NodeId node, List && list) const {
        std::atomic<Listed *> & bucket = buckets_[node % kBuckets];
        if (const Listed * const found = find(bucket.load(std::memory_order_acquire), node)) {
            return *found;
        }
        auto made = std::make_unique<Listed>();
        made->node = node;
        list(*made);
        // Another thread may have listed the same one: either serves.
        made->next = bucket.load(std::memory_order_relaxed);
        while (!bucket.compare_exchange_weak(made->next, made.get(), std::memory_order_release,
                                             std::memory_order_relaxed)) {
        }
        return *made.release();
    }

    static constexpr std::size_t kBytes = 4096 * sizeof(void *);  // without what is listed

   private:
    static constexpr std::size_t kBuckets = 4096;

    static const Listed * find(const Listed * one, NodeId node) noexcept {
        for (; one != nullptr && one->node != node; one = one->next) {
        }
        return one;
    }

    mutable std::vector<std::atomic<Listed *>> buckets_;  // chains, in which none is taken out
};

// Two trees as one: a large one, and what was added to it since. Nothing of the large one is copied.
//
//     base  A=[5]  B=[7,8]        base  0        more  0        joined  0             nodes of base keep their numbers,
//     more  C=[7,9]                   5/ \7            |7             5/ \7           those of more follow: m is n + m
//                                     1   2            1             1   4 = 2 + 1    where base has n; a node of both
//                                         |8           |9               8/ \9         goes by more's, but for the root
//                                         3            2               3    6
//
// Of a node of both, the children are merged when they are first asked for. Leaves of base keep their numbers too,
// those of more follow. Calls are as Trie's, and from any number of threads.
class Joined {
   public:
    // Throws Error: argument if a sequence is in both, limit if there are more numbers than 32 bits have.
    Joined(std::shared_ptr<const Trie> base, std::shared_ptr<const Trie> more);

    // A node's in either; kNoNode where it is in one alone.
    struct Parts {
        NodeId base;
        NodeId more;
    };
    Parts parts(NodeId node) const noexcept;

    TokenSpan children(NodeId node) const;
    NodeId child(NodeId node, Token token) const;
    EdgeId edge_at(NodeId node, std::uint32_t i) const;
    NodeId target(EdgeId edge) const noexcept;
    NodeId source(EdgeId edge) const noexcept;
    EdgeId edge_to(NodeId node) const noexcept;
    Token token_of(EdgeId edge) const noexcept;
    LeafId leaf(NodeId node) const noexcept;
    NodeId leaf_node(LeafId leaf) const;
    // The trie that has a leaf, and its number there.
    std::pair<const Trie *, LeafId> owner(LeafId leaf) const noexcept;

    const std::shared_ptr<const Trie> & base() const noexcept { return base_; }
    const std::shared_ptr<const Trie> & more() const noexcept { return more_; }
    std::uint32_t n_nodes() const noexcept { return n_base_nodes_ + more_->n_nodes(); }
    std::size_t n_bytes() const noexcept;

   private:
    const ListedChildren::Listed & merged(NodeId node, const Parts & parts) const;
    NodeId of_more(NodeId node) const noexcept { return node == kRoot ? kRoot : n_base_nodes_ + node; }
    NodeId of_base(NodeId node) const noexcept;

    const std::shared_ptr<const Trie> base_;
    const std::shared_ptr<const Trie> more_;
    const std::uint32_t n_base_nodes_;
    const EdgeId n_base_edges_;
    std::vector<NodeId> base_of_;                    // of each node of more, kNoNode where base has none
    std::vector<std::pair<NodeId, NodeId>> shared_;  // base's and more's, ascending
    const ListedChildren listed_;
};

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
    std::size_t n_bytes() const noexcept { return words_.size() * sizeof(std::uint64_t) + ListedChildren::kBytes; }

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
