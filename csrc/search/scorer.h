#pragma once

#include "context/sequence.h"
#include "search/score_rules.h"
#include "search/tree_query.h"

namespace [[gnu::visibility("default")]] token_trie {

// Scores every leaf of the cursor's trie, which must outlive this, from its root: natural logarithms, by LeafId; -inf
// where a logit is not finite.
std::unique_ptr<TreeQuery> begin_scoring(const Cursor & cursor, const ScoreOptions & options, std::size_t n_vocab);

// All of it, after a sequence, which is left as it was. Throws Error (context, cancelled).
Answer score_all(Sequence & sequence,
                 const Cursor & cursor,
                 const ScoreOptions & options,
                 const std::atomic<bool> & cancelled);

}  // namespace token_trie
