#include "trie/compact_builder.h"

#include <algorithm>

namespace token_trie {

CompactBuilder::CompactBuilder(Token max_token) : width_(width_of(static_cast<std::uint64_t>(max_token))) {
    shape_.max_token = max_token;
    piece(0).ends.push(false);
}

void CompactBuilder::add(const Token * tokens, std::size_t n) {
    std::size_t shared = 0;
    if (shape_.n_members > 0) {
        const Token * end = tokens + n;
        shared = static_cast<std::size_t>(std::mismatch(tokens, end, member_.begin(), member_.end()).first - tokens);
        put(shared);
    }
    member_.assign(tokens, tokens + n);
    shared_ = shared;
    ++shape_.n_members;
    shape_.n_tokens += n;
    shape_.max_length = std::max(shape_.max_length, static_cast<std::uint32_t>(n));
}

CompactBuilder::Piece & CompactBuilder::piece(std::size_t depth) {
    if (depth == levels_.size()) {
        levels_.emplace_back();
    }
    std::vector<Piece> & pieces = levels_[depth].pieces;
    if (pieces.empty() || pieces.back().tokens.size() == kPiece) {
        if (!pieces.empty()) {
            pieces.back().tail_ends.shrink_to_fit();
            pieces.back().tail_tokens.shrink_to_fit();
        }
        pieces.emplace_back(width_);
    }
    return pieces.back();
}

// What the last member begins with as the one before is there. With the next one it goes through inner nodes, and one
// edge leads on from the last of them, to its tail.
void CompactBuilder::put(std::size_t shared_with_next) {
    const std::size_t n_edges = std::min(member_.size(), std::max(shared_, shared_with_next) + 1);
    for (std::size_t depth = shared_; depth < n_edges; ++depth) {
        const bool is_inner = depth < shared_with_next;
        if (is_inner) {
            piece(depth + 1).ends.push(depth + 1 == member_.size());
        }
        Piece & at = piece(depth);
        if (levels_[depth].is_open) {
            at.last.push(false);
        }
        levels_[depth].is_open = true;
        at.inner.push(is_inner);
        at.tokens.push_back(static_cast<std::uint32_t>(member_[depth]));
        at.members.push_back(static_cast<std::uint32_t>(shape_.n_members - 1));
    }
    if (shared_with_next < member_.size()) {
        Piece & at = levels_[n_edges - 1].pieces.back();
        for (std::size_t i = n_edges; i < member_.size(); ++i) {
            at.tail_ends.push(false);
            at.tail_tokens.push(static_cast<std::uint32_t>(member_[i]));
        }
        at.tail_ends.push(true);
    }
    for (std::size_t depth = shared_with_next + 1; depth < n_edges; ++depth) {
        levels_[depth].pieces.back().last.push(true);
        levels_[depth].is_open = false;
    }
}

void CompactBuilder::join() {
    put(0);
    levels_[0].pieces.back().last.push(true);
    std::uint64_t n_tail_nodes = 0;
    for (const Level & level : levels_) {
        for (const Piece & piece : level.pieces) {
            shape_.n_edges += piece.tokens.size();
            n_tail_nodes += piece.tail_ends.size();
        }
    }
    BitsBuilder inner;
    BitsBuilder last;
    BitsBuilder ends;
    BitsBuilder tail_ends;
    PackedBuilder tail_tokens(width_);
    tail_ends.reserve(n_tail_nodes);
    tail_tokens.reserve(n_tail_nodes);
    AscendingBuilder members(shape_.n_edges, shape_.n_members * (std::uint64_t{shape_.max_length} + 1));
    Owned & owned = *owned_;
    std::vector<std::uint64_t> & tokens = owned[CompactTree::edge_tokens];
    tokens.reserve((shape_.n_edges + 1) / 2);
    std::uint64_t edge = 0;
    for (std::size_t depth = 0; depth < levels_.size(); ++depth) {
        for (Piece & kept : levels_[depth].pieces) {
            const Piece piece = std::move(kept);
            tokens.resize((edge + piece.tokens.size() + 1) / 2);
            for (std::size_t i = 0; i < piece.tokens.size(); ++i, ++edge) {
                tokens[edge / 2] |= std::uint64_t{piece.tokens[i]} << edge % 2 * 32;
                members.push(shape_.n_members * depth + piece.members[i]);
            }
            inner.append(piece.inner);
            last.append(piece.last);
            ends.append(piece.ends);
            tail_ends.append(piece.tail_ends);
            tail_tokens.append(piece.tail_tokens);
        }
    }
    levels_.clear();
    shape_.n_inner = ends.size();
    shape_.n_ends = ends.n_ones();
    shape_.n_tail_nodes = tail_ends.size();
    shape_.n_member_high = members.n_high();
    owned[CompactTree::inner_hints] = inner.hints();
    owned[CompactTree::last_hints] = last.hints();
    owned[CompactTree::tail_hints] = tail_ends.hints();
    owned[CompactTree::member_hints] = members.hints();
    owned[CompactTree::inner] = inner.take();
    owned[CompactTree::last] = last.take();
    owned[CompactTree::ends] = ends.take();
    owned[CompactTree::tail_ends] = tail_ends.take();
    owned[CompactTree::tail_tokens] = tail_tokens.take();
    put_ascending(members, CompactTree::member_low, CompactTree::member_high);
}

void CompactBuilder::put_ascending(AscendingBuilder & from, CompactTree::Section low, CompactTree::Section high) {
    (*owned_)[high] = from.take_high();
    if (from.width() > 0) {
        (*owned_)[low] = from.take_low();
    }
}

void CompactBuilder::set_order(const std::vector<std::uint32_t> & leaves) {
    std::uint64_t member = 0;
    const auto is_its_own = [&](std::uint32_t leaf) { return leaf == member++; };
    if (std::all_of(leaves.begin(), leaves.end(), is_its_own)) {
        return;
    }
    shape_.is_ordered = 0;
    PackedBuilder order(width_of(leaves.size() - 1));
    std::for_each(leaves.begin(), leaves.end(), [&](std::uint32_t leaf) { order.push(leaf); });
    (*owned_)[CompactTree::order] = order.take();
}

void CompactBuilder::set_names(const std::string & names, const std::vector<std::uint64_t> & offsets) {
    shape_.n_name_bytes = names.size();
    AscendingBuilder at(offsets.size(), names.size());
    std::for_each(offsets.begin(), offsets.end(), [&](std::uint64_t offset) { at.push(offset); });
    shape_.n_name_high = at.n_high();
    put_ascending(at, CompactTree::name_low, CompactTree::name_high);
    std::vector<std::uint64_t> & words = (*owned_)[CompactTree::names];
    words.resize(names.size() / 8 + 1);
    std::copy(names.begin(), names.end(), reinterpret_cast<char *>(words.data()));
}

void CompactBuilder::set_rows(const std::vector<std::uint32_t> & rows) {
    shape_.has_rows = 1;
    shape_.most_row = rows.back();
    AscendingBuilder at(rows.size(), rows.back());
    std::for_each(rows.begin(), rows.end(), [&](std::uint32_t row) { at.push(row); });
    shape_.n_row_high = at.n_high();
    put_ascending(at, CompactTree::row_low, CompactTree::row_high);
}

std::shared_ptr<const CompactTree> CompactBuilder::take() {
    join();
    CompactTree::Sections sections;
    for (std::uint32_t i = 0; i < CompactTree::n_sections; ++i) {
        (*owned_)[i].shrink_to_fit();
        sections[i] = {(*owned_)[i].data(), (*owned_)[i].size()};
    }
    return std::make_shared<const CompactTree>(shape_, sections, owned_, /* trusted = */ true);
}

}  // namespace token_trie
