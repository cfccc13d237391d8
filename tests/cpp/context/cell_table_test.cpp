#include "context/cell_table.h"

#include "context/batch_rows.h"
#include "context/sequence.h"

#include "tiny_model.h"

#include <algorithm>
#include <map>
#include <utility>

namespace token_trie::test {
namespace {

// Beside a plain model of it: each id's cells as (token, number), and llama.cpp's own account of positions.
class CellTableTest : public WithTinyModel {
   protected:
    static constexpr std::size_t kIds = 5;
    using Cells = std::vector<std::pair<Token, int>>;

    const llama_memory_t & memory() const { return memory_; }

    // Puts tokens into the cache, behind what an id holds, and says so.
    void evaluate(CellTable & table, llama_seq_id id, const Tokens & tokens) {
        BatchRows rows;
        rows.clear(tokens.size(), 1);
        std::vector<llama_seq_id> ids{id};
        auto position = static_cast<llama_pos>(table.n_held(id));
        for (const Token token : tokens) {
            rows.add(token, position++, ids, false);
        }
        ASSERT_EQ(llama_decode(context_.get(), rows.batch()), 0);
        table.append(id, tokens.data(), tokens.size());
        for (const Token token : tokens) {
            model_[id].emplace_back(token, n_cells_++);
        }
    }

    void expect_like_model(const CellTable & table) {
        std::set<int> cells;
        for (llama_seq_id a = 0; a < static_cast<llama_seq_id>(kIds); ++a) {
            const Cells & of_a = model_[a];
            ASSERT_EQ(table.n_held(a), of_a.size());
            ASSERT_EQ(llama_memory_seq_pos_max(memory(), a) + 1, static_cast<llama_pos>(of_a.size()));
            for (const auto & [token, cell] : of_a) {
                cells.insert(cell);
            }
            for (llama_seq_id b = 0; b < static_cast<llama_seq_id>(kIds); ++b) {
                const Cells & of_b = model_[b];
                ASSERT_EQ(table.n_shared(a, b), common_prefix(of_a, of_b));
                ASSERT_EQ(table.n_common(a, b), common_prefix(tokens_of(of_a), tokens_of(of_b)));
                ASSERT_EQ(table.n_common(a, tokens_of(of_b)), common_prefix(tokens_of(of_a), tokens_of(of_b)));
            }
        }
        ASSERT_EQ(table.n_cells(), cells.size());
    }

    static Tokens tokens_of(const Cells & cells) {
        Tokens out;
        for (const auto & [token, cell] : cells) {
            out.push_back(token);
        }
        return out;
    }

    Context context_ = tiny_context(256, TinyKind::attention, kIds);
    llama_memory_t memory_ = llama_get_memory(context_.get());
    std::map<llama_seq_id, Cells> model_;
    int n_cells_ = 0;
};

TEST_F(CellTableTest, HoldsWhatAPlainModelHolds) {
    std::mt19937 rng(3);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(rng() % n); };
    CellTable table(memory(), tiny_model(), kIds);
    for (int step = 0; step < 400; ++step) {
        const auto a = static_cast<llama_seq_id>(below(kIds));
        const auto b = static_cast<llama_seq_id>(below(kIds));
        Cells & of_a = model_[a];
        if (below(2) == 0 && table.n_cells() < 200) {
            Tokens some(1 + below(5));
            std::generate(some.begin(), some.end(), [&] { return static_cast<Token>(3 + below(2)); });
            evaluate(table, a, some);
        } else if (a != b && model_[b].empty() && !of_a.empty()) {
            if (below(3) == 0) {
                table.move(a, b);
                model_[b] = std::exchange(of_a, {});
            } else {
                const std::size_t n = below(of_a.size() + 1);
                table.share(a, b, n);
                model_[b].assign(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(n));
            }
        } else {
            const std::size_t n = below(of_a.size() + 1);
            EXPECT_TRUE(table.cut(a, n));
            of_a.resize(n);
        }
        expect_like_model(table);
    }
    table.clear();
    model_.clear();
    expect_like_model(table);
}

TEST_F(CellTableTest, WhatIsForgottenTakesNoCells) {
    CellTable table(memory(), tiny_model(), kIds);
    evaluate(table, 0, bytes("abcdef"));
    table.share(0, 1, 4);
    table.forget(0);
    EXPECT_EQ(table.n_held(0), 0U);
    EXPECT_EQ(table.n_cells(), 4U);
    EXPECT_EQ(table.n_shared(0, 1), 0U);
}

}  // namespace
}  // namespace token_trie::test
