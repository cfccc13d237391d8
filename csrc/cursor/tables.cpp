#include "cursor/tables.h"

#include <algorithm>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

// Calls work with a number of the type that elements are copied as.
template <typename Work>
void of_width(std::uint32_t n_bytes, Work && work) {
    switch (n_bytes) {
        case 2: work(std::uint16_t{}); return;
        case 4: work(std::uint32_t{}); return;
        default: work(std::uint64_t{});
    }
}

}  // namespace

void Tables::check(const std::int64_t * nodes, std::int64_t n) const {
    const std::int64_t * wrong =
        std::find_if(nodes, nodes + n, [this](std::int64_t node) { return node >= n_rows || node < -n_in_tails; });
    if (wrong != nodes + n) {
        throw Error(Status::argument, "nodes[", wrong - nodes, "]: ", *wrong, " is no node");
    }
}

std::int64_t Tables::next_in_tail(std::int64_t place, std::int32_t tail) const noexcept {
    if (tail >= 0) {
        return ~(place + 1);
    }
    const std::int32_t * next = std::upper_bound(tail_begins, tail_begins + n_sets, place);
    return completes[next - tail_begins - 1];
}

bool Tables::mask(const Matrix & logits, const std::int64_t * nodes, std::int64_t n) const {
    check(nodes, n);
    bool any_put_back = false;
    of_width(logits.n_bytes, [&](auto element) {
        using Element = decltype(element);
        const auto none = static_cast<Element>(logits.minus_infinity);
        std::vector<Element> kept;
        for (std::int64_t i = 0; i < n; ++i) {
            Element * row = static_cast<Element *>(logits.data) + i * logits.stride;
            if (nodes[i] < 0) {
                const std::int32_t tail = tails[static_cast<std::size_t>(~nodes[i])];
                const std::int32_t token = tail < 0 ? ~tail : tail;
                const Element value = row[token];
                std::fill(row, row + logits.n_columns, none);
                row[token] = value == none ? Element{} : value;
                any_put_back = any_put_back || value == none;
            } else if (kinds[nodes[i]] != free) {
                // All of a row at once, between reading what is kept and writing it back: gaps may be many.
                const std::int32_t begin = first[nodes[i]];
                const std::int32_t end = first[nodes[i] + 1];
                kept.clear();
                for (std::int32_t edge = begin; edge < end; ++edge) {
                    kept.push_back(row[tokens[static_cast<std::size_t>(edge)]]);
                }
                if (std::all_of(kept.begin(), kept.end(), [none](Element value) { return value == none; })) {
                    std::fill(kept.begin(), kept.end(), Element{});
                    any_put_back = any_put_back || kinds[nodes[i]] != ended;
                }
                std::fill(row, row + logits.n_columns, none);
                for (std::int32_t edge = begin; edge < end; ++edge) {
                    row[tokens[static_cast<std::size_t>(edge)]] = kept[static_cast<std::size_t>(edge - begin)];
                }
            }
        }
    });
    return any_put_back;
}

void Tables::step(const std::int64_t * nodes, const std::int64_t * given, std::int64_t n, std::int64_t * out) const {
    check(nodes, n);
    for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t node = nodes[i];
        if (node < 0) {
            const std::int32_t tail = tails[static_cast<std::size_t>(~node)];
            out[i] = given[i] == (tail < 0 ? ~tail : tail) ? next_in_tail(~node, tail) : 0;
            continue;
        }
        std::int32_t begin = first[node];
        std::int32_t end = first[node + 1];
        while (begin < end) {
            const std::int32_t middle = begin + (end - begin) / 2;
            if (tokens[static_cast<std::size_t>(middle)] < given[i]) {
                begin = middle + 1;
            } else {
                end = middle;
            }
        }
        const bool is_child = begin < first[node + 1] && tokens[static_cast<std::size_t>(begin)] == given[i];
        out[i] = is_child ? targets[begin] : kinds[node] == ended ? node : 0;
    }
}

std::int64_t Tables::width(const std::int64_t * nodes, std::int64_t n) const {
    check(nodes, n);
    std::int64_t most = 1;
    for (std::int64_t i = 0; i < n; ++i) {
        if (nodes[i] >= 0) {
            most = std::max<std::int64_t>(most, first[nodes[i] + 1] - first[nodes[i]]);
        }
    }
    return most;
}

void Tables::candidates(const Matrix & logprobs,
                        const std::int64_t * nodes,
                        std::int64_t n,
                        std::int64_t width,
                        void * values,
                        std::int64_t * out_tokens,
                        std::int64_t * out_nodes) const {
    check(nodes, n);
    of_width(logprobs.n_bytes, [&](auto element) {
        using Element = decltype(element);
        const auto none = static_cast<Element>(logprobs.minus_infinity);
        for (std::int64_t i = 0; i < n; ++i) {
            const Element * row = static_cast<const Element *>(logprobs.data) + i * logprobs.stride;
            Element * value = static_cast<Element *>(values) + i * width;
            std::int64_t * token = out_tokens + i * width;
            std::int64_t * node = out_nodes + i * width;
            std::int64_t k = 0;
            const auto put = [&](std::int32_t child, std::int64_t next) {
                value[k] = row[child];
                token[k] = child;
                node[k] = next;
                ++k;
            };
            if (nodes[i] < 0) {
                const std::int32_t tail = tails[static_cast<std::size_t>(~nodes[i])];
                put(tail < 0 ? ~tail : tail, next_in_tail(~nodes[i], tail));
            } else {
                const std::int64_t end = std::min<std::int64_t>(first[nodes[i] + 1], first[nodes[i]] + width);
                for (std::int64_t edge = first[nodes[i]]; edge < end; ++edge) {
                    put(tokens[static_cast<std::size_t>(edge)], targets[edge]);
                }
            }
            std::fill(value + k, value + width, none);
            std::fill(token + k, token + width, 0);
            std::fill(node + k, node + width, 0);
        }
    });
}

}  // namespace token_trie
