#pragma once

#include "trie/trie.h"

#include <memory>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// The part of a trie that is left when members are out. Immutable; every call takes the trie that it was made for.
//
// An edge is out when no member that is left lies after it. Of these only the ones are kept that begin at a node which
// is still to be had, by node and token, so that those of one node are neighbours, and never more than members
// are out:
//
//     leaves  D=[5]  A=[7]  B=[7,8]  C=[7,9]            out          C        C B      C B A    all
//                 0
//               5/ \7                                   edges out    2:9      2:8 2:9  0:7      -
//               1   2*                                  ended        -        -        -        -
//                 8/ \9
//                 3   4                                 out          A        A C
//                                                       edges out    -        2:9
//                                                       ended        2        2
class Remainder {
   public:
    // All but the members given, each once. Cost: that of their tokens.
    static std::shared_ptr<const Remainder> of(const Trie & trie, const std::vector<LeafId> & out);

    // Takes out one more member, which is left. Cost: a copy, and what has no way out any more.
    std::shared_ptr<const Remainder> without(const Trie & trie, LeafId leaf) const;

    bool empty() const noexcept { return empty_; }
    bool is_out(NodeId node, Token token) const noexcept { return children_out(node).contains(token); }
    // Whether a member that is left ends at a node, which some member that is left passes through.
    bool has_member_at(const Trie & trie, NodeId node) const noexcept;
    // The node's children that are out. Valid as long as this is.
    TokenSpan children_out(NodeId node) const noexcept;

   private:
    void take(const Trie & trie, const std::vector<LeafId> & out);

    // The edges that are out, ascending by node, then token.
    std::vector<NodeId> nodes_;
    std::vector<Token> tokens_;
    std::vector<NodeId> ended_;  // ascending; where a member is out and others that begin with it are left
    bool empty_ = false;
};

}  // namespace token_trie
