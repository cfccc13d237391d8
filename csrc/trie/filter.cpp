#include "trie/filter.h"

#include <algorithm>

namespace token_trie {

Filter::Filter(std::shared_ptr<const CompactTree> tree, std::vector<std::uint64_t> kept, std::uint64_t n_kept)
    : tree_(std::move(tree)),
      words_(std::move(kept)),
      kept_({words_.data(), words_.size()}, tree_->shape().n_members, n_kept) {}

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

std::pair<std::vector<std::uint64_t>, std::uint64_t> bits_of_bytes(const std::uint8_t * bytes, std::uint64_t n) {
    std::vector<std::uint64_t> words(Bits::n_words(n));
    std::uint64_t ones = 0;
    for (std::uint64_t begin = 0; begin < n; begin += 64) {
        std::uint64_t word = 0;
        for (std::uint64_t i = 0; i < std::min<std::uint64_t>(64, n - begin); ++i) {
            word |= std::uint64_t{bytes[begin + i] != 0} << i;
        }
        std::uint64_t * block = words.data() + begin / Bits::kBlock * 8;
        if (begin % Bits::kBlock == 0) {
            block[0] = ones;
        }
        block[1 + begin % Bits::kBlock / 64] = word;
        ones += static_cast<std::uint64_t>(__builtin_popcountll(word));
    }
    if (n % Bits::kBlock == 0) {
        words[n / Bits::kBlock * 8] = ones;
    }
    return {std::move(words), ones};
}

}  // namespace token_trie
