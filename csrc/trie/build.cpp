#include "trie/compact_tree.h"
#include "trie/flat_tree.h"

#include <functional>

namespace token_trie {
namespace {

class Builder {
   public:
    Builder(const LeafView & leaves, std::vector<std::string> names, std::string vocab, std::vector<Alias> aliases)
        : leaves_(leaves), names_(std::move(names)) {
        facts_.vocab = std::move(vocab);
        facts_.aliases = std::move(aliases);
    }

    std::shared_ptr<const Trie> run(Layout layout) {
        check();
        sort();
        collapse();
        const bool compact = layout == Layout::compact || (layout == Layout::by_size && rows_.size() >= kCompactLeaves);
        number_leaves();
        if (compact && facts_.max_token < kMaxCompactToken) {
            return lay_out_compactly();
        }
        return lay_out_flat();
    }

   private:
    // A leaf of the list with as many of its first tokens as fit into a key, each plus one and the first on top: keys
    // settle most comparisons without a look at the tokens.
    struct Row {
        std::uint64_t key;
        std::uint32_t leaf;
    };

    const Token * begin(std::uint32_t leaf) const { return leaves_.tokens + leaves_.offsets[leaf]; }
    const Token * end(std::uint32_t leaf) const { return leaves_.tokens + leaves_.offsets[leaf + std::size_t{1}]; }
    std::size_t length(std::uint32_t leaf) const {
        return leaves_.offsets[leaf + std::size_t{1}] - leaves_.offsets[leaf];
    }

    void check() {
        throw_if(leaves_.size >= kNoLeaf, Status::limit, "more than 4294967294 leaves");
        throw_if(leaves_.offsets[0] != 0, Status::argument, "offsets[0] must be 0, not ", leaves_.offsets[0]);
        const std::uint64_t * const last = leaves_.offsets + leaves_.size;
        if (const auto * drop = std::adjacent_find(leaves_.offsets, last + 1, std::greater<>()); drop < last) {
            throw Error(Status::argument, "offsets[", drop - leaves_.offsets + 1, "]: ", drop[1],
                        " is less than the one before it");
        }
        throw_if(!names_.empty() && names_.size() != leaves_.size, Status::argument, "names: ", names_.size(), " for ",
                 leaves_.size, " leaves");
        for (std::size_t i = 0; i < names_.size(); ++i) {
            throw_if(names_[i].size() > kMaxNameBytes, Status::limit, "names[", i, "]: ", names_[i].size(),
                     " bytes; at most 65535");
            throw_if(names_[i].find('\0') != std::string::npos, Status::argument, "names[", i,
                     "]: holds a NUL character");
        }
        for (std::uint32_t leaf = 0; leaf < leaves_.size; ++leaf) {
            if (length(leaf) > kMaxLeafTokens) {
                throw Error(Status::limit, "leaf ", describe(leaf), ": more than 65535 tokens");
            }
            const Token * tokens = begin(leaf);
            for (std::size_t i = 0; i < length(leaf); ++i) {
                if (tokens[i] < 0) {
                    throw Error(Status::payload, "leaf ", describe(leaf), ": tokens[", i, "]: ", tokens[i],
                                " is not a token id");
                }
                facts_.max_token = std::max(facts_.max_token, tokens[i]);
            }
        }
    }

    void sort() {
        width_ = width_of(static_cast<std::uint64_t>(facts_.max_token) + 1);
        n_in_key_ = 64 / width_;
        rows_.reserve(leaves_.size);
        for (std::uint32_t leaf = 0; leaf < leaves_.size; ++leaf) {
            if (length(leaf) > 0) {
                rows_.push_back({key_of(leaf), leaf});
            }
        }
        throw_if(rows_.empty(), Status::payload, "no leaf with tokens: a set needs at least one");
        std::sort(rows_.begin(), rows_.end(), [this](const Row & a, const Row & b) {
            if (a.key != b.key) {
                return a.key < b.key;
            }
            const int order = compare(a.leaf, b.leaf);
            return order != 0 ? order < 0 : a.leaf < b.leaf;
        });
    }

    std::uint64_t key_of(std::uint32_t leaf) const {
        const Token * tokens = begin(leaf);
        const std::size_t n = length(leaf);
        std::uint64_t key = 0;
        for (std::size_t i = 0; i < n_in_key_; ++i) {
            key = key << width_ | (i < n ? static_cast<std::uint64_t>(tokens[i]) + 1 : 0);
        }
        return key << (64 - n_in_key_ * width_) % 64;
    }

    int compare(std::uint32_t a, std::uint32_t b) const {
        const Token * end_a = end(a);
        const Token * end_b = end(b);
        const auto [at_a, at_b] = std::mismatch(begin(a), end_a, begin(b), end_b);
        if (at_a == end_a || at_b == end_b) {
            return static_cast<int>(at_a != end_a) - static_cast<int>(at_b != end_b);
        }
        return *at_a < *at_b ? -1 : 1;
    }

    // Keeps the first row of each run of equal leaves and gives it the run's smallest name.
    void collapse() {
        std::size_t kept = 0;
        for (const Row row : rows_) {
            if (kept > 0 && rows_[kept - 1].key == row.key && compare(rows_[kept - 1].leaf, row.leaf) == 0) {
                if (!names_.empty()) {
                    std::string & name = names_[rows_[kept - 1].leaf];
                    std::string & other = names_[row.leaf];
                    if (other != name) {
                        if (other < name) {
                            std::swap(name, other);
                        }
                        facts_.aliases.push_back({std::move(other), rows_[kept - 1].leaf});
                    }
                }
                continue;
            }
            rows_[kept++] = row;
        }
        rows_.resize(kept);
    }

