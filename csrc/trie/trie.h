#pragma once

#include "trie/error.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

using Token = std::int32_t;
using NodeId = std::uint32_t;
using LeafId = std::uint32_t;

constexpr NodeId kRoot = 0;
constexpr NodeId kNoNode = UINT32_MAX;
constexpr LeafId kNoLeaf = UINT32_MAX;

constexpr std::size_t kMaxNameBytes = 65535;
constexpr std::size_t kMaxLeafTokens = 65535;
// Sets of so many leaves, of tokens below the second number, are laid out compactly.
constexpr std::size_t kCompactLeaves = std::size_t{1} << 15U;
constexpr Token kMaxCompactToken = Token{1} << 22U;

// A run of tokens in ascending order, without repeats.
struct TokenSpan {
    const Token * data = nullptr;
    std::uint32_t size = 0;

    const Token * begin() const noexcept { return data; }
    const Token * end() const noexcept { return data + size; }
    bool empty() const noexcept { return size == 0; }
    // Position of token, or size if it is not here.
    std::uint32_t find(Token token) const noexcept;
    bool contains(Token token) const noexcept { return find(token) != size; }
};

// Leaves on their way into a trie, one after the other in flat arrays; leaf i has tokens[offsets[i] .. offsets[i + 1]).
struct LeafList {
    std::vector<Token> tokens;
    std::vector<std::uint64_t> offsets{0};
    // Empty for an unnamed list (its leaves are called by their position, "0", "1", ...), else one name a leaf.
    std::vector<std::string> names;
    // Fingerprint of the vocabulary that the tokens belong to, "" if unknown.
    std::string vocab;

    std::size_t size() const noexcept { return offsets.size() - 1; }
    void end_leaf() { offsets.push_back(tokens.size()); }
    // After its own, those of another list that is named as this one is.
    void append(LeafList more);
};

// The tokens of a list that the caller holds, offsets as above.
struct LeafView {
    const Token * tokens = nullptr;
    const std::uint64_t * offsets = nullptr;
    std::size_t size = 0;
};

// A name that gave way to a smaller one with the same tokens.
struct Alias {
    std::string name;
    LeafId leaf;
};

enum class Layout { by_size, flat, compact };

class CompactTree;
class Filter;

// An immutable set of token sequences, shared between any number of cursors and threads, as a tree. Children of a node
// come in the order of their tokens, and have higher numbers than it.
//
// Flat: nodes are numbered level by level, so the children of one node are neighbours, and node n + 1's children begin
// where node n's end. No pointers, no per-node objects:
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
//
// Compact, of many leaves: as in compact_tree.h, with inner nodes numbered level by level and the nodes of each tail
// after them. Filtered, a compact one of which some leaves are left: as in filter.h.
class Trie {
   public:
    // Builds the set in one sort and then time linear in the tokens. Empty leaves are skipped; equal ones become one
    // under the smallest name, at the place of the first. Throws Error: payload if no leaf is left or a token is
    // negative, limit.
    static std::shared_ptr<const Trie> build(LeafList leaves, Layout layout = Layout::by_size);
    // The same of tokens that are not copied, named if names are not empty.
    static std::shared_ptr<const Trie> build(const LeafView & leaves,
                                             std::vector<std::string> names,
                                             std::string vocab,
                                             Layout layout = Layout::by_size);
    static std::shared_ptr<const Trie> of(std::shared_ptr<const CompactTree> compact,
                                          std::string vocab,
                                          std::vector<Alias> aliases);

    // The same leaves, in the same order and under the same names, in another layout. Of a filtered trie, those that
    // are left, as a trie of their own.
    static std::shared_ptr<const Trie> laid_out(const std::shared_ptr<const Trie> & trie, Layout layout);

    // Some of the leaves, those whose byte is not 0; leaves keep their numbers and names. Of a filtered trie, the ones
    // that are left of both. Costs a pass over the bytes, and another where leaves are not in the order of their
    // tokens. Throws Error: argument if none is left.
    static std::shared_ptr<const Trie> filtered(const std::shared_ptr<const Trie> & trie, const std::uint8_t * keep);

