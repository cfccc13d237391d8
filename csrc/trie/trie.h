#pragma once

#include "trie/error.h"
#include "trie/non_copyable.h"

#include <algorithm>
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
// Sets with at least so many leaves, all with tokens below the second number, are laid out compactly.
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
    std::uint32_t find(Token token) const noexcept {
        constexpr std::uint32_t wide = 64;  // four cache lines
        return size > wide ? find_in_wide(token) : find_between(begin(), end(), token);
    }
    bool contains(Token token) const noexcept { return find(token) != size; }

   private:
    std::uint32_t find_between(const Token * low, const Token * high, Token token) const noexcept {
        const Token * at = std::lower_bound(low, high, token);
        return at != end() && *at == token ? static_cast<std::uint32_t>(at - data) : size;
    }
    std::uint32_t find_in_wide(Token token) const noexcept;
};

// A name that was replaced by a smaller one with the same tokens.
struct Alias {
    std::string name;
    LeafId leaf;
};

// The leaves that a trie is built from, in flat arrays; leaf i has tokens[offsets[i] .. offsets[i + 1]).
struct LeafList {
    std::vector<Token> tokens;
    std::vector<std::uint64_t> offsets{0};
    // One name a leaf, or empty: then leaves are called by their position, "0", "1", ...
    std::vector<std::string> names;
    // Fingerprint of the vocabulary that the tokens belong to, "" if unknown.
    std::string vocab;
    // Further names of leaves, by their position.
    std::vector<Alias> aliases;

    std::size_t size() const noexcept { return offsets.size() - 1; }
    void end_leaf() { offsets.push_back(tokens.size()); }
    // Appends the tokens and names of another list; both have names, or neither has.
    void append(LeafList more);
};

// The tokens of a list that the caller owns, with offsets as above.
struct LeafView {
    const Token * tokens = nullptr;
    const std::uint64_t * offsets = nullptr;
    std::size_t size = 0;
};

enum class Layout { by_size, flat, compact };

// An immutable set of token sequences, shared between any number of cursors and threads, as a tree. Children of a node
// are in the order of their tokens, and have higher numbers than it. FlatTree and CompactTree hold one; a Filter is a
// view over a compact one. Children of a filter are listed on first use, so these calls may throw std::bad_alloc.
class Trie : NonCopyable {
   public:
    struct Facts {
        std::uint32_t n_nodes = 0;
        std::uint32_t n_leaves = 0;   // their numbers are below this
        std::uint32_t n_members = 0;  // leaves that are not filtered out
        std::uint64_t n_tokens = 0;
        std::uint32_t max_length = 0;  // tokens of the longest sequence
        Token max_token = -1;
        std::string vocab;
        std::vector<Alias> aliases;
    };

    // Builds the set in one sort and then time linear in the tokens. Empty leaves are skipped; equal ones become one
    // under the smallest name, at the place of the first. Throws Error: payload if no leaf is left or a token is
    // negative, limit.
    static std::shared_ptr<const Trie> build(LeafList leaves, Layout layout = Layout::by_size);
    // Builds it without a copy of the tokens; the leaves have names if names is not empty.
    static std::shared_ptr<const Trie> build(const LeafView & leaves,
                                             std::vector<std::string> names,
                                             std::string vocab,
                                             Layout layout = Layout::by_size);

    // The same members, in the same order and under the same names, in another layout. For a filter, the members that
    // are left, as a trie that is no view.
    static std::shared_ptr<const Trie> laid_out(const std::shared_ptr<const Trie> & trie, Layout layout);

    // Keeps the leaves whose byte is not 0, under their numbers and names. A leaf that the trie has filtered out stays
    // out. Costs a pass over the bytes, and another where leaves are not in the order of their tokens. Throws Error:
    // argument if none is left, limit if the set cannot be laid out compactly.
    static std::shared_ptr<const Trie> filtered(const std::shared_ptr<const Trie> & trie, const std::uint8_t * keep);

    virtual ~Trie() = default;

    virtual TokenSpan children(NodeId node) const = 0;
    // kNoNode if token does not lead on from node.
    virtual NodeId child(NodeId node, Token token) const = 0;
    // The ith of the node's children.
    virtual NodeId child_at(NodeId node, std::uint32_t i) const = 0;
    // kNoLeaf if no leaf ends at node.
    virtual LeafId leaf(NodeId node) const noexcept = 0;
    // The node must not be the root.
    virtual NodeId parent(NodeId node) const noexcept = 0;
    // The token that leads to a node, which is not the root, from its parent.
    virtual Token token(NodeId node) const noexcept = 0;
    // The node that a sequence leads to from the root, kNoNode if it is no path.
    NodeId descend(const Token * tokens, std::size_t n) const;
    // Steps from a node to the nearest end of a leaf, filtered out or not, as far as 16 bits count.
    virtual std::uint16_t tokens_to_end(NodeId node) const = 0;

    // Nodes from this number on have one leaf at or below them, filtered out or not, and children that follow them.
    virtual NodeId n_inner() const noexcept = 0;
    // The leaf at or below such a node.
    virtual LeafId leaf_below(NodeId node) const noexcept = 0;
    // For each node below n_inner, the greatest value of a leaf at or below it, or -inf.
    virtual std::vector<double> greatest_below(const std::vector<double> & of_leaves) const = 0;

    virtual NodeId leaf_node(LeafId leaf) const = 0;
    virtual std::vector<Token> sequence(LeafId leaf) const = 0;
    // Whether the leaf is not filtered out.
    virtual bool has_leaf(LeafId leaf) const = 0;
    std::string name(LeafId leaf) const;
    // Ends in NUL and lives as long as the trie; nullptr if the leaves have no names of their own.
    virtual const char * stored_name(LeafId leaf) const noexcept = 0;
    // Position of a leaf in the list that it came in, by which it is called where it has no name.
    virtual std::uint64_t row(LeafId leaf) const noexcept = 0;
    // Positions in names and the leaves with this name or alias; ascending. Costs a pass over all names.
    std::vector<std::pair<std::size_t, LeafId>> leaves_named(const std::vector<std::string> & names) const;

    const Facts & facts() const noexcept { return facts_; }
    std::uint32_t n_nodes() const noexcept { return facts_.n_nodes; }
    std::uint32_t n_leaves() const noexcept { return facts_.n_leaves; }
    std::uint32_t n_members() const noexcept { return facts_.n_members; }
    std::uint64_t n_tokens() const noexcept { return facts_.n_tokens; }
    std::uint32_t max_length() const noexcept { return facts_.max_length; }
    Token max_token() const noexcept { return facts_.max_token; }
    const std::string & vocab() const noexcept { return facts_.vocab; }
    const std::vector<Alias> & aliases() const noexcept { return facts_.aliases; }
    // Bytes of nodes and leaves, without names.
    virtual std::size_t structure_bytes() const noexcept = 0;
    std::size_t total_bytes() const noexcept;

   protected:
    explicit Trie(Facts facts) : facts_(std::move(facts)) {}

   private:
    // Whether laid_out would only copy it.
    virtual bool has_layout(Layout layout) const noexcept = 0;
    virtual std::size_t name_bytes() const noexcept = 0;

    const Facts facts_;
};

}  // namespace token_trie
