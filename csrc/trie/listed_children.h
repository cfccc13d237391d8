#pragma once

#include "trie/trie.h"

#include <atomic>

namespace token_trie {

// The children of nodes whose children have to be found out: listed when they are first asked for, and kept, so that a
// node visited again costs what it does in a tree that has them. Any number of threads may ask at a time. Listing
// allocates, and throws std::bad_alloc.
class ListedChildren {
   public:
    struct Listed {
        NodeId node = kNoNode;
        std::vector<Token> tokens;
        std::vector<EdgeId> edges;
        Listed * next = nullptr;

        TokenSpan span() const noexcept { return {tokens.data(), static_cast<std::uint32_t>(tokens.size())}; }
        void push(Token token, EdgeId edge) {
            tokens.push_back(token);
            edges.push_back(edge);
        }
    };

    ListedChildren() : buckets_(kBuckets) {}
    ListedChildren(const ListedChildren &) = delete;
    ListedChildren & operator=(const ListedChildren &) = delete;
    ~ListedChildren();

    // list(out) fills in the tokens, ascending, and the edges of out.node. Valid as long as this.
    template <typename List>
    const Listed & of(NodeId node, List && list) const {
        std::atomic<Listed *> & bucket = buckets_[node % kBuckets];
        if (const Listed * const found = find(bucket.load(std::memory_order_acquire), node)) {
            return *found;
        }
        auto made = std::make_unique<Listed>();
        made->node = node;
        list(*made);
        // Another thread may have listed the same one: either serves.
        made->next = bucket.load(std::memory_order_relaxed);
        while (!bucket.compare_exchange_weak(made->next, made.get(), std::memory_order_release,
                                             std::memory_order_relaxed)) {
        }
        return *made.release();
    }

    static constexpr std::size_t kBytes = 4096 * sizeof(void *);  // without what is listed

   private:
    static constexpr std::size_t kBuckets = 4096;

    static const Listed * find(const Listed * one, NodeId node) noexcept {
        for (; one != nullptr && one->node != node; one = one->next) {
        }
        return one;
    }

    mutable std::vector<std::atomic<Listed *>> buckets_;  // chains, in which none is taken out
};

}  // namespace token_trie
