#include "trie/compact_builder.h"

#include <algorithm>

namespace token_trie {

struct CompactBuilder::Counts {
    std::uint64_t n_edges = 0;  // of inner nodes
    std::uint64_t n_tail_tokens = 0;
    std::uint64_t n_tokens = 0;
    std::uint64_t longest = 0;
};

CompactBuilder::Counts CompactBuilder::count(const Sorted & sorted) {
    constexpr std::uint64_t ahead = 16;
    Counts counts;
    for (std::uint64_t row = 0; row < sorted.n; ++row) {
        __builtin_prefetch(&sorted.leaves.offsets[sorted.rows[std::min(row + ahead, sorted.n - 1)]]);
        const std::size_t leaf = sorted.rows[row];
        const std::uint64_t length = sorted.leaves.offsets[leaf + 1] - sorted.leaves.offsets[leaf];
        const std::uint64_t before = row == 0 ? 0 : sorted.shared[row];
        const std::uint64_t behind = row + 1 == sorted.n ? 0 : sorted.shared[row + 1];
        // What neighbours share is there once, and of the rest one token leads on from an inner node.
        const std::uint64_t in_inner = std::min(length, std::max(before, behind) + 1);
        counts.n_edges += in_inner - std::min(length, before);
        counts.n_tail_tokens += length - in_inner;
        counts.n_tokens += length;
        counts.longest = std::max(counts.longest, length);
    }
    return counts;
}

CompactBuilder::CompactBuilder(const Sorted & sorted) : CompactBuilder(sorted, count(sorted)) {}

CompactBuilder::CompactBuilder(const Sorted & sorted, const Counts & counts)
    : sorted_(sorted),
      members_(counts.n_edges, sorted.n * (counts.longest + 1)),
      tail_tokens_(width_of(static_cast<std::uint64_t>(sorted.max_token))) {
    shape_.n_members = sorted.n;
    shape_.n_tokens = counts.n_tokens;
    shape_.max_token = sorted.max_token;
    shape_.max_length = static_cast<std::uint32_t>(counts.longest);
    (*owned_)[CompactTree::edge_tokens].reserve(counts.n_edges / 2 + 1);
    tail_tokens_.reserve(counts.n_tail_tokens);
    lay_out();
}

// Level by level: an inner node is the run of rows that share its path; its children are the runs by the next token.
void CompactBuilder::lay_out() {
    std::vector<Run> level{{0, static_cast<std::uint32_t>(sorted_.n)}};
    for (std::uint32_t depth = 0; !level.empty(); ++depth, level.swap(next_)) {
        next_.clear();
        for (const Run run : level) {
            split(run, depth);
        }
        shape_.n_inner += level.size();
    }
    shape_.n_edges = inner_.size();
    shape_.n_ends = ends_.n_ones();
    shape_.n_tail_nodes = tail_ends_.size();
    shape_.n_member_high = members_.n_high();
    Owned & owned = *owned_;
    owned[CompactTree::inner_hints] = inner_.hints();
    owned[CompactTree::last_hints] = last_.hints();
    owned[CompactTree::tail_hints] = tail_ends_.hints();
    owned[CompactTree::member_hints] = members_.hints();
    owned[CompactTree::inner] = inner_.take();
    owned[CompactTree::last] = last_.take();
    owned[CompactTree::ends] = ends_.take();
    owned[CompactTree::tail_ends] = tail_ends_.take();
    owned[CompactTree::tail_tokens] = tail_tokens_.take();
    owned[CompactTree::member_high] = members_.take_high();
    if (members_.width() > 0) {
        owned[CompactTree::member_low] = members_.take_low();
    }
}

void CompactBuilder::split(Run run, std::uint32_t depth) {
    const bool ends = length(run.begin) == depth;
    ends_.push(ends);
    run.begin += ends ? 1 : 0;
    while (run.begin < run.end) {
        std::uint32_t end = run.begin + 1;
        while (end < run.end && sorted_.shared[end] > depth) {
            ++end;
        }
        put_edge({run.begin, end}, depth, end == run.end);
        run.begin = end;
    }
}

void CompactBuilder::put_edge(Run run, std::uint32_t depth, bool is_last) {
    // Rows lie anywhere in the list.
    constexpr std::uint32_t ahead = 16;
    if (run.begin + 2 * ahead < sorted_.n) {
        __builtin_prefetch(&sorted_.leaves.offsets[sorted_.rows[run.begin + 2 * ahead]]);
        __builtin_prefetch(tokens(run.begin + ahead));
    }
    const Token * path = tokens(run.begin);
    auto & words = (*owned_)[CompactTree::edge_tokens];
    const auto token = static_cast<std::uint64_t>(path[depth]);
    if (inner_.size() % 2 == 0) {
        words.push_back(token);
    } else {
        words.back() |= token << 32U;
    }
    const bool is_inner = run.end - run.begin > 1;
    inner_.push(is_inner);
    last_.push(is_last);
    members_.push(sorted_.n * depth + run.begin);
    if (is_inner) {
        next_.push_back(run);
        return;
    }
    const std::uint64_t n = length(run.begin);
    for (std::uint64_t i = depth + std::uint64_t{1}; i < n; ++i) {
        tail_ends_.push(false);
        tail_tokens_.push(static_cast<std::uint32_t>(path[i]));
    }
    tail_ends_.push(true);
}

void CompactBuilder::set_order(const std::vector<std::uint32_t> & leaf_of_row) {
    bool is_ordered = true;
    for (std::uint64_t member = 0; member < sorted_.n && is_ordered; ++member) {
        is_ordered = leaf_of_row[sorted_.rows[member]] == member;
    }
    shape_.is_ordered = is_ordered ? 1 : 0;
    if (is_ordered) {
        return;
    }
    PackedBuilder order(width_of(sorted_.n - 1));
    for (std::uint64_t member = 0; member < sorted_.n; ++member) {
        order.push(leaf_of_row[sorted_.rows[member]]);
    }
    (*owned_)[CompactTree::order] = order.take();
}

void CompactBuilder::set_names(std::string names, const std::vector<std::uint64_t> & offsets) {
    shape_.n_name_bytes = names.size();
    AscendingBuilder at(offsets.size(), names.size());
    std::for_each(offsets.begin(), offsets.end(), [&](std::uint64_t offset) { at.push(offset); });
    shape_.n_name_high = at.n_high();
    (*owned_)[CompactTree::name_high] = at.take_high();
    if (at.width() > 0) {
        (*owned_)[CompactTree::name_low] = at.take_low();
    }
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
    (*owned_)[CompactTree::row_high] = at.take_high();
    if (at.width() > 0) {
        (*owned_)[CompactTree::row_low] = at.take_low();
    }
}

std::shared_ptr<const CompactTree> CompactBuilder::take() {
    CompactTree::Sections sections;
    for (std::uint32_t i = 0; i < CompactTree::n_sections; ++i) {
        (*owned_)[i].shrink_to_fit();
        sections[i] = {(*owned_)[i].data(), (*owned_)[i].size()};
    }
    return std::make_shared<const CompactTree>(shape_, sections, owned_, /* trusted = */ true);
}

}  // namespace token_trie
