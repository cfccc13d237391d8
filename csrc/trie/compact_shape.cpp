#include "trie/compact_tree.h"

// What a compact tree's numbers and sections must be for its calls to stay within them.
namespace [[gnu::visibility("default")]] token_trie {
namespace {

[[noreturn]] void fail(const char * what) { throw Error(Status::payload, std::string("not a sound trie: ") + what); }

}  // namespace

std::array<std::uint64_t, CompactTree::n_sections> CompactTree::Shape::words() const {
    constexpr std::uint64_t most = kNoNode;
    for (const std::uint64_t n : {n_members, n_inner, n_edges, n_tail_nodes, n_ends}) {
        if (n >= most) {
            fail("more nodes or members than there are numbers for");
        }
    }
    if (n_members == 0 || n_inner == 0 || n_inner > n_edges || n_ends > n_inner || n_tails() > n_tail_nodes ||
        n_inner + n_tail_nodes >= most || n_edges + n_tail_nodes >= most || n_members != n_tails() + n_ends) {
        fail("the numbers of members, nodes and edges contradict each other");
    }
    if (n_tokens < n_members || n_tokens > n_members * max_length) {
        fail("the numbers of tokens and members contradict each other");
    }
    if (max_token < 0 || max_token >= kMaxCompactToken || max_length == 0 || max_length > kMaxLeafTokens ||
        most_row >= most) {
        fail("max_token, max_length or the last row is out of range");
    }
    constexpr std::uint64_t most_bits = std::uint64_t{1} << 40U;
    if (n_member_high > most_bits || n_name_high > most_bits || n_row_high > most_bits || n_name_bytes > most_bits) {
        fail("a section of more than 2^40 bits");
    }
    const auto low = [](std::uint64_t n, std::uint64_t most_value) {
        const std::uint32_t width = Ascending::low_width(n, most_value);
        return width == 0 ? 0 : PackedNumbers::n_words(n, width);
    };
    std::array<std::uint64_t, n_sections> out{};
    out[edge_tokens] = (n_edges + 1) / 2;
    out[inner] = out[last] = Bits::n_words(n_edges);
    out[member_low] = low(n_edges, n_members * (std::uint64_t{max_length} + 1));
    out[member_high] = Bits::n_words(n_member_high);
    out[ends] = Bits::n_words(n_inner);
    out[tail_ends] = Bits::n_words(n_tail_nodes);
    out[tail_tokens] =
        PackedNumbers::n_words(n_tail_nodes - n_tails(), width_of(static_cast<std::uint64_t>(max_token)));
    out[order] = is_ordered != 0 ? 0 : PackedNumbers::n_words(n_members, width_of(n_members - 1));
    out[inner_hints] = Bits::n_hint_words(n_inner - 1);
    out[last_hints] = Bits::n_hint_words(n_inner);
    out[member_hints] = Bits::n_hint_words(n_edges);
    out[tail_hints] = Bits::n_hint_words(n_tails());
    if (n_name_bytes > 0) {
        out[name_low] = low(n_members + 1, n_name_bytes);
        out[name_high] = Bits::n_words(n_name_high);
        out[names] = n_name_bytes / 8 + 1;
    }
    if (has_rows != 0) {
        out[row_low] = low(n_members, most_row);
        out[row_high] = Bits::n_words(n_row_high);
    }
    return out;
}

// That the inner nodes are a tree, numbered as they should be: behind it, every edge leads forward and no two to the
// same inner node, whatever the other sections hold.
void CompactTree::check_shape() const {
    if (!inner_.is_consistent() || !last_.is_consistent() || !last_[shape_.n_edges - 1]) {
        fail("the edges are not those of its nodes");
    }
    // The kth inner node has its edges behind the kth last one, and is led to before: of each beginning of the edges as
    // many lead to inner nodes as nodes are closed.
    std::uint64_t open = 0;
    for (std::uint64_t begin = 0; begin < shape_.n_edges; begin += 64) {
        std::uint64_t leads_on = inner_.word(begin / 64);
        std::uint64_t closes = last_.word(begin / 64);
        if (shape_.n_edges - begin <= 64) {
            closes &= ~(std::uint64_t{1} << (shape_.n_edges - 1 - begin));  // nothing is behind the last node
        }
        const auto n_closed = static_cast<std::uint64_t>(__builtin_popcountll(closes));
        if (open >= n_closed) {
            open += static_cast<std::uint64_t>(__builtin_popcountll(leads_on)) - n_closed;
            continue;
        }
        for (; (leads_on | closes) != 0; leads_on >>= 1U, closes >>= 1U) {
            open += leads_on & 1U;
            if ((closes & 1U) != 0 && open-- == 0) {
                fail("a node that is not led to");
            }
        }
    }
}

}  // namespace token_trie
