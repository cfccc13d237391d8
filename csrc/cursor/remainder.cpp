#include "cursor/remainder.h"

#include <algorithm>
#include <unordered_map>

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
    if (trie.compact() != nullptr) {
        left->climb_from(trie, out);
    } else {
        left->pass_over(trie, out);
    }
    return left;
}

void Remainder::pass_over(const Trie & trie, const std::vector<LeafId> & out) {
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
    empty_ = dead[kRoot];
    for (NodeId node = 0; node < trie.n_nodes(); ++node) {
        if (dead[node]) {
            continue;
        }
        if (ends[node]) {
            ended_.push_back(node);
        }
        const TokenSpan children = trie.children(node);
        for (std::uint32_t i = 0; i < children.size; ++i) {
            if (dead[trie.child_at(node, i)]) {
                nodes_.push_back(node);
                tokens_.push_back(children.data[i]);
            }
        }
    }
}

void Remainder::climb_from(const Trie & tree, const std::vector<LeafId> & out) {
    struct Seen {
        std::vector<Token> closed;
        bool is_ended = false;
    };
    std::unordered_map<NodeId, Seen> seen;
    const auto is_dead = [&](NodeId node, const Seen & at) {
        return at.closed.size() == tree.children(node).size && (at.is_ended || tree.leaf(node) == kNoLeaf);
    };
    for (const LeafId leaf : out) {
        NodeId node = tree.leaf_node(leaf);
        seen[node].is_ended = true;
        while (is_dead(node, seen[node])) {
            if (node == kRoot) {
                empty_ = true;
                return;
            }
            const EdgeId edge = tree.edge_to(node);
            seen.erase(node);
            node = tree.source(edge);
            seen[node].closed.push_back(tree.token_of(edge));
        }
    }
    std::vector<NodeId> order;
    order.reserve(seen.size());
    for (const auto & [node, at] : seen) {
        order.push_back(node);
    }
    std::sort(order.begin(), order.end());
    for (const NodeId node : order) {
        Seen & at = seen[node];
        if (at.is_ended) {
            ended_.push_back(node);
        }
        std::sort(at.closed.begin(), at.closed.end());
        nodes_.insert(nodes_.end(), at.closed.size(), node);
        tokens_.insert(tokens_.end(), at.closed.begin(), at.closed.end());
    }
}

std::shared_ptr<const Remainder> Remainder::without(const Trie & trie, LeafId leaf) const {
    auto left = std::make_shared<Remainder>(*this);
    left->take(trie, leaf);
    return left;
}

bool Remainder::is_out(NodeId node, Token token) const noexcept { return children_out(node).contains(token); }

bool Remainder::has_member_at(const Trie & trie, NodeId node) const noexcept {
    return trie.leaf(node) != kNoLeaf && !std::binary_search(ended_.begin(), ended_.end(), node);
}

TokenSpan Remainder::children_out(NodeId node) const noexcept {
    const Run run = edges_out_of(node);
    return {tokens_.data() + run.begin, static_cast<std::uint32_t>(run.size())};
}

Remainder::Run Remainder::edges_out_of(NodeId node) const noexcept {
    const auto [begin, end] = std::equal_range(nodes_.begin(), nodes_.end(), node);
    return {static_cast<std::size_t>(begin - nodes_.begin()), static_cast<std::size_t>(end - nodes_.begin())};
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
        const Run run = edges_out_of(node);
        if (has_member_at(trie, node) || run.size() < trie.children(node).size) {
            continue;
        }
        // Nothing after it is to be had any more.
        const auto at = static_cast<std::ptrdiff_t>(run.begin);
        const auto n = static_cast<std::ptrdiff_t>(run.size());
        nodes_.erase(nodes_.begin() + at, nodes_.begin() + at + n);
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
            const NodeId source = trie.source(edge);
            close(source, trie.token_of(edge));
            shrunk.push_back(source);
        });
    }
}

void Remainder::close(NodeId node, Token token) {
    const Run run = edges_out_of(node);
    const auto begin = tokens_.begin() + static_cast<std::ptrdiff_t>(run.begin);
    const auto at = std::lower_bound(begin, tokens_.begin() + static_cast<std::ptrdiff_t>(run.end), token);
    nodes_.insert(nodes_.begin() + (at - tokens_.begin()), node);
    tokens_.insert(at, token);
}

}  // namespace token_trie
