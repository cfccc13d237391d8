#include "trie/views.h"

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
            throw Error(Status::argument, "a member of both sets: ", quote(more_->name(more_->leaf(in_more))));
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

Filter::Filter(std::shared_ptr<const CompactTree> tree, Kept kept)
    : tree_(std::move(tree)),
      words_(std::move(kept.words)),
      kept_({words_.data(), words_.size()}, tree_->shape().n_members, kept.n_ones) {}

Filter::Filter(const std::shared_ptr<const CompactTree> & tree, const std::uint8_t * keep, const Filter * before)
    : Filter(tree, kept_of(*tree, keep, before)) {}

void Filter::list(Listed & out) const {
    const TokenSpan tokens = tree_->children(out.node);
    const CompactTree::Range range = tree_->members(out.node);
    const EdgeId begin = tree_->first_edge(out.node);
    const EdgeId end = begin + tokens.size;
    std::uint64_t member = kept_.next(range.begin + (tree_->ends_member(out.node) ? 1 : 0));
    for (EdgeId edge = begin; edge < end && member < range.end;) {
        // The last edge that begins with the member or before; the next one first, which it mostly is.
        EdgeId after = edge + 1;
        for (EdgeId step = 1; after < end && tree_->first_member(after) <= member; step *= 2) {
            edge = after;
            after += std::min(step, end - after);
        }
        edge = tree_->edge_of_member(edge, after, member);
        out.push(tokens.data[edge - begin], edge);
        member = ++edge < end ? kept_.next(tree_->first_member(edge)) : range.end;
    }
}

TokenSpan Filter::children(NodeId node) const {
    return tree_->is_inner(node) ? listed(node).span() : tree_->children(node);
}

EdgeId Filter::edge_at(NodeId node, std::uint32_t i) const {
    return tree_->is_inner(node) ? listed(node).edges[i] : tree_->first_edge(node);
}

NodeId Filter::child(NodeId node, Token token) const {
    if (!tree_->is_inner(node)) {
        return tree_->child(node, token);
    }
    const Listed & list = listed(node);
    const std::uint32_t at = list.span().find(token);
    return at == list.tokens.size() ? kNoNode : tree_->target(list.edges[at]);
}

LeafId Filter::leaf(NodeId node) const noexcept {
    const std::uint64_t member = tree_->member_at(node);
    return member < tree_->shape().n_members && kept_[member] ? tree_->leaf_of(member) : kNoLeaf;
}

Filter::Kept Filter::kept_of(const CompactTree & tree, const std::uint8_t * keep, const Filter * before) {
    const std::uint64_t n = tree.shape().n_members;
    const auto in_64 = [](std::uint64_t begin, std::uint64_t end, auto && is_kept) {
        std::uint64_t word = 0;
        for (std::uint64_t i = begin; i < end; ++i) {
            word |= std::uint64_t{is_kept(i)} << (i - begin);
        }
        return word;
    };
    std::vector<std::uint64_t> by_leaf;  // in bits, as leaves lie anywhere: more of them are in the cache
    if (tree.shape().is_ordered == 0) {
        for (std::uint64_t begin = 0; begin < n; begin += 64) {
            by_leaf.push_back(in_64(begin, std::min(n, begin + 64), [&](std::uint64_t i) { return keep[i] != 0; }));
        }
    }
    BitsBuilder kept;
    kept.reserve(n);
    for (std::uint64_t begin = 0; begin < n; begin += 64) {
        const std::uint64_t end = std::min(n, begin + 64);
        std::uint64_t word = by_leaf.empty()
                                 ? in_64(begin, end, [&](std::uint64_t member) { return keep[member] != 0; })
                                 : in_64(begin, end, [&](std::uint64_t member) {
                                       const LeafId leaf = tree.leaf_of(member);
                                       return (by_leaf[leaf / 64] >> leaf % 64 & 1U) != 0;
                                   });
        if (before != nullptr) {
            word &= before->kept_.word(begin / 64);
        }
        kept.push(word, end - begin);
    }
    const std::uint64_t n_ones = kept.n_ones();
    return {kept.take(), n_ones};
}

}  // namespace token_trie
