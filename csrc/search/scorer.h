#pragma once

#include "context/sequence.h"
#include "search/score_rules.h"
#include "search/tree_query.h"

namespace [[gnu::visibility("default")]] token_trie {

// All are natural logarithms, and -inf where a logit is not finite.
struct LeafScores {
    std::vector<double> leaves;  // of a whole leaf, by LeafId
    std::vector<double> nodes;   // of a node's token after its parent, by NodeId; 0 for the root
};
struct Scores : Cost, LeafScores {};
using Scoring = Decision<LeafScores>;

// Scores every leaf of the cursor's trie, which must outlive this, from its root.
std::unique_ptr<Scoring> begin_scoring(const Cursor & cursor, const ScoreOptions & options, std::size_t n_vocab);

// All of it, behind a sequence. The sequence is left as it was. Throws Error (context,
// cancelled).
Scores score_all(Sequence & sequence,
                 const Cursor & cursor,
                 const ScoreOptions & options,
                 const std::atomic<bool> & cancelled);

}  // namespace token_trie
