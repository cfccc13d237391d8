#pragma once

#include "decode/answer.h"
#include "trie/non_copyable.h"
#include "trie/trie.h"

#include <cstdint>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// Nodes that are evaluated at once.
struct Batches {
    std::size_t n_paths = 0;          // that it is on; 0: a batch is a node
    bool rows_are_cheap = false;      // as on devices
    bool has_depths_in_turn = false;  // a pass for each depth, as with states: no node is guessed below another
};

// Decides over a tree, whoever evaluates its nodes: it queries some, observes the logits after each, and queries more.
//
//     next -> READ, _, SEND     observe(READ) observe(_) observe(SEND)     next -> FILE, MAIL     ...     next -> none
class TreeQuery : NonCopyable {
   public:
    virtual ~TreeQuery() = default;

    // The nodes to query, in depth-first order, of which none comes again: the root before all others. None: it has
    // decided.
    virtual std::vector<NodeId> next() = 0;
    // Logits over the vocabulary after one of these, in their order.
    virtual void observe(NodeId node, const float * logits) = 0;
    // Writes the result, once it queries no more.
    virtual void write(Answer & answer) const = 0;
};

}  // namespace token_trie