    // Leaf ids follow the order of the list, so that results line up with what the caller gave.
    void number_leaves() {
        std::vector<std::uint32_t> & ids = leaf_ids_;
        ids.assign(leaves_.size, kNoLeaf);
        for (const Row & row : rows_) {
            ids[row.leaf] = 0;
        }
        LeafId next = 0;
        for (std::uint32_t leaf = 0; leaf < ids.size(); ++leaf) {
            if (ids[leaf] == kNoLeaf) {
                continue;
            }
            ids[leaf] = next++;
            facts_.n_tokens += length(leaf);
            if (!names_.empty()) {
                stored_.offsets.push_back(stored_.text.size());
                stored_.text.append(names_[leaf]).push_back('\0');
            } else if (rows_.size() != leaves_.size) {
                stored_.rows.push_back(leaf);
            }
        }
        facts_.n_leaves = facts_.n_members = next;
        if (!names_.empty()) {
            stored_.offsets.push_back(stored_.text.size());
            stored_.text.shrink_to_fit();
        }
        for (Alias & alias : facts_.aliases) {
            alias.leaf = ids[alias.leaf];
        }
    }

    std::shared_ptr<const Trie> lay_out_compactly() {
        std::vector<std::uint32_t> rows(rows_.size());
        std::transform(rows_.begin(), rows_.end(), rows.begin(), [](const Row & row) { return row.leaf; });
        std::vector<Row>().swap(rows_);
        CompactBuilder builder(facts_.max_token);
        constexpr std::size_t ahead = 16;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            // Rows lie anywhere in the list.
            __builtin_prefetch(&leaves_.offsets[rows[std::min(i + 2 * ahead, rows.size() - 1)]]);
            __builtin_prefetch(begin(rows[std::min(i + ahead, rows.size() - 1)]));
            builder.add(begin(rows[i]), length(rows[i]));
            rows[i] = leaf_ids_[rows[i]];
        }
        std::vector<std::uint32_t>().swap(leaf_ids_);
        builder.set_order(rows);
        if (!stored_.offsets.empty()) {
            builder.set_names(stored_.text, stored_.offsets);
        }
        if (!stored_.rows.empty()) {
            builder.set_rows(stored_.rows);
        }
        return builder.take(std::move(facts_.vocab), std::move(facts_.aliases));
    }

    // Level by level: a node is the run of rows that share its path; its children are the runs by the next token.
    std::shared_ptr<const Trie> lay_out_flat() {
        struct Run {
            std::uint32_t begin;
            std::uint32_t end;
        };
        FlatTree::Parts parts;
        std::vector<Run> level{{0, static_cast<std::uint32_t>(rows_.size())}};
        std::vector<Run> next;
        std::uint64_t n_nodes = 1;
        parts.leaf_nodes.resize(rows_.size());
        for (std::uint32_t depth = 0; !level.empty(); ++depth, level.swap(next)) {
            next.clear();
            facts_.max_length = depth;
            for (Run run : level) {
                FlatTree::Node node{static_cast<std::uint32_t>(n_nodes), kNoLeaf};
                if (length(rows_[run.begin].leaf) == depth) {
                    node.leaf = leaf_ids_[rows_[run.begin].leaf];
                    parts.leaf_nodes[node.leaf] = static_cast<NodeId>(parts.nodes.size());
                    ++run.begin;
                }
                for (std::uint32_t i = run.begin; i < run.end;) {
                    const Token token = begin(rows_[i].leaf)[depth];
                    const std::uint32_t start = i;
                    while (++i < run.end && begin(rows_[i].leaf)[depth] == token) {
                    }
                    parts.tokens.push_back(token);
                    next.push_back({start, i});
                    throw_if(++n_nodes >= kNoNode, Status::limit, "more than 4294967294 nodes");
                }
                parts.nodes.push_back(node);
            }
        }
        facts_.n_nodes = static_cast<std::uint32_t>(n_nodes);
        parts.nodes.push_back({facts_.n_nodes, kNoLeaf});
        parts.nodes.shrink_to_fit();
        parts.tokens.shrink_to_fit();
        parts.names = std::move(stored_);
        return std::make_shared<const FlatTree>(std::move(facts_), std::move(parts));
    }

    std::string describe(std::uint32_t leaf) const {
        return names_.empty() ? std::to_string(leaf) : quote(names_[leaf]);
    }

    const LeafView leaves_;
    std::vector<std::string> names_;
    Trie::Facts facts_;
    std::uint32_t width_ = 0;  // bits of a token in a key
    std::size_t n_in_key_ = 0;
    std::vector<Row> rows_;
    std::vector<std::uint32_t> leaf_ids_;
    FlatTree::Names stored_;  // as the trie stores them
};

}  // namespace

std::shared_ptr<const Trie> Trie::build(LeafList leaves, Layout layout) {
    const LeafView view{leaves.tokens.data(), leaves.offsets.data(), leaves.size()};
    return Builder(view, std::move(leaves.names), std::move(leaves.vocab), std::move(leaves.aliases)).run(layout);
}

std::shared_ptr<const Trie> Trie::build(const LeafView & leaves,
                                        std::vector<std::string> names,
                                        std::string vocab,
                                        Layout layout) {
    return Builder(leaves, std::move(names), std::move(vocab), {}).run(layout);
}

}  // namespace token_trie
