#include "trie/compact_tree.h"
#include "trie/filter.h"

#include <iterator>
#include <unordered_map>

namespace [[gnu::visibility("default")]] token_trie {

// Begins where it would be if the tokens were spread evenly, and goes on from there in steps that double.
std::uint32_t TokenSpan::find_in_wide(Token token) const noexcept {
    const Token first = data[0];
    const Token last = data[size - 1];
    if (token < first || token > last) {
        return size;
    }
    const auto width = static_cast<std::uint64_t>(std::max(1, last - first));
    const Token * low = begin();
    const Token * high = end();
    const Token * guess = low + static_cast<std::uint64_t>(token - first) * (size - 1) / width;
    std::ptrdiff_t step = 16;
    if (*guess < token) {
        for (low = guess + 1; high - low > step && low[step] < token; step *= 2) {
            low += step;
        }
        high = high - low > step ? low + step + 1 : high;
    } else {
        for (high = guess + 1; high - low > step && high[-1 - step] >= token; step *= 2) {
            high -= step;
        }
        low = high - low > step ? high - step : low;
    }
    return find_between(low, high, token);
}

void LeafList::append(LeafList more) {
    const std::size_t n_before = tokens.size();
    tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.end());
    std::transform(more.offsets.begin() + 1, more.offsets.end(), std::back_inserter(offsets),
                   [n_before](std::uint64_t offset) { return n_before + offset; });
    std::move(more.names.begin(), more.names.end(), std::back_inserter(names));
}

NodeId Trie::descend(const Token * tokens, std::size_t n) const {
    NodeId node = kRoot;
    for (std::size_t i = 0; i < n && node != kNoNode; ++i) {
        node = child(node, tokens[i]);
    }
    return node;
}

std::shared_ptr<const Trie> Trie::laid_out(const std::shared_ptr<const Trie> & trie, Layout layout) {
    if (trie->has_layout(layout)) {
        return trie;
    }
    // Unnamed leaves are called by their rows, which a filter has to keep as names.
    const bool is_named = trie->stored_name(0) != nullptr || trie->n_members() < trie->n_leaves();
    LeafList leaves;
    std::vector<LeafId> numbers(trie->n_leaves(), kNoLeaf);
    for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
        if (!trie->has_leaf(leaf)) {
            continue;
        }
        if (is_named) {
            leaves.names.push_back(trie->name(leaf));
        } else {
            // Leaves without tokens are not in the trie, but have rows.
            for (const std::uint64_t row = trie->row(leaf); leaves.size() < row;) {
                leaves.end_leaf();
            }
        }
        numbers[leaf] = static_cast<LeafId>(leaves.size());
        const std::vector<Token> sequence = trie->sequence(leaf);
        leaves.tokens.insert(leaves.tokens.end(), sequence.begin(), sequence.end());
        leaves.end_leaf();
    }
    leaves.vocab = trie->vocab();
    for (const Alias & alias : trie->aliases()) {
        if (numbers[alias.leaf] != kNoLeaf) {
            leaves.aliases.push_back({alias.name, numbers[alias.leaf]});
        }
    }
    return build(std::move(leaves), layout);
}

std::shared_ptr<const Trie> Trie::filtered(const std::shared_ptr<const Trie> & trie, const std::uint8_t * keep) {
    const auto before = std::dynamic_pointer_cast<const Filter>(trie);
    const auto tree = before != nullptr ? before->tree() : compacted(trie);
    throw_if(tree == nullptr, Status::limit, "a set of token ids from 4194304 on has no filter");
    const auto out = std::make_shared<const Filter>(tree, keep, before.get());
    throw_if(out->n_members() == 0, Status::argument, "no member of the set is left");
    return out;
}

std::string Trie::name(LeafId leaf) const {
    const char * const stored = stored_name(leaf);
    return stored != nullptr ? stored : std::to_string(row(leaf));
}

std::size_t Trie::total_bytes() const noexcept {
    std::size_t bytes = structure_bytes() + name_bytes() + vocab().size();
    for (const Alias & alias : aliases()) {
        bytes += sizeof(Alias) + alias.name.size();
    }
    return bytes;
}

std::vector<std::pair<std::size_t, LeafId>> Trie::leaves_named(const std::vector<std::string> & names) const {
    std::unordered_multimap<std::string_view, std::size_t> wanted;
    for (std::size_t i = 0; i < names.size(); ++i) {
        wanted.emplace(names[i], i);
    }
    std::vector<std::pair<std::size_t, LeafId>> out;
    const auto look_at = [&](std::string_view name, LeafId leaf) {
        const auto [begin, end] = wanted.equal_range(name);
        for (auto at = begin; at != end; ++at) {
            out.emplace_back(at->second, leaf);
        }
    };
    for (LeafId leaf = 0; leaf < n_leaves() && !wanted.empty(); ++leaf) {
        if (has_leaf(leaf)) {
            const char * const stored = stored_name(leaf);
            stored != nullptr ? look_at(stored, leaf) : look_at(name(leaf), leaf);
        }
    }
    for (const Alias & alias : aliases()) {
        if (has_leaf(alias.leaf)) {
            look_at(alias.name, alias.leaf);
        }
    }
    std::sort(out.begin(), out.end());
    return out;
}

}  // namespace token_trie
