#pragma once

#include "trie/trie.h"

#include <llama.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace token_trie {

// llama.cpp multiplies so many rows at a time, and two or three that remain take longer than these.
constexpr std::size_t kRowGroup = 4;
// Rows that fill up the last group, where that is worth it, for n rows; 0: it is not.
constexpr std::size_t n_to_fill_up(std::size_t n) {
    return n < kRowGroup || n % kRowGroup < 2 ? 0 : kRowGroup - n % kRowGroup;
}

// A token on its way into a batch.
struct Row {
    NodeId node;
    Token token;
    llama_pos position;
    bool wanted;  // whether the logits after it are
    std::vector<llama_seq_id> ids;
};

// The rows of a pass: tokens, some of which have logits.
class BatchRows {
   public:
    // Begins another batch, of as many rows and logits at most, or of rows of one sequence alone.
    void clear(std::size_t max_rows, std::size_t max_wanted, bool of_one_sequence = false) noexcept {
        max_rows_ = max_rows;
        max_wanted_ = max_wanted;
        is_of_one_sequence_ = of_one_sequence;
        n_wanted_ = 0;
        tokens_.clear();
        positions_.clear();
        n_ids_.clear();
        ids_.clear();
        wanted_.clear();
    }
    std::size_t size() const noexcept { return tokens_.size(); }
    std::size_t n_wanted() const noexcept { return n_wanted_; }
    bool fits(bool for_wanted) const noexcept { return size() < max_rows_ && (!for_wanted || n_wanted_ < max_wanted_); }
    bool fits(bool for_wanted, const std::vector<llama_seq_id> & ids) const noexcept {
        return fits(for_wanted) && (!is_of_one_sequence_ || size() == 0 || *ids_.back() == ids.front());
    }
    std::size_t n_wanted_left() const noexcept { return std::min(max_rows_ - size(), max_wanted_ - n_wanted_); }

    // The ids are the owner's until the pass has ended.
    void add(Token token, llama_pos position, std::vector<llama_seq_id> & ids, bool wanted) {
        tokens_.push_back(token);
        positions_.push_back(position);
        n_ids_.push_back(static_cast<std::int32_t>(ids.size()));
        ids_.push_back(ids.data());
        wanted_.push_back(wanted ? 1 : 0);
        n_wanted_ += wanted ? 1 : 0;
    }

    // Wants rows that nobody observes as well, where the last logits would be multiplied in a group that is not full.
    // Where there are none and the group is worth filling up, adds some, of ids that hold nothing, max_more at most.
    void fill_up(std::vector<llama_seq_id> & empty, std::size_t max_more) {
        if (n_wanted_ <= kRowGroup) {
            return;
        }
        for (std::size_t i = size(); i-- > 0 && n_wanted_ % kRowGroup != 0 && n_wanted_ < max_wanted_;) {
            n_wanted_ += wanted_[i] == 0 ? 1 : 0;
            wanted_[i] = 1;
        }
        const std::size_t n_more = n_to_fill_up(n_wanted_);
        const bool fits_whole = n_more <= std::min(max_more, n_wanted_left());
        for (std::size_t i = 0; fits_whole && i < n_more; ++i) {
            add(tokens_.back(), static_cast<llama_pos>(i), empty, true);
        }
    }

    // The rows of each part of a pass, of which each sequence has as many in one, one after the other, where each row
    // is in one sequence. one_each: a sequence a part; neighbours: their ids follow each other.
    std::vector<std::vector<std::size_t>> parts(bool one_each, bool neighbours) const {
        std::map<llama_seq_id, std::vector<std::size_t>> rows;
        for (std::size_t i = 0; i < size(); ++i) {
            rows[*ids_[i]].push_back(i);
        }
        std::map<std::size_t, std::vector<llama_seq_id>> ids;  // by their number of rows
        for (const auto & [id, of_id] : rows) {
            ids[of_id.size()].push_back(id);
        }
        std::vector<std::vector<std::size_t>> out;
        for (const auto & [n, alike] : ids) {
            for (std::size_t i = 0; i < alike.size(); ++i) {
                if (i == 0 || one_each || (neighbours && alike[i] != alike[i - 1] + 1)) {
                    out.emplace_back();
                }
                out.back().insert(out.back().end(), rows[alike[i]].begin(), rows[alike[i]].end());
            }
        }
        return out;
    }
    // By row of a pass: its index in a part, if it is there.
    using Indices = std::vector<std::optional<std::size_t>>;
    // Takes the rows of a part out of a pass's, and says where they are. They stay the pass's until it has ended.
    Indices take(const BatchRows & pass, const std::vector<std::size_t> & part) {
        clear(pass.max_rows_, pass.max_wanted_);
        Indices indices(pass.size());
        for (const std::size_t row : part) {
            indices[row] = size();
            tokens_.push_back(pass.tokens_[row]);
            positions_.push_back(pass.positions_[row]);
            n_ids_.push_back(pass.n_ids_[row]);
            ids_.push_back(pass.ids_[row]);
            wanted_.push_back(pass.wanted_[row]);
            n_wanted_ += pass.wanted_[row] != 0 ? 1 : 0;
        }
        return indices;
    }

    // Index of a row among those that have logits.
    std::size_t output_of(std::size_t row) const noexcept {
        return static_cast<std::size_t>(
            std::count(wanted_.begin(), wanted_.begin() + static_cast<std::ptrdiff_t>(row), std::int8_t{1}));
    }

    // Valid until the next change.
    llama_batch batch() noexcept {
        return {static_cast<std::int32_t>(size()),
                tokens_.data(),
                nullptr,
                positions_.data(),
                n_ids_.data(),
                ids_.data(),
                wanted_.data()};
    }

   private:
    std::size_t max_rows_ = 0;
    std::size_t max_wanted_ = 0;
    std::size_t n_wanted_ = 0;
    bool is_of_one_sequence_ = false;
    std::vector<Token> tokens_;
    std::vector<llama_pos> positions_;
    std::vector<std::int32_t> n_ids_;
    std::vector<llama_seq_id *> ids_;
    std::vector<std::int8_t> wanted_;
};

}  // namespace token_trie
