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
class CompactTree {
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
        order,  // of each member, which leaf it is; none where it is the same
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
    // All numbers of it; in a file as here.
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

    // The words live as long as owner. trusted: they were made here. Throws Error (payload) if they are no tree; of
    // others, only what keeps every call within them is looked at, which is a pass over two bits an edge.
    CompactTree(const Shape & shape, const Sections & sections, std::shared_ptr<const void> owner, bool trusted);

    const Shape & shape() const noexcept { return shape_; }
    const Sections & sections() const noexcept { return sections_; }
    std::uint64_t n_nodes() const noexcept { return shape_.n_inner + shape_.n_tail_nodes; }
    std::uint64_t n_bytes() const noexcept;

    // As those of Trie.
    TokenSpan children(NodeId node) const noexcept;
    NodeId child(NodeId node, Token token) const noexcept;
    NodeId child_at(NodeId node, std::uint32_t i) const noexcept {
        return is_inner(node) ? target(first_edge(node) + i) : node + 1;
    }
    NodeId parent(NodeId node) const noexcept;
    Token token(NodeId node) const noexcept;
    LeafId leaf(NodeId node) const noexcept;
    // The one below a node of a tail.
    LeafId leaf_below(NodeId tail_node) const noexcept {
        return leaf_of(first_member(static_cast<EdgeId>(edge_of_tail_at(tail_node - shape_.n_inner) + 1)));
    }
    NodeId leaf_node(LeafId leaf) const;
    std::vector<Token> sequence(LeafId leaf) const;
    const char * stored_name(LeafId leaf) const noexcept;
    // In the list that it came in, by which a leaf without a name is called.
    std::uint64_t row(LeafId leaf) const noexcept { return shape_.has_rows != 0 ? rows_[leaf] : leaf; }
    bool has_names() const noexcept { return shape_.n_name_bytes > 0; }

    bool is_inner(NodeId node) const noexcept { return node < shape_.n_inner; }
    // Edges lead out of inner nodes, from 1 on, those of one node in the order of its children.
    EdgeId first_edge(NodeId inner_node) const noexcept { return static_cast<EdgeId>(edges_begin(inner_node) + 1); }
    NodeId target(EdgeId edge) const noexcept;
    // Members in the order of their tokens; below a node they are neighbours.
    struct Range {
        std::uint64_t begin;
        std::uint64_t end;
    };
    Range members(NodeId inner_node) const noexcept;
    std::uint64_t first_member(EdgeId edge) const noexcept;
    // The last of some edges of an inner node that begins with a member or before it.
    EdgeId edge_of_member(EdgeId begin, EdgeId end, std::uint64_t member) const noexcept;
    bool ends_member(NodeId inner_node) const noexcept { return ends_[inner_node]; }
    // That ends at a node; n_members if none does.
    std::uint64_t member_at(NodeId node) const noexcept;
    LeafId leaf_of(std::uint64_t member) const noexcept {
        return shape_.is_ordered != 0 ? static_cast<LeafId>(member)
                                      : std::min(order_[member], static_cast<LeafId>(shape_.n_members - 1));
    }
    // The first call for a tree that is in another order takes a pass over it, and 4 bytes a member from then on.
    std::uint64_t member_of(LeafId leaf) const;
    // From a node to the nearest end of a member, as far as 16 bits count. The first call takes a pass over the inner
    // nodes, and 2 bytes for each from then on.
    std::uint16_t tokens_to_end(NodeId node) const;

   private:
    static constexpr std::uint64_t kChecked = 4096;

    struct Edges {
        std::uint64_t begin;
        std::uint64_t end;
    };
    // Whether a node of a tail is its first one, to which an edge leads.
    bool begins_tail(std::uint64_t at) const noexcept { return at == 0 || tail_ends_[at - 1]; }
    // The edge to an inner node other than the root, or to the first node of a tail.
    EdgeId edge_to(NodeId node) const noexcept;
    Token token_of(EdgeId edge) const noexcept;
    // Without a look at its edges, of which there may be as many as tokens.
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
    // Of a file: blocks of edge tokens that were seen to be tokens.
    mutable std::vector<std::atomic<bool>> checked_;
    mutable std::once_flag has_member_of_;
    mutable std::vector<std::uint32_t> member_of_;
    mutable std::once_flag has_to_ends_;
    mutable std::vector<std::uint16_t> to_ends_;  // of inner nodes
};

// Writes a compact tree of members that come one after the other, in the order of their tokens. They are not kept: each
// level of inner nodes is written as they come, in pieces that are joined in the end, each gone when it is. So this
// takes little more than the tree does.
class CompactBuilder {
   public:
    // No token of a member is above max_token.
    explicit CompactBuilder(Token max_token);

    // tokens are after those of the member before; n is 1 at least.
    void add(const Token * tokens, std::size_t n);

    // The rest goes with all members. Which leaf each is.
    void set_order(const std::vector<std::uint32_t> & leaves);
    void set_names(const std::string & names, const std::vector<std::uint64_t> & offsets);
    // Rows of the leaves, ascending.
    void set_rows(const std::vector<std::uint32_t> & rows);

    // The tree; the builder has nothing any more.
    std::shared_ptr<const CompactTree> take();

   private:
    using Owned = std::array<std::vector<std::uint64_t>, CompactTree::n_sections>;
    static constexpr std::size_t kPiece = std::size_t{1} << 18U;  // edges

    // Of the inner nodes of one depth, some, and what leads on from them.
    struct Piece {
        explicit Piece(std::uint32_t width) : tail_tokens(width) {}

        BitsBuilder ends;
        std::vector<std::uint32_t> tokens;  // of edges
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
    // Where the next edge of a depth goes.
    Piece & piece(std::size_t depth);
    void join();
    void put_ascending(AscendingBuilder & from, CompactTree::Section low, CompactTree::Section high);

    CompactTree::Shape shape_;
    std::uint32_t width_;
    std::vector<Token> member_;  // the last one, of which put is still to come
    std::size_t shared_ = 0;     // tokens it begins with as the one before
    std::vector<Level> levels_;
    std::shared_ptr<Owned> owned_ = std::make_shared<Owned>();
};

}  // namespace token_trie
