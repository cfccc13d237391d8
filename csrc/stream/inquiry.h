#pragma once

#include "trie/trie.h"

#include <cstdint>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// What decides over a tree, whoever evaluates its nodes: it asks about some, is told the logits behind each, and asks
// again.
//
//     ask -> READ, _, SEND     see(READ) see(_) see(SEND)     ask -> FILE, MAIL     ...     ask -> none
class Inquiry {
   public:
    Inquiry() = default;
    virtual ~Inquiry() = default;
    Inquiry(const Inquiry &) = delete;
    Inquiry & operator=(const Inquiry &) = delete;
    Inquiry(Inquiry &&) = delete;
    Inquiry & operator=(Inquiry &&) = delete;

    // The nodes to ask about, in depth-first order, of which none comes again: the root before all others. None: it has
    // decided. n_evaluated: nodes evaluated so far.
    virtual std::vector<NodeId> ask(std::uint64_t n_evaluated) = 0;
    // Logits over the vocabulary behind one of these, in their order.
    virtual void see(NodeId node, const float * logits) = 0;
};

}  // namespace token_trie
