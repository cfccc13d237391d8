#pragma once

#include "trie/compact_tree.h"

#include <string>

namespace token_trie {

// Writes a compact tree of members that come in the order of their tokens, none twice.
class CompactBuilder {
   public:
    // Where members are: row i is leaves.offsets[rows(i)] and on; prefix(i), how many tokens it shares with the row
    // before.
    struct Sorted {
        LeafView leaves;
        const std::uint32_t * rows;  // of leaves, n
        const std::uint16_t * shared;
        std::uint64_t n;
        Token max_token;
    };

    explicit CompactBuilder(const Sorted & sorted);

    // Which leaf each member is, if that is not its own number: leaves[row].
    void set_order(const std::vector<std::uint32_t> & leaf_of_row);
    void set_names(std::string names, const std::vector<std::uint64_t> & offsets);
    // Rows of the leaves, ascending.
    void set_rows(const std::vector<std::uint32_t> & rows);

    std::shared_ptr<const CompactTree> take();

   private:
    using Owned = std::array<std::vector<std::uint64_t>, CompactTree::n_sections>;
    struct Run {
        std::uint32_t begin;
        std::uint32_t end;
    };

    struct Counts;

    static Counts count(const Sorted & sorted);
    CompactBuilder(const Sorted & sorted, const Counts & counts);
    void lay_out();
    void split(Run run, std::uint32_t depth);
    void put_edge(Run run, std::uint32_t depth, bool is_last);
    std::uint64_t length(std::uint64_t row) const {
        return sorted_.leaves.offsets[sorted_.rows[row] + std::size_t{1}] - sorted_.leaves.offsets[sorted_.rows[row]];
    }
    const Token * tokens(std::uint64_t row) const {
        return sorted_.leaves.tokens + sorted_.leaves.offsets[sorted_.rows[row]];
    }

    const Sorted sorted_;
    CompactTree::Shape shape_;
    std::shared_ptr<Owned> owned_ = std::make_shared<Owned>();
    BitsBuilder inner_;
    BitsBuilder last_;
    BitsBuilder ends_;
    BitsBuilder tail_ends_;
    AscendingBuilder members_;
    PackedBuilder tail_tokens_;
    std::vector<Run> next_;  // inner nodes of the level below
};

}  // namespace token_trie
