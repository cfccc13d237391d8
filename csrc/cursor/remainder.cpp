#include "cursor/remainder.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <unordered_map>

namespace [[gnu::visibility("default")]] token_trie {

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
    struct Node {
        std::vector<Token> closed;
        bool is_ended;
        bool is_dead = false;
    };
    std::unordered_map<NodeId, Node> changed;
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
    std::vector<NodeId> order;
    order.reserve(changed.size());
    for (const auto & [node, here] : changed) {
        order.push_back(node);
    }
    std::sort(order.begin(), order.end());
    Remainder next;
    std::size_t i = 0;
    const auto keep_up_to = [&](NodeId node) {
        for (; i < nodes_.size() && nodes_[i] < node; ++i) {
            next.nodes_.push_back(nodes_[i]);
            next.tokens_.push_back(tokens_[i]);
        }
    };
    for (const NodeId node : order) {
        keep_up_to(node);
        for (; i < nodes_.size() && nodes_[i] == node; ++i) {
        }
        std::vector<Token> & closed = changed.at(node).closed;
        std::sort(closed.begin(), closed.end());
        next.nodes_.insert(next.nodes_.end(), closed.size(), node);
        next.tokens_.insert(next.tokens_.end(), closed.begin(), closed.end());
    }
    keep_up_to(kNoNode);
    const auto is_changed = [&](NodeId node) { return changed.count(node) > 0; };
    std::copy_if(ended_.begin(), ended_.end(), std::back_inserter(next.ended_), std::not_fn(is_changed));
    std::copy_if(order.begin(), order.end(), std::back_inserter(next.ended_),
                 [&](NodeId node) { return changed.at(node).is_ended; });
    std::sort(next.ended_.begin(), next.ended_.end());
    nodes_.swap(next.nodes_);
    tokens_.swap(next.tokens_);
    ended_.swap(next.ended_);
}

}  // namespace token_trie
