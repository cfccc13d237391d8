#pragma once

#include "trie/bits.h"
#include "trie/trie.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string>

namespace [[gnu::visibility("default")]] token_trie {

using EdgeId = std::uint32_t;

// The layout of a large tree. Members are counted in the order of their tokens. A node below which there is but one
// member is part of a tail, which lies flat; the others are inner nodes, numbered level by level:
//
//     members  0 [5]   1 [7]   2 [7,8,4,4]   3 [7,8,6]   4 [9,1]
//
//          0                  edge         0  1  2   3   4  5
//       5/ |7 \9              token        5  7  9   8   4  6    4 bytes each
//       *  1   *-1-*          inner        0  1  0   1   0  0    a bit
//         8|                  last         0  0  1   1   0  1    a bit
//          2                  member       0  1  4   2   2  3    2 bits and a few: the first below, + n a level
//       4/  \6                ends         0   1   0             a bit an inner node
//      *-4-*  *               tail ends    1 | 0 1 | 0 1 | 1     a bit a node of a tail
//                             tail tokens      1     4           as many bits as the largest takes
//
// The edges of an inner node are neighbours: it has those after the last of the node before. The kth edge that is not
// inner leads to tail k, whose first token it is. Node ids: inner nodes, then those of tails. About 17 bytes a member
// where 10 million of 8 uniform tokens out of 2,048 are in no order, of which 3 are for the order they came in.
class CompactTree final : public Trie {
   public:
    enum Section : std::uint32_t {
        edge_tokens,  // two in a word
        inner,
        last,
        member_low,
        member_high,
        ends,
        tail_ends,
        tail_tokens,
        order,  // which leaf each member is; none where the numbers are the same
        name_low,
        name_high,
        names,  // bytes, each name followed by a NUL
        row_low,
        row_high,
        inner_hints,
        last_hints,
        member_hints,
        tail_hints,
        n_sections
    };
    // All numbers of a tree; in a file as here.
    struct Shape {
        std::uint64_t n_members = 0;
        std::uint64_t n_inner = 0;
        std::uint64_t n_edges = 0;  // out of inner nodes
        std::uint64_t n_tail_nodes = 0;
        std::uint64_t n_tokens = 0;
        std::uint64_t n_ends = 0;
        std::uint64_t n_member_high = 0;  // bits
        std::uint64_t n_name_bytes = 0;
        std::uint64_t n_name_high = 0;
        std::uint64_t n_row_high = 0;
        std::uint64_t most_row = 0;
        std::uint32_t max_length = 0;
        std::int32_t max_token = -1;
        std::uint32_t is_ordered = 1;
        std::uint32_t has_rows = 0;

        std::uint64_t n_tails() const noexcept { return n_edges + 1 - n_inner; }
        // Words of each section. Throws Error (payload) if the numbers contradict each other.
        std::array<std::uint64_t, n_sections> words() const;
    };
    using Sections = std::array<Words, n_sections>;

    // The words live as long as owner. Throws Error (payload) if they are no tree. Words that are not trusted are
    // checked as far as no call leaves them, which is a pass over two bits an edge.
    CompactTree(const Shape & shape,
                const Sections & sections,
                std::shared_ptr<const void> owner,
                bool trusted,
                std::string vocab,
                std::vector<Alias> aliases);

    const Shape & shape() const noexcept { return shape_; }
    const Sections & sections() const noexcept { return sections_; }

    TokenSpan children(NodeId node) const noexcept override;
    NodeId child(NodeId node, Token token) const noexcept override;
    NodeId child_at(NodeId node, std::uint32_t i) const noexcept override {
        return is_inner(node) ? target(first_edge(node) + i) : node + 1;
    }
    NodeId parent(NodeId node) const noexcept override;
    Token token(NodeId node) const noexcept override;
    LeafId leaf(NodeId node) const noexcept override;
    // The first call takes a pass over the inner nodes, and 2 bytes for each from then on.
    std::uint16_t tokens_to_end(NodeId node) const override;
    NodeId n_inner() const noexcept override { return static_cast<NodeId>(shape_.n_inner); }
    LeafId leaf_below(NodeId tail_node) const noexcept override {
        return leaf_of(first_member(static_cast<EdgeId>(edge_of_tail_at(tail_node - shape_.n_inner) + 1)));
    }
    std::vector<double> greatest_below(const std::vector<double> & of_leaves) const override;
    NodeId leaf_node(LeafId leaf) const override;
    std::vector<Token> sequence(LeafId leaf) const override;
    bool has_leaf(LeafId /*leaf*/) const noexcept override { return true; }
    const char * stored_name(LeafId leaf) const noexcept override;
    std::uint64_t row(LeafId leaf) const noexcept override { return shape_.has_rows != 0 ? rows_[leaf] : leaf; }
    std::size_t structure_bytes() const noexcept override;

    bool is_inner(NodeId node) const noexcept { return node < shape_.n_inner; }
    // Edges lead out of inner nodes, and are numbered from 1 on; the edges of a node are in the order of its children.
    EdgeId first_edge(NodeId inner_node) const noexcept { return static_cast<EdgeId>(edges_begin(inner_node) + 1); }
    NodeId target(EdgeId edge) const noexcept;
    // Members are numbered in the order of their tokens; the members below a node are neighbours.
    struct Range {
        std::uint64_t begin;
        std::uint64_t end;
    };
    Range members(NodeId inner_node) const noexcept;
    std::uint64_t first_member(EdgeId edge) const noexcept;
    // The last of some edges of an inner node that begins with a member or before it.
    EdgeId edge_of_member(EdgeId begin, EdgeId end, std::uint64_t member) const noexcept;
    bool ends_member(NodeId inner_node) const noexcept { return ends_[inner_node]; }
    // The member that ends at a node; n_members if none does.
    std::uint64_t member_at(NodeId node) const noexcept;
    LeafId leaf_of(std::uint64_t member) const noexcept {
        return shape_.is_ordered != 0 ? static_cast<LeafId>(member)
                                      : std::min(order_[member], static_cast<LeafId>(shape_.n_members - 1));
    }
    // The first call for a tree that is in another order takes a pass over it, and 4 bytes a member from then on.
    std::uint64_t member_of(LeafId leaf) const;