    TokenSpan children(NodeId node) const {
        if (compact_ != nullptr) {
            return compact_children(node);
        }
        const std::uint32_t first = nodes_[node].first;
        return {tokens_.data() + (first - 1), nodes_[node + 1].first - first};
    }
    // kNoNode if token does not lead on from node.
    NodeId child(NodeId node, Token token) const {
        if (compact_ != nullptr) {
            return compact_child(node, token);
        }
        const TokenSpan span = children(node);
        const std::uint32_t at = span.find(token);
        return at == span.size ? kNoNode : nodes_[node].first + at;
    }
    // The ith of the node's children.
    NodeId child_at(NodeId node, std::uint32_t i) const {
        return compact_ != nullptr ? compact_child_at(node, i) : nodes_[node].first + i;
    }
    // kNoLeaf if no leaf ends at node.
    LeafId leaf(NodeId node) const noexcept { return compact_ != nullptr ? compact_leaf(node) : nodes_[node].leaf; }
    // The node must not be the root.
    NodeId parent(NodeId node) const noexcept;
    // The token that leads to a node, which is not the root, from its parent.
    Token token(NodeId node) const noexcept;
    // The node that a sequence leads to from the root, kNoNode if it is no path.
    NodeId descend(const Token * tokens, std::size_t n) const;
    // From a node to the nearest end of a leaf, filtered out or not, as far as 16 bits count.
    std::uint16_t tokens_to_end(NodeId node) const;

    std::uint32_t n_nodes() const noexcept { return n_nodes_; }
    // Numbers of leaves are below this.
    std::uint32_t n_leaves() const noexcept { return n_leaves_; }
    // Leaves that are there: fewer of a filtered trie.
    std::uint32_t n_members() const noexcept;
    // Whether it is filtered.
    bool is_view() const noexcept { return filter_ != nullptr; }
    bool has_leaf(LeafId leaf) const;
    std::uint64_t n_tokens() const noexcept { return n_tokens_; }
    // Tokens of the longest sequence.
    std::uint32_t max_length() const noexcept { return max_length_; }
    Token max_token() const noexcept { return max_token_; }
    const std::string & vocab() const noexcept { return vocab_; }
    // Of nodes and leaves; names apart.
    std::size_t structure_bytes() const noexcept;
    std::size_t total_bytes() const noexcept;

    NodeId leaf_node(LeafId leaf) const;
    std::vector<Token> sequence(LeafId leaf) const;
    std::string name(LeafId leaf) const;
    // Ends in NUL and lives as long as the trie; nullptr if the leaves have no names of their own.
    const char * stored_name(LeafId leaf) const noexcept;
    bool has_names() const noexcept;

    // Positions in names and leaves that they are the name of, or an alias; ascending. Costs a pass over all names.
    std::vector<std::pair<std::size_t, LeafId>> leaves_named(const std::vector<std::string> & names) const;

    const std::vector<Alias> & aliases() const noexcept { return aliases_; }
    // Null of a trie that is laid out flat.
    const std::shared_ptr<const CompactTree> & compact() const noexcept { return compact_; }

   private:
    struct Node {
        std::uint32_t first;
        LeafId leaf;
    };

    class Builder;
    Trie() = default;

    TokenSpan compact_children(NodeId node) const;
    NodeId compact_child(NodeId node, Token token) const;
    NodeId compact_child_at(NodeId node, std::uint32_t i) const;
    LeafId compact_leaf(NodeId node) const noexcept;

    std::shared_ptr<const CompactTree> compact_;  // where it is there, nothing else is of the structure
    std::shared_ptr<const Filter> filter_;        // of a compact one
    std::uint32_t n_nodes_ = 0;
    std::uint32_t n_leaves_ = 0;
    std::vector<Node> nodes_;         // n_nodes + 1
    std::vector<Token> tokens_;       // n_nodes - 1: nothing leads to the root
    std::vector<NodeId> leaf_nodes_;  // n_leaves
    std::string names_;               // each followed by a NUL
    std::vector<std::uint64_t> name_offsets_;
    std::vector<std::uint32_t> rows_;  // unnamed: positions in the list, where they are not 0, 1, 2, ...
    std::vector<Alias> aliases_;
    std::string vocab_;
    std::uint64_t n_tokens_ = 0;
    std::uint32_t max_length_ = 0;
    Token max_token_ = -1;
};

}  // namespace token_trie
