#pragma once

#include "context/sequence.h"
#include "cursor/cursor.h"
#include "search/tree_query.h"

#include <atomic>
#include <memory>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// ln of the sum of e^x over n values, to a relative 1e-6: the normalizer that turns logits into log-probabilities. NaN
// counts as -inf; +inf if a value is, or all are -inf, so that no value has a finite log-probability then.
double log_sum_exp(const float * values, std::size_t n) noexcept;

// How a leaf's end counts in its score, beside the probability of its tokens.
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

// Which nodes of a set need logits for the scores, and how logits become scores. Copies from cursor and options; the
// cursor's trie must outlive this.
class ScoreRules {
   public:
    ScoreRules(const Cursor & cursor, const ScoreOptions & options)
        : trie_(cursor.trie()), follow_(cursor.follow()), leaf_end_(options.leaf_end), branches_(options.branches) {}

    const Trie & trie() const noexcept { return trie_; }
    bool ends_leaf(NodeId node) const noexcept { return trie_.leaf(node) != kNoLeaf; }
    // Whether the logits after node are needed.
    bool needs_logits(NodeId node) const;
    // The deepest node whose logits are needed.
    std::size_t depth() const { return trie_.max_length() - (needs_logits_of_leaves() ? 0U : 1U); }

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

// Scores every leaf of the cursor's trie, which must outlive this, from its root: natural logarithms, by LeafId; -inf
// where a logit is not finite.
std::unique_ptr<TreeQuery> begin_scoring(const Cursor & cursor, const ScoreOptions & options, std::size_t n_vocab);

// All of it, after a sequence, which is left as it was. Throws Error (context, cancelled).
Answer score_all(Sequence & sequence,
                 const Cursor & cursor,
                 const ScoreOptions & options,
                 const std::atomic<bool> & cancelled);

}  // namespace token_trie
