#include "trie/trie.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

namespace token_trie {

class Trie::Builder {
   public:
    explicit Builder(LeafList leaves) : leaves_(std::move(leaves)), trie_(new Trie) {}

    std::shared_ptr<const Trie> run() {
        sort();
        collapse();
        number_leaves();
        lay_out();
        trie_->vocab_ = std::move(leaves_.vocab);
        return trie_;
    }

   private:
    // A leaf of the list and its first two tokens, which settle most comparisons without a look at the rest.
    struct Row {
        std::uint64_t key;
        std::uint32_t leaf;
    };

    const Token * begin(std::uint32_t leaf) const { return leaves_.tokens.data() + leaves_.offsets[leaf]; }
    const Token * end(std::uint32_t leaf) const { return leaves_.tokens.data() + leaves_.offsets[leaf + 1]; }
    std::size_t length(std::uint32_t leaf) const { return leaves_.offsets[leaf + 1] - leaves_.offsets[leaf]; }

    void sort() {
        if (leaves_.size() >= kNoLeaf) {
            throw Error(Status::limit, "more than 4294967294 leaves");
        }
        const auto n = static_cast<std::uint32_t>(leaves_.size());
        rows_.reserve(n);
        for (std::uint32_t leaf = 0; leaf < n; ++leaf) {
            if (length(leaf) == 0) {
                continue;
            }
            if (length(leaf) > kMaxLeafTokens) {
                throw Error(Status::limit, "leaf " + describe(leaf) + ": more than 65535 tokens");
            }
            const Token * tokens = begin(leaf);
            for (std::size_t i = 0; i < length(leaf); ++i) {
                if (tokens[i] < 0) {
                    throw Error(Status::payload, "leaf " + describe(leaf) + ": tokens[" + std::to_string(i) +
                                                     "]: " + std::to_string(tokens[i]) + " is not a token id");
                }
                trie_->max_token_ = std::max(trie_->max_token_, tokens[i]);
            }
            const std::uint64_t second = length(leaf) > 1 ? static_cast<std::uint64_t>(tokens[1]) + 1 : 0;
            rows_.push_back({static_cast<std::uint64_t>(tokens[0]) << 32U | second, leaf});
        }
        if (rows_.empty()) {
            throw Error(Status::payload, "no leaf with tokens: a set needs at least one");
        }
        std::sort(rows_.begin(), rows_.end(), [this](const Row & a, const Row & b) {
            if (a.key != b.key) {
                return a.key < b.key;
            }
            const int order = compare(a.leaf, b.leaf);
            return order != 0 ? order < 0 : a.leaf < b.leaf;
        });
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
                if (!leaves_.names.empty()) {
                    std::string & name = leaves_.names[rows_[kept - 1].leaf];
                    std::string & other = leaves_.names[row.leaf];
                    if (other != name) {
                        if (other < name) {
                            std::swap(name, other);
                        }
                        trie_->aliases_.push_back({std::move(other), rows_[kept - 1].leaf});
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
        ids.assign(leaves_.size(), kNoLeaf);
        for (const Row & row : rows_) {
            ids[row.leaf] = 0;
        }
        LeafId next = 0;
        for (std::uint32_t leaf = 0; leaf < ids.size(); ++leaf) {
            if (ids[leaf] == kNoLeaf) {
                continue;
            }
            ids[leaf] = next++;
            trie_->n_tokens_ += length(leaf);
            if (leaves_.texts) {
                trie_->text_offsets_.push_back(trie_->texts_.size());
                std::transform(begin(leaf), end(leaf), std::back_inserter(trie_->texts_),
                               [](Token byte) { return static_cast<char>(byte); });
            }
            if (!leaves_.names.empty()) {
                trie_->name_offsets_.push_back(trie_->names_.size());
                trie_->names_.append(leaves_.names[leaf]).push_back('\0');
            } else if (rows_.size() != leaves_.size()) {
                trie_->rows_.push_back(leaf);
            }
        }
        if (!leaves_.names.empty()) {
            trie_->name_offsets_.push_back(trie_->names_.size());
            trie_->names_.shrink_to_fit();
        }
        if (leaves_.texts) {
            trie_->text_offsets_.push_back(trie_->texts_.size());
        }
        for (Alias & alias : trie_->aliases_) {
            alias.leaf = ids[alias.leaf];
        }
    }

    // Level by level: a node is the run of rows that share its path; its children are the runs by the next token.
    void lay_out() {
        struct Run {
            std::uint32_t begin;
            std::uint32_t end;
        };
        std::vector<Run> level{{0, static_cast<std::uint32_t>(rows_.size())}};
        std::vector<Run> next;
        std::uint64_t n_nodes = 1;
        trie_->leaf_nodes_.resize(rows_.size());
        for (std::uint32_t depth = 0; !level.empty(); ++depth, level.swap(next)) {
            next.clear();
            trie_->max_length_ = depth;
            for (Run run : level) {
                Node node{static_cast<std::uint32_t>(n_nodes), kNoLeaf};
                if (length(rows_[run.begin].leaf) == depth) {
                    node.leaf = leaf_ids_[rows_[run.begin].leaf];
                    trie_->leaf_nodes_[node.leaf] = static_cast<NodeId>(trie_->nodes_.size());
                    ++run.begin;
                }
                for (std::uint32_t i = run.begin; i < run.end;) {
                    const Token token = begin(rows_[i].leaf)[depth];
                    const std::uint32_t start = i;
                    while (++i < run.end && begin(rows_[i].leaf)[depth] == token) {
                    }
                    trie_->tokens_.push_back(token);
                    next.push_back({start, i});
                    if (++n_nodes >= kNoNode) {
                        throw Error(Status::limit, "more than 4294967294 nodes");
                    }
                }
                trie_->nodes_.push_back(node);
            }
        }
        trie_->nodes_.push_back({static_cast<std::uint32_t>(n_nodes), kNoLeaf});
        trie_->nodes_.shrink_to_fit();
        trie_->tokens_.shrink_to_fit();
    }

    std::string describe(std::uint32_t leaf) const {
        return leaves_.names.empty() ? std::to_string(leaf) : quote(leaves_.names[leaf]);
    }

    LeafList leaves_;
    std::shared_ptr<Trie> trie_;
    std::vector<Row> rows_;
    std::vector<std::uint32_t> leaf_ids_;
};

std::shared_ptr<const Trie> Trie::build(LeafList leaves) { return Builder(std::move(leaves)).run(); }

}  // namespace token_trie
