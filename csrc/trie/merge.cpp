#include "trie/compact_builder.h"

#include <algorithm>
#include <unordered_map>

namespace token_trie {
namespace {

// A set whose members come in the order of their tokens.
struct Run {
    const Trie * trie;
    std::uint64_t first_leaf;  // of the merged list
    std::uint64_t member = 0;
    std::vector<Token> tokens;

    LeafId own_leaf() const { return trie->compact()->leaf_of(member); }
    std::uint32_t leaf() const { return static_cast<std::uint32_t>(first_leaf + own_leaf()); }
    void read() {
        tokens.clear();
        trie->compact()->append_sequence(member, tokens);
    }
};

// Of equal ones the earlier run comes first.
bool is_behind(const Run * a, const Run * b) {
    return a->tokens != b->tokens ? a->tokens > b->tokens : a->first_leaf > b->first_leaf;
}

class Merger {
   public:
    Merger(const std::vector<std::shared_ptr<const Trie>> & tries, const std::vector<std::uint64_t> & first_rows)
        : first_rows_(first_rows), builder_(check(tries, first_rows)) {
        std::uint64_t n_leaves = 0;
        for (const auto & trie : tries) {
            runs_.push_back({trie.get(), n_leaves, 0, {}});
            n_leaves += trie->n_leaves();
        }
        if (n_leaves >= kNoLeaf) {
            throw Error(Status::limit, "more than 4294967294 leaves");
        }
        is_kept_.resize(n_leaves);
    }

    std::shared_ptr<const Trie> run() {
        merge();
        put_facts();
        return Trie::of(builder_.take(), runs_[0].trie->vocab(), std::move(aliases_));
    }

   private:
    // Returns the largest token.
    static Token check(const std::vector<std::shared_ptr<const Trie>> & tries,
                       const std::vector<std::uint64_t> & first_rows) {
        if (tries.empty() || tries.size() != first_rows.size()) {
            throw Error(Status::argument, "sets are merged one at least, each with its first row");
        }
        Token max_token = 0;
        std::uint64_t n_rows = 0;
        for (std::size_t i = 0; i < tries.size(); ++i) {
            const auto & trie = tries[i];
            if (trie == nullptr || trie->compact() == nullptr || trie->is_view()) {
                throw Error(Status::argument, "sets are merged that are laid out compactly");
            }
            if (first_rows[i] < n_rows) {
                throw Error(Status::argument, "first_rows[" + std::to_string(i) + "]: in the set before");
            }
            n_rows = first_rows[i] + trie->compact()->row(trie->n_leaves() - 1) + 1;
            if (first_rows[i] >= kNoLeaf || n_rows >= kNoLeaf) {
                throw Error(Status::limit, "more than 4294967294 rows");
            }
            if (trie->has_names() != tries[0]->has_names()) {
                throw Error(Status::argument, "sets with names and without are not merged");
            }
            if (trie->vocab() != tries[0]->vocab()) {
                throw Error(Status::vocab, "the sets belong to different vocabularies");
            }
            max_token = std::max(max_token, trie->max_token());
        }
        return max_token;
    }

    bool has_names() const { return runs_[0].trie->has_names(); }

    void merge() {
        std::vector<Run *> heap;
        for (Run & run : runs_) {
            run.read();
            heap.push_back(&run);
        }
        std::make_heap(heap.begin(), heap.end(), is_behind);
        std::vector<Token> last;
        while (!heap.empty()) {
            std::pop_heap(heap.begin(), heap.end(), is_behind);
            Run & run = *heap.back();
            if (run.tokens < last || run.tokens.empty()) {
                throw Error(Status::payload, "a set that is not sorted: its file is damaged");
            }
            if (run.tokens == last) {
                collapse(run);
            } else {
                builder_.add(run.tokens.data(), run.tokens.size());
                leaves_.push_back(run.leaf());
                is_kept_[run.leaf()] = true;
                last = run.tokens;
            }
            if (++run.member == run.trie->n_leaves()) {
                heap.pop_back();
                continue;
            }
            run.read();
            std::push_heap(heap.begin(), heap.end(), is_behind);
        }
    }

