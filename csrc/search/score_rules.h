#pragma once

#include "cursor/cursor.h"
#include "trie/compact_tree.h"
#include "trie/views.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// What a leaf's score has beside the probability of its tokens.
enum class LeafEnd {
    any = TOKEN_TRIE_LEAF_ANY,          // nothing: what comes after does not matter
    longest = TOKEN_TRIE_LEAF_LONGEST,  // that no token comes next by which a longer leaf goes on
    follow = TOKEN_TRIE_LEAF_FOLLOW     // that a token of the follow set comes next
};

struct ScoreOptions {
    // Probabilities renormalized over the allowed set, and that at branch points alone: what a decoder in sampled mode
    // draws. Ends are then those of the decoder, whatever leaf_end says.
    bool branches = false;
    LeafEnd leaf_end = LeafEnd::longest;
    // Score after these tokens instead of the sequence, if any.
    std::vector<Token> prefix;
};

// Of each node of a tree, which outlives this, the tokens to the nearest end of a leaf, as far as 16 bits count. Of a
// filtered one, of all leaves; of a joined one, the nearer of both.
class TokensToEnds {
   public:
    explicit TokensToEnds(const Trie & trie);
    std::uint16_t operator[](NodeId node) const {
        if (joined_ == nullptr) {
            return first_[node];
        }
        const Joined::Parts in = joined_->parts(node);
        return std::min<std::uint16_t>(in.base == kNoNode ? UINT16_MAX : first_[in.base],
                                       in.more == kNoNode || !more_ ? UINT16_MAX : (*more_)[in.more]);
    }

   private:
    class Part {
       public:
        explicit Part(const Trie & trie);
        std::uint16_t operator[](NodeId node) const {
            return compact_ != nullptr ? compact_->tokens_to_end(node) : of_nodes_[node];
        }

       private:
        const CompactTree * compact_;
        std::vector<std::uint16_t> of_nodes_;  // of a flat tree
    };

    const Joined * joined_;
    Part first_;  // of a joined tree its base
    std::optional<Part> more_;
};

// What scores want of a set at each of its nodes, and what the logits there say. Cursor and options are copied from;
// the cursor's trie must outlive this.
class ScoreRules {
   public:
    ScoreRules(const Cursor & cursor, const ScoreOptions & options)
        : trie_(cursor.trie()), follow_(cursor.follow()), leaf_end_(options.leaf_end), branches_(options.branches) {}

    const Trie & trie() const noexcept { return trie_; }
    bool ends_leaf(NodeId node) const noexcept { return trie_.leaf(node) != kNoLeaf; }
    // Whether the logits after node are needed.
    bool needs_logits(NodeId node) const;
    // The deepest node whose logits are needed.
    std::size_t depth() const;

    // The natural logarithm of what comes after node, from the n_vocab logits there: of each child, in the order of
    // their tokens, and of the end of node's own leaf; -inf without one, and where a logit is not finite.
    struct Split {
        std::vector<double> children;
        double end = 0;
    };
    void split(NodeId node, const float * logits, std::size_t n_vocab, Split & out) const;

   private:
    bool needs_logits_of_leaves() const;

    const Trie & trie_;
    const FollowSet & follow_;
    LeafEnd leaf_end_;
    bool branches_;
};

}  // namespace token_trie
