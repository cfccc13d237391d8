#include "cursor/remainder.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

namespace [[gnu::visibility("default")]] token_trie {

namespace {

struct Node {
    std::vector<Token> closed;
    bool is_ended;
    bool is_dead = false;
};
using Nodes = std::map<NodeId, Node>;

// Puts the edges of the nodes that have changed in the place of those that these nodes had.
void replace_edges(const Nodes & changed, std::vector<NodeId> & nodes, std::vector<Token> & tokens) {
    std::vector<NodeId> new_nodes;
    std::vector<Token> new_tokens;
    std::size_t i = 0;
    const auto keep_up_to = [&](NodeId node) {
        for (; i < nodes.size() && nodes[i] < node; ++i) {
            new_nodes.push_back(nodes[i]);
            new_tokens.push_back(tokens[i]);
        }
    };
    for (const auto & [node, here] : changed) {
        keep_up_to(node);
        for (; i < nodes.size() && nodes[i] == node; ++i) {
        }
        std::vector<Token> closed = here.closed;
        std::sort(closed.begin(), closed.end());
        new_nodes.insert(new_nodes.end(), closed.size(), node);
        new_tokens.insert(new_tokens.end(), closed.begin(), closed.end());
    }
    keep_up_to(kNoNode);
    nodes.swap(new_nodes);
    tokens.swap(new_tokens);
}

void replace_ended(const Nodes & changed, std::vector<NodeId> & ended) {
    std::vector<NodeId> new_ended;
    const auto is_changed = [&](NodeId node) { return changed.count(node) > 0; };
    std::copy_if(ended.begin(), ended.end(), std::back_inserter(new_ended), std::not_fn(is_changed));
    for (const auto & [node, here] : changed) {
        if (here.is_ended) {
            new_ended.push_back(node);
        }
    }
    std::sort(new_ended.begin(), new_ended.end());
    ended.swap(new_ended);
}

}  // namespace

std::shared_ptr<const Remainder> Remainder::of(const Trie & trie, const std::vector<LeafId> & out) {
    auto left = std::make_shared<Remainder>();
    left->take(trie, out);
    return left;
}

std::shared_ptr<const Remainder> Remainder::without(const Trie & trie, LeafId leaf) const {
    auto left = std::make_shared<Remainder>(*this);
    left->take(trie, {leaf});
    return left;
}

bool Remainder::has_member_at(const Trie & trie, NodeId node) const noexcept {
    return trie.leaf(node) != kNoLeaf && !std::binary_search(ended_.begin(), ended_.end(), node);
}

TokenSpan Remainder::children_out(NodeId node) const noexcept {
    const auto [begin, end] = std::equal_range(nodes_.begin(), nodes_.end(), node);
    return {tokens_.data() + (begin - nodes_.begin()), static_cast<std::uint32_t>(end - begin)};
}

// From the members' ends towards the root, as far as nothing is to be had any more.
void Remainder::take(const Trie & trie, const std::vector<LeafId> & out) {
    Nodes changed;
    const auto at = [&](NodeId node) -> Node & {
        const auto found = changed.find(node);
        if (found != changed.end()) {
            return found->second;
        }
        const TokenSpan closed = children_out(node);
        const bool is_ended = std::binary_search(ended_.begin(), ended_.end(), node);
        return changed.emplace(node, Node{{closed.begin(), closed.end()}, is_ended}).first->second;
    };
    std::vector<NodeId> shrunk;
    for (const LeafId leaf : out) {
        shrunk.push_back(trie.leaf_node(leaf));
        at(shrunk.back()).is_ended = true;
        while (!shrunk.empty()) {
            const NodeId node = shrunk.back();
            shrunk.pop_back();
            Node & here = at(node);
            if (here.is_dead || here.closed.size() < trie.children(node).size ||
                (!here.is_ended && trie.leaf(node) != kNoLeaf)) {
                continue;
            }
            here = {{}, false, true};
            empty_ = empty_ || node == kRoot;
            if (!empty_) {
                shrunk.push_back(trie.parent(node));
                at(shrunk.back()).closed.push_back(trie.token(node));
            }
        }
    }
    replace_edges(changed, nodes_, tokens_);
    replace_ended(changed, ended_);
}

}  // namespace token_trie