   private:
    static constexpr std::uint64_t kChecked = 4096;

    struct Edges {
        std::uint64_t begin;
        std::uint64_t end;
    };
    bool has_layout(Layout layout) const noexcept override { return layout != Layout::flat; }
    std::size_t name_bytes() const noexcept override { return shape_.n_name_bytes; }
    bool has_names() const noexcept { return shape_.n_name_bytes > 0; }
    // Whether a node of a tail is its first one, to which an edge leads.
    bool begins_tail(std::uint64_t at) const noexcept { return at == 0 || tail_ends_[at - 1]; }
    // The edge to an inner node other than the root, or to the first node of a tail.
    EdgeId edge_to(NodeId node) const noexcept;
    Token token_of(EdgeId edge) const noexcept;
    // Does not read the edges, which may be as many as tokens.
    std::uint64_t edges_begin(NodeId inner_node) const noexcept;
    Edges edges_of(NodeId inner_node) const noexcept;
    bool are_checked(Edges edges) const noexcept;
    bool check(std::uint64_t block) const noexcept;
    std::uint64_t tail_begin(std::uint64_t tail) const noexcept;
    std::uint64_t edge_of_tail_at(std::uint64_t at) const noexcept;
    // The token after a node of a tail, -1 at the end.
    Token next_in_tail(std::uint64_t at) const noexcept;
    template <typename Visit>
    NodeId descend_to(std::uint64_t member, const Visit & visit) const;
    void check_shape() const;
    template <typename Value, typename AtTail, typename Join, typename AtNode>
    std::vector<Value> from_below(Value none, const AtTail & at_tail, const Join & join, const AtNode & at_node) const;
    std::vector<std::uint16_t> count_to_ends() const;

    Shape shape_;
    Sections sections_;
    std::shared_ptr<const void> owner_;
    std::shared_ptr<const std::vector<Token>> every_token_;  // 0, 1, 2, ...: where the span of one token lies
    const Token * tokens_;
    Bits inner_;
    Bits last_;
    Bits ends_;
    Bits tail_ends_;
    Ascending members_;
    Ascending names_at_;
    Ascending rows_;
    PackedNumbers tail_tokens_;
    PackedNumbers order_;
    const char * names_;
    // Blocks of a file's edge tokens that have been checked; empty for a trusted tree.
    mutable std::vector<std::atomic<bool>> checked_;
    mutable std::once_flag has_member_of_;
    mutable std::vector<std::uint32_t> member_of_;
    mutable std::once_flag has_to_ends_;
    mutable std::vector<std::uint16_t> to_ends_;  // by inner node
};

// A trie as a compact tree, which is the trie itself where it is one; null if its tokens are too large for that.
std::shared_ptr<const CompactTree> compacted(const std::shared_ptr<const Trie> & trie);

// Writes a compact tree from members that come in the order of their tokens. They are not kept: each level of inner
// nodes is written as they come, in pieces that are joined in the end and freed one by one. So this takes little more
// memory than the tree.
class CompactBuilder {
   public:
    // No token of a member is above max_token.
    explicit CompactBuilder(Token max_token);

    // tokens come after the previous member's; n is 1 at least.
    void add(const Token * tokens, std::size_t n);

    // After all members: which leaf each of them is.
    void set_order(const std::vector<std::uint32_t> & leaves);
    void set_names(const std::string & names, const std::vector<std::uint64_t> & offsets);
    // The leaves' rows, ascending.
    void set_rows(const std::vector<std::uint32_t> & rows);

    // Returns the tree, and leaves the builder empty.
    std::shared_ptr<const CompactTree> take(std::string vocab, std::vector<Alias> aliases);

   private:
    using Owned = std::array<std::vector<std::uint64_t>, CompactTree::n_sections>;
    static constexpr std::size_t kPiece = std::size_t{1} << 18U;  // edges

    // Some inner nodes of one depth, with their edges and tails.
    struct Piece {
        explicit Piece(std::uint32_t width) : tail_tokens(width) {}

        BitsBuilder ends;
        std::vector<std::uint32_t> tokens;  // one an edge
        std::vector<std::uint32_t> members;
        BitsBuilder inner;
        BitsBuilder last;
        BitsBuilder tail_ends;
        PackedBuilder tail_tokens;
    };
    struct Level {
        std::vector<Piece> pieces;
        bool is_open = false;  // whether the newest edge is a node's last is not written yet
    };

    void put(std::size_t shared_with_next);
    // The piece that the next edge of a depth goes to.
    Piece & piece(std::size_t depth);
    void join();
    void put_ascending(AscendingBuilder & from, CompactTree::Section low, CompactTree::Section high);

    CompactTree::Shape shape_;
    std::uint32_t width_;
    std::vector<Token> member_;  // the newest one, which put has still to write
    std::size_t shared_ = 0;     // tokens it begins with as the one before
    std::vector<Level> levels_;
    std::shared_ptr<Owned> owned_ = std::make_shared<Owned>();
};

}  // namespace token_trie
