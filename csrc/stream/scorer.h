#pragma once

#include "sampler/cursor.h"
#include "stream/sequence.h"

#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// What a leaf's score has beside the probability of its tokens. The values of enum token_trie_leaf_end, which csrc/abi
// checks against these.
enum class LeafEnd {
    any = 0,      // nothing: what comes behind does not matter
    longest = 1,  // that no token comes next by which a longer leaf goes on
    follow = 2    // that a token of the follow set comes next
};

struct ScoreOptions {
    // Probabilities renormalized over the allowed set, and that at branch points alone: what a walk in sampled mode
    // draws. Ends are then those of the walk, whatever leaf_end says.
    bool branches = false;
    LeafEnd leaf_end = LeafEnd::longest;
    // Score behind these tokens instead of the sequence, if any.
    std::vector<Token> prefix;
};

// All are natural logarithms, and -inf where a logit is not finite.
struct Scores : Cost {
    std::vector<double> leaves;  // of a whole leaf, by LeafId
    std::vector<double> nodes;   // of a node's token after its parent, by NodeId; 0 for the root
};

// Scores every leaf of the cursor's trie, from its root. The sequence is left as it was. Throws Error (context,
// cancelled).
Scores score_all(Sequence & sequence,
                 const Cursor & cursor,
                 const ScoreOptions & options,
                 const std::atomic<bool> & cancelled);

struct SearchOptions : ScoreOptions {
    std::size_t n_best = 1;
    std::size_t beam_width = 0;   // nodes of one depth that are gone on from; 0: best first, exact
    std::uint64_t max_nodes = 0;  // to evaluate, 0: no limit
};

struct Found {
    LeafId leaf;
    double logprob;
};

struct SearchResult : Cost {
    std::vector<Found> found;  // best first
    // Nats that what was not looked at may be above the last of found, at most; 0 if found are proved the best, +inf if
    // fewer than n_best were found and there may be more.
    double gap = 0;
};

// The n_best best leaves, by scores as of score_all, evaluating as few nodes as it can: a leaf's score is never above
// that of a node on its path, so a search that goes on from the best node each time (A* with a heuristic of 0; Hart,
// Nilsson and Raphael, 1968) may stop when no node left is above the n_best-th leaf found. Equal scores are ranked by
// their tokens. The sequence is left as it was. Throws Error (context, cancelled).
SearchResult search(Sequence & sequence,
                    const Cursor & cursor,
                    const SearchOptions & options,
                    const std::atomic<bool> & cancelled);

}  // namespace token_trie
