#include "trie/filter.h"

#include <algorithm>
#include <limits>

namespace token_trie {

namespace {

Trie::Facts with_members(Trie::Facts facts, std::uint64_t n) {
    facts.n_members = static_cast<std::uint32_t>(n);
    return facts;
}

}  // namespace

Filter::Filter(const std::shared_ptr<const CompactTree> & tree, BitsBuilder kept)
    : Trie(with_members(tree->facts(), kept.n_ones())),
      tree_(tree),
      words_(kept.take()),
      kept_({words_.data(), words_.size()}, n_leaves(), n_members()),
      buckets_(kBuckets) {}

Filter::Filter(const std::shared_ptr<const CompactTree> & tree, const std::uint8_t * keep, const Filter * before)
    : Filter(tree, kept_of(*tree, keep, before)) {}

Filter::~Filter() {
    for (const std::atomic<Listed *> & bucket : buckets_) {
        for (const Listed * one = bucket.load(); one != nullptr;) {
            const std::unique_ptr<const Listed> owned(one);
            one = one->next;
        }
    }
}

std::size_t Filter::structure_bytes() const noexcept {
    return tree_->structure_bytes() + words_.size() * sizeof(std::uint64_t) + kBuckets * sizeof(void *);
}

std::vector<double> Filter::greatest_below(const std::vector<double> & of_leaves) const {
    std::vector<double> of_kept(of_leaves.size(), -std::numeric_limits<double>::infinity());
    for (std::uint64_t member = kept_.next(0); member < kept_.size(); member = kept_.next(member + 1)) {
        const LeafId leaf = tree_->leaf_of(member);
        of_kept[leaf] = of_leaves[leaf];
    }
    return tree_->greatest_below(of_kept);
}

const Filter::Listed & Filter::listed(NodeId inner_node) const {
    std::atomic<Listed *> & bucket = buckets_[inner_node % kBuckets];
    for (const Listed * one = bucket.load(std::memory_order_acquire); one != nullptr; one = one->next) {
        if (one->node == inner_node) {
            return *one;
        }
    }
    std::unique_ptr<Listed> made = list(inner_node);
    // Another thread may have listed the same one: either serves.
    made->next = bucket.load(std::memory_order_relaxed);
    while (
        !bucket.compare_exchange_weak(made->next, made.get(), std::memory_order_release, std::memory_order_relaxed)) {
    }
    return *made.release();
}

std::unique_ptr<Filter::Listed> Filter::list(NodeId inner_node) const {
    auto out = std::make_unique<Listed>();
    out->node = inner_node;
    const TokenSpan tokens = tree_->children(inner_node);
    const CompactTree::Range range = tree_->members(inner_node);
    const EdgeId begin = tree_->first_edge(inner_node);
    const EdgeId end = begin + tokens.size;
    std::uint64_t member = kept_.next(range.begin + (tree_->ends_member(inner_node) ? 1 : 0));
    for (EdgeId edge = begin; edge < end && member < range.end;) {
        // The last edge that begins with the member or before; the next one first, which it mostly is.
        EdgeId after = edge + 1;
        for (EdgeId step = 1; after < end && tree_->first_member(after) <= member; step *= 2) {
            edge = after;
            after += std::min(step, end - after);
        }
        edge = tree_->edge_of_member(edge, after, member);
        out->tokens.push_back(tokens.data[edge - begin]);
        out->edges.push_back(edge);
        member = ++edge < end ? kept_.next(tree_->first_member(edge)) : range.end;
    }
    return out;
}

TokenSpan Filter::children(NodeId node) const {
    return tree_->is_inner(node) ? listed(node).span() : tree_->children(node);
}

NodeId Filter::child_at(NodeId node, std::uint32_t i) const {
    return tree_->is_inner(node) ? tree_->target(listed(node).edges[i]) : tree_->child_at(node, i);
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

BitsBuilder Filter::kept_of(const CompactTree & tree, const std::uint8_t * keep, const Filter * before) {
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
    return kept;
}

}  // namespace token_trie