    // A leaf gives way to the one that is kept, which takes the smaller of their names.
    void collapse(const Run & run) {
        if (!has_names()) {
            return;
        }
        const std::uint32_t kept = leaves_.back();
        gone_[run.leaf()] = kept;
        std::string other = run.trie->name(run.own_leaf());
        std::string name = name_of(kept);
        if (other < name) {
            renamed_[kept] = other;
            std::swap(name, other);
        }
        if (other != name) {
            aliases_.push_back({std::move(other), kept});
        }
    }

    std::string name_of(std::uint32_t leaf) const {
        if (const auto found = renamed_.find(leaf); found != renamed_.end()) {
            return found->second;
        }
        const auto run = std::upper_bound(runs_.begin(), runs_.end(), leaf,
                                          [](std::uint32_t of, const Run & one) { return of < one.first_leaf; });
        return run[-1].trie->name(static_cast<LeafId>(leaf - run[-1].first_leaf));
    }

    // Leaves are numbered in the order of the lists, without those that gave way.
    void put_facts() {
        BitsBuilder bits;
        std::for_each(is_kept_.begin(), is_kept_.end(), [&](bool is_kept) { bits.push(is_kept); });
        const std::uint64_t n_ones = bits.n_ones();
        const std::vector<std::uint64_t> words = bits.take();
        const Bits kept({words.data(), words.size()}, is_kept_.size(), n_ones);
        const auto number = [&](std::uint32_t leaf) { return static_cast<LeafId>(kept.rank(leaf)); };
        std::transform(leaves_.begin(), leaves_.end(), leaves_.begin(), number);
        builder_.set_order(leaves_);
        std::vector<std::uint32_t>().swap(leaves_);
        for (Alias & alias : aliases_) {
            alias.leaf = number(alias.leaf);
        }
        for (const Run & run : runs_) {
            for (const Alias & alias : run.trie->aliases()) {
                const auto leaf = static_cast<std::uint32_t>(run.first_leaf + alias.leaf);
                const auto found = gone_.find(leaf);
                aliases_.push_back({alias.name, number(found == gone_.end() ? leaf : found->second)});
            }
        }
        has_names() ? put_names() : put_rows();
    }

    void put_names() {
        std::string names;
        std::vector<std::uint64_t> offsets;
        for (const Run & run : runs_) {
            for (LeafId leaf = 0; leaf < run.trie->n_leaves(); ++leaf) {
                const auto merged = static_cast<std::uint32_t>(run.first_leaf + leaf);
                if (is_kept_[merged]) {
                    const auto found = renamed_.find(merged);
                    offsets.push_back(names.size());
                    names.append(found == renamed_.end() ? run.trie->stored_name(leaf) : found->second.c_str());
                    names.push_back('\0');
                }
            }
        }
        offsets.push_back(names.size());
        builder_.set_names(names, offsets);
    }

    void put_rows() {
        std::vector<std::uint32_t> rows;
        bool is_plain = true;
        for (std::size_t i = 0; i < runs_.size(); ++i) {
            for (LeafId leaf = 0; leaf < runs_[i].trie->n_leaves(); ++leaf) {
                if (is_kept_[runs_[i].first_leaf + leaf]) {
                    const std::uint64_t row = first_rows_[i] + runs_[i].trie->compact()->row(leaf);
                    is_plain = is_plain && row == rows.size();
                    rows.push_back(static_cast<std::uint32_t>(row));
                }
            }
        }
        if (!is_plain) {
            builder_.set_rows(rows);
        }
    }

    const std::vector<std::uint64_t> & first_rows_;
    CompactBuilder builder_;
    std::vector<Run> runs_;
    std::vector<std::uint32_t> leaves_;  // of each member, of the lists one behind the other
    std::vector<bool> is_kept_;
    std::unordered_map<std::uint32_t, std::uint32_t> gone_;  // to those that are kept in their place
    std::unordered_map<std::uint32_t, std::string> renamed_;
    std::vector<Alias> aliases_;
};

}  // namespace

std::shared_ptr<const Trie> Trie::merged(const std::vector<std::shared_ptr<const Trie>> & tries,
                                         const std::vector<std::uint64_t> & first_rows) {
    return Merger(tries, first_rows).run();
}

}  // namespace token_trie
