#include "walk/remainder.h"

#include <algorithm>

namespace [[gnu::visibility("default")]] token_trie {

Remainder::Entrances::Entrances(const Trie & graph)
    : firsts(graph.n_nodes() + std::size_t{1}, 0), edges(graph.n_edges()) {
    for (EdgeId edge = 1; edge <= graph.n_edges(); ++edge) {
        ++firsts[graph.target(edge) + std::size_t{1}];
    }
    for (std::size_t node = 0; node < graph.n_nodes(); ++node) {
        firsts[node + 1] += firsts[node];
    }
    std::vector<EdgeId> next(firsts);
    for (EdgeId edge = 1; edge <= graph.n_edges(); ++edge) {
        edges[next[graph.target(edge)]++] = edge;
    }
}

std::shared_ptr<const Remainder> Remainder::of(const Trie & trie, const std::vector<LeafId> & out, bool takes) {
    auto left = std::make_shared<Remainder>();
    if (takes && !trie.is_tree()) {
        left->entrances_ = std::make_shared<const Entrances>(trie);
    }
    if (out.empty()) {
        return left;
    }
    std::vector<bool> ends(trie.n_nodes(), false);  // a member that is out
    for (const LeafId leaf : out) {
        ends[trie.leaf_node(leaf)] = true;
    }
    // Backwards, as edges lead forward.
    std::vector<bool> dead(trie.n_nodes());
    for (NodeId node = trie.n_nodes(); node-- > 0;) {
        dead[node] = trie.leaf(node) == kNoLeaf || ends[node];
        for (std::uint32_t i = 0; dead[node] && i < trie.children(node).size; ++i) {
            dead[node] = dead[trie.child_at(node, i)];
        }
    }
    left->empty_ = dead[kRoot];
    for (NodeId node = 0; node < trie.n_nodes(); ++node) {
        if (dead[node]) {
            continue;
        }
        if (ends[node]) {
            left->ended_.push_back(node);
        }
        const TokenSpan children = trie.children(node);
        for (std::uint32_t i = 0; i < children.size; ++i) {
            if (dead[trie.child_at(node, i)]) {
                left->edges_.push_back(trie.edge_at(node, i));
                left->tokens_.push_back(children.data[i]);
            }
        }
    }
    return left;
}

std::shared_ptr<const Remainder> Remainder::without(const Trie & trie, LeafId leaf) const {
    auto left = std::make_shared<Remainder>(*this);
    left->take(trie, leaf);
    return left;
}

bool Remainder::is_out(EdgeId edge) const noexcept { return std::binary_search(edges_.begin(), edges_.end(), edge); }

bool Remainder::has_member_at(const Trie & trie, NodeId node) const noexcept {
    return trie.leaf(node) != kNoLeaf && !std::binary_search(ended_.begin(), ended_.end(), node);
}

TokenSpan Remainder::children_out(const Trie & trie, NodeId node) const {
    const Run run = edges_out_of(trie, node);
    return {tokens_.data() + run.begin, static_cast<std::uint32_t>(run.size())};
}

Remainder::Run Remainder::edges_out_of(const Trie & trie, NodeId node) const {
    const std::uint32_t n = trie.children(node).size;
    const auto begin = n == 0 ? edges_.end() : std::lower_bound(edges_.begin(), edges_.end(), trie.edge_at(node, 0));
    const auto end = n == 0 ? begin : std::upper_bound(begin, edges_.end(), trie.edge_at(node, n - 1));
    return {static_cast<std::size_t>(begin - edges_.begin()), static_cast<std::size_t>(end - edges_.begin())};
}

template <typename Visit>
void Remainder::for_each_edge_to(const Trie & trie, NodeId node, Visit && visit) const {
    if (trie.is_tree()) {
        visit(trie.edge_to(node));
        return;
    }
    for (EdgeId i = entrances_->firsts[node]; i < entrances_->firsts[node + std::size_t{1}]; ++i) {
        visit(entrances_->edges[i]);
    }
}

void Remainder::take(const Trie & trie, LeafId leaf) {
    std::vector<NodeId> shrunk{trie.leaf_node(leaf)};
    ended_.insert(std::lower_bound(ended_.begin(), ended_.end(), shrunk.front()), shrunk.front());
    while (!shrunk.empty()) {
        const NodeId node = shrunk.back();
        shrunk.pop_back();
        const Run run = edges_out_of(trie, node);
        if (has_member_at(trie, node) || run.size() < trie.children(node).size) {
            continue;
        }
        // Nothing behind it is to be had any more.
        const auto at = static_cast<std::ptrdiff_t>(run.begin);
        const auto n = static_cast<std::ptrdiff_t>(run.size());
        edges_.erase(edges_.begin() + at, edges_.begin() + at + n);
        tokens_.erase(tokens_.begin() + at, tokens_.begin() + at + n);
        const auto ended = std::lower_bound(ended_.begin(), ended_.end(), node);
        if (ended != ended_.end() && *ended == node) {
            ended_.erase(ended);
        }
        if (node == kRoot) {
            empty_ = true;
            return;
        }
        for_each_edge_to(trie, node, [&](EdgeId edge) {
            close(trie, edge);
            shrunk.push_back(trie.source(edge));
        });
    }
}

void Remainder::close(const Trie & trie, EdgeId edge) {
    const auto at = std::lower_bound(edges_.begin(), edges_.end(), edge);
    tokens_.insert(tokens_.begin() + (at - edges_.begin()), trie.token_of(edge));
    edges_.insert(at, edge);
}

}  // namespace token_trie
