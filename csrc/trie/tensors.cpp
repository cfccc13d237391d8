#include "trie/tensors.h"

namespace [[gnu::visibility("default")]] token_trie {

Tensors to_tensors(const std::shared_ptr<const Trie> & given) {
    const std::shared_ptr<const Trie> kept = Trie::laid_out(given, Layout::by_size);
    const Trie & trie = *kept;
    const NodeId n_inner = trie.n_inner();
    Tensors out;
    std::vector<std::int32_t> row_of(n_inner, Tensors::kComplete);
    std::size_t n_rows = 0;
    std::size_t n_edges = 0;
    for (NodeId node = 0; node < n_inner; ++node) {
        if (const TokenSpan children = trie.children(node); !children.empty()) {
            row_of[node] = static_cast<std::int32_t>(n_rows++);
            n_edges += children.size;
        }
    }
    const std::size_t n_in_tails = trie.n_nodes() - n_inner;
    throw_if(std::max(n_edges, n_in_tails) >= static_cast<std::size_t>(Tensors::kComplete), Status::limit,
             "a set of 2147483647 edges or more has no tensors");
    out.first.reserve(n_rows + 1);
    out.ends.reserve(n_rows);
    out.tokens.reserve(n_edges);
    out.targets.reserve(n_edges);
    out.tails.reserve(n_in_tails);
    for (NodeId node = 0; node < n_inner; ++node) {
        const TokenSpan children = trie.children(node);
        if (children.empty()) {
            continue;
        }
        out.first.push_back(static_cast<std::int32_t>(out.tokens.size()));
        out.ends.push_back(trie.leaf(node) != kNoLeaf ? 1 : 0);
        out.tokens.insert(out.tokens.end(), children.begin(), children.end());
        for (std::uint32_t i = 0; i < children.size; ++i) {
            NodeId target = trie.child_at(node, i);
            if (target < n_inner) {
                out.targets.push_back(row_of[target]);
                continue;
            }
            TokenSpan next = trie.children(target);
            out.targets.push_back(next.empty() ? Tensors::kComplete : ~static_cast<std::int32_t>(out.tails.size()));
            while (!next.empty()) {
                throw_if(out.tails.size() == n_in_tails, Status::payload, "not a sound trie: its tails overlap");
                const Token token = *next.data;
                next = trie.children(++target);
                out.tails.push_back(next.empty() ? ~token : token);
            }
        }
    }
    out.first.push_back(static_cast<std::int32_t>(out.tokens.size()));
    return out;
}

}  // namespace token_trie
