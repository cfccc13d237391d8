#pragma once

#include "trie/compact_tree.h"

#include <string>

namespace token_trie {

// Writes a compact tree of members that come one after the other, in the order of their tokens. They are not kept: each
// level of inner nodes is written as they come, in pieces that are joined in the end, each gone when it is. So this
// takes little more than the tree does.
class CompactBuilder {
   public:
    // No token of a member is above max_token.
    explicit CompactBuilder(Token max_token);

    // tokens are behind those of the member before; n is 1 at least.
    void add(const Token * tokens, std::size_t n);
    std::uint64_t n_members() const noexcept { return shape_.n_members; }

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
