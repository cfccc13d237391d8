#include "trie/filter.h"

#include <algorithm>

namespace token_trie {

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
        EdgeId behind = edge + 1;
        for (EdgeId step = 1; behind < end && tree_->first_member(behind) <= member; step *= 2) {
            edge = behind;
            behind += std::min(step, end - behind);
        }
        while (behind - edge > 1) {
            const EdgeId middle = edge + (behind - edge) / 2;
            (tree_->first_member(middle) <= member ? edge : behind) = middle;
        }
        out.push(tokens.data[edge - begin], edge);
        member = ++edge < end ? kept_.next(tree_->first_member(edge)) : range.end;
    }
}

TokenSpan Filter::children(NodeId node) const {
    if (!tree_->is_inner(node)) {
        return tree_->children(node);
    }
    return listed(node).span();
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

std::size_t Filter::n_bytes() const noexcept { return words_.size() * sizeof(std::uint64_t) + ListedChildren::kBytes; }

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
