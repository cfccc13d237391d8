#include "trie/joined.h"
#include "trie/compact_tree.h"

#include <algorithm>

namespace token_trie {

ListedChildren::~ListedChildren() {
    for (const std::atomic<Listed *> & bucket : buckets_) {
        for (const Listed * one = bucket.load(); one != nullptr;) {
            const std::unique_ptr<const Listed> owned(one);
            one = one->next;
        }
    }
}

namespace {

// Numbers of edges are below this.
std::uint64_t edges_end(const Trie & trie) {
    if (trie.compact() == nullptr) {
        return trie.n_nodes();
    }
    const CompactTree::Shape & shape = trie.compact()->shape();
    return shape.n_edges + shape.n_tail_nodes + 2;
}

}  // namespace

Joined::Joined(std::shared_ptr<const Trie> base, std::shared_ptr<const Trie> more)
    : base_(std::move(base)),
      more_(std::move(more)),
      n_base_nodes_(base_->n_nodes()),
      n_base_edges_(static_cast<EdgeId>(edges_end(*base_))),
      base_of_(more_->n_nodes(), kNoNode) {
    if (edges_end(*base_) + edges_end(*more_) >= kNoNode ||
        std::uint64_t{base_->n_leaves()} + more_->n_leaves() >= kNoLeaf) {
        throw Error(Status::limit, "a set of 4294967295 tokens or more");
    }
    shared_.emplace_back(kRoot, kRoot);
    for (std::size_t i = 0; i < shared_.size(); ++i) {
        const auto [in_base, in_more] = shared_[i];
        base_of_[in_more] = in_base;
        if (base_->leaf(in_base) != kNoLeaf && more_->leaf(in_more) != kNoLeaf) {
            throw Error(Status::argument, "a member of both sets: " + quote(more_->name(more_->leaf(in_more))));
        }
        const TokenSpan children = more_->children(in_more);
        for (std::uint32_t k = 0; k < children.size; ++k) {
            if (const NodeId child = base_->child(in_base, children.data[k]); child != kNoNode) {
                shared_.emplace_back(child, more_->child_at(in_more, k));
            }
        }
    }
    std::sort(shared_.begin(), shared_.end());
}

NodeId Joined::of_base(NodeId node) const noexcept {
    const auto at = std::lower_bound(shared_.begin(), shared_.end(), std::pair(node, NodeId{0}));
    return at != shared_.end() && at->first == node ? of_more(at->second) : node;
}

Joined::Parts Joined::parts(NodeId node) const noexcept {
    if (node == kRoot) {
        return {kRoot, kRoot};
    }
    return node < n_base_nodes_ ? Parts{node, kNoNode} : Parts{base_of_[node - n_base_nodes_], node - n_base_nodes_};
}

const ListedChildren::Listed & Joined::merged(NodeId node, const Parts & parts) const {
    return listed_.of(node, [&](ListedChildren::Listed & out) {
        const TokenSpan a = base_->children(parts.base);
        const TokenSpan b = more_->children(parts.more);
        for (std::uint32_t i = 0, k = 0; i < a.size || k < b.size;) {
            if (k == b.size || (i < a.size && a.data[i] < b.data[k])) {
                out.push(a.data[i], base_->edge_at(parts.base, i));
                ++i;
            } else {
                i += i < a.size && a.data[i] == b.data[k] ? 1 : 0;
                out.push(b.data[k], n_base_edges_ + more_->edge_at(parts.more, k));
                ++k;
            }
        }
    });
}

TokenSpan Joined::children(NodeId node) const {
    const Parts in = parts(node);
    return in.more == kNoNode   ? base_->children(in.base)
           : in.base == kNoNode ? more_->children(in.more)
                                : merged(node, in).span();
}

NodeId Joined::child(NodeId node, Token token) const {
    const Parts in = parts(node);
    if (in.more != kNoNode) {
        if (const NodeId child = more_->child(in.more, token); child != kNoNode) {
            return of_more(child);
        }
    }
    return in.base == kNoNode ? kNoNode : base_->child(in.base, token);
}

EdgeId Joined::edge_at(NodeId node, std::uint32_t i) const {
    const Parts in = parts(node);
    return in.more == kNoNode   ? base_->edge_at(in.base, i)
           : in.base == kNoNode ? n_base_edges_ + more_->edge_at(in.more, i)
                                : merged(node, in).edges[i];
}

NodeId Joined::target(EdgeId edge) const noexcept {
    return edge < n_base_edges_ ? base_->target(edge) : of_more(more_->target(edge - n_base_edges_));
}

NodeId Joined::source(EdgeId edge) const noexcept {
    return edge < n_base_edges_ ? of_base(base_->source(edge)) : of_more(more_->source(edge - n_base_edges_));
}

EdgeId Joined::edge_to(NodeId node) const noexcept {
    return node < n_base_nodes_ ? base_->edge_to(node) : n_base_edges_ + more_->edge_to(node - n_base_nodes_);
}

Token Joined::token_of(EdgeId edge) const noexcept {
    return edge < n_base_edges_ ? base_->token_of(edge) : more_->token_of(edge - n_base_edges_);
}

LeafId Joined::leaf(NodeId node) const noexcept {
    const Parts in = parts(node);
    if (in.more != kNoNode) {
        if (const LeafId leaf = more_->leaf(in.more); leaf != kNoLeaf) {
            return base_->n_leaves() + leaf;
        }
    }
    return in.base == kNoNode ? kNoLeaf : base_->leaf(in.base);
}

std::pair<const Trie *, LeafId> Joined::owner(LeafId leaf) const noexcept {
    return leaf < base_->n_leaves() ? std::pair(base_.get(), leaf) : std::pair(more_.get(), leaf - base_->n_leaves());
}

NodeId Joined::leaf_node(LeafId leaf) const {
    const auto [trie, own] = owner(leaf);
    return trie == base_.get() ? of_base(base_->leaf_node(own)) : of_more(more_->leaf_node(own));
}

std::size_t Joined::n_bytes() const noexcept {
    return base_of_.size() * sizeof(NodeId) + shared_.size() * sizeof(shared_[0]) + ListedChildren::kBytes;
}

}  // namespace token_trie
