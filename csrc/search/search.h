#pragma once

#include "context/sequence.h"
#include "search/leaf_weights.h"
#include "search/scorer.h"
#include "search/tree_query.h"

#include <chrono>
#include <memory>

namespace [[gnu::visibility("default")]] token_trie {

struct SearchOptions : ScoreOptions {
    std::size_t n_best = 1;
    // Nodes of one depth that are gone on from, fewer where max_nodes is near; 0: best first, exact.
    std::size_t beam_width = 0;
    // Limits before its proof. The best leaves found until then are its result, one at least.
    std::uint64_t max_nodes = 0;                 // to evaluate, each counted once; 0: no limit
    std::chrono::milliseconds timeout{0};        // since it began, looked at between batches; 0: none
    std::shared_ptr<const LeafWeights> weights;  // added to logprobs, for ranks; null: none
};

// The n_best best leaves, by scores as of score_all, in as little time as their proof needs. A leaf's score is never
// above that of a node on its path, so a search that goes on from the best node each time (A* with a heuristic of 0;
// Hart, Nilsson and Raphael, 1968) may stop when no node left is above the n_best-th leaf found. With weights, a node's
// score has the most of any leaf at or below it (which is then the heuristic).
//
// A batch has more than the best node, as each row of it takes less than a pass of its own would:
//
//     root -0.9 READ  -0.1 _ -?- FILE      in one batch: READ, the _ that must follow it, and SEND, which may win if
//      |    '-2.0 SEND -?- _ -?- MAIL      the best leaf below READ loses a nat or more on its way. Not CALL.
//      '--- -7.1 CALL -?- ...
//
// The nodes not known yet, -?-, are taken for as probable as if the children of each shared its probability evenly. How
// far below the best a node may be to be worth a row depends on what rows cost beside passes, and doubles with each
// batch that has proved nothing. Where all layers are on devices a batch takes as many rows as it may have, so that a
// small set is decided in one. Where little remains, and by these guesses a proof needs most of it, the next batch has
// all of it, so that no set takes much longer than to score it whole. None of this changes what is found.
//
// In a large set whose members are all improbable, most nodes near the root are above the best leaf, and a proof takes
// thousands. After some rows (half of max_nodes at most) a search therefore dives once: it goes on from the best
// open nodes of each depth, as many as max_nodes has rows for (a beam). So good leaves come early, what remains is
// their proof, and max_nodes and timeout may end it. A dive that has begun goes on to its leaves, so that up to twice
// max_nodes are evaluated, if members have many more tokens than the shortest.
//
// Equal scores are ranked by their tokens.
//
// The cursor's trie must outlive it.
std::unique_ptr<TreeQuery> begin_search(const Cursor & cursor,
                                        const SearchOptions & options,
                                        std::size_t n_vocab,
                                        const Batches & batches);

// All of it, after a sequence, which is left as it was. Throws Error (context, cancelled).
Answer search(Sequence & sequence,
              const Cursor & cursor,
              const SearchOptions & options,
              const std::atomic<bool> & cancelled);

}  // namespace token_trie
