#include "search/tree_paths.h"

#include "scorer_fixture.h"

namespace token_trie::test {
namespace {

void expect_near(const std::vector<double> & a, const std::vector<double> & b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_NEAR(a[i], b[i], kNear);
    }
}

// Beside a sequence in which each path is evaluated alone.
class TreePathsTest : public WithTinyModel {
   protected:
    static constexpr llama_seq_id kIds = 5;
    static inline const Tokens kPrompt = bytes("the answer is");

    TreePathsTest() {
        std::vector<llama_seq_id> ids{0};
        BatchRows rows;
        rows.clear(kPrompt.size(), 1);
        for (std::size_t i = 0; i < kPrompt.size(); ++i) {
            rows.add(kPrompt[i], static_cast<llama_pos>(i), ids, i + 1 == kPrompt.size());
        }
        EXPECT_EQ(llama_decode(context_.get(), rows.batch()), 0);
    }

    const llama_memory_t & memory() const { return memory_; }

    std::vector<double> alone(const Trie & trie, NodeId node) {
        Tokens tokens = kPrompt;
        for (const NodeId each : path_to(trie, node)) {
            tokens.push_back(trie.token(each));
        }
        return plain_.next(tokens);
    }

    void evaluate(const Trie & trie, std::vector<Row> rows) {
        BatchRows batch;
        batch.clear(64, kIds);
        for (Row & row : rows) {
            ASSERT_TRUE(batch.fits(row.wanted));
            batch.add(row.token, row.position, row.ids, row.wanted);
        }
        ASSERT_EQ(llama_decode(context_.get(), batch.batch()), 0);
        for (std::size_t i = 0; i < rows.size(); ++i) {
            if (rows[i].wanted) {
                expect_near(probabilities(llama_get_logits_ith(context_.get(), static_cast<std::int32_t>(i))),
                            alone(trie, rows[i].node));
            }
        }
    }

    Context context_ = tiny_context(256, TinyKind::attention, kIds);
    llama_memory_t memory_ = llama_get_memory(context_.get());
    PlainModel plain_;
};

TEST_F(TreePathsTest, EachNodeIsEvaluatedOnceBehindItsOwnPath) {
    std::mt19937 rng(9);
    for (int round = 0; round < 20; ++round) {
        const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 20, 5, 6));
        TreePaths paths(memory(), *trie, 0, static_cast<llama_pos>(kPrompt.size()));
        for (llama_seq_id id = round % 2; id < kIds; ++id) {
            paths.add_id(id);
        }
        std::set<NodeId> open;
        std::set<NodeId> queried;
        const auto open_below = [&](NodeId node) {
            for (std::uint32_t i = 0; i < trie->children(node).size; ++i) {
                open.insert(trie->child_at(node, i));
            }
        };
        open_below(kRoot);
        while (!open.empty()) {
            std::vector<NodeId> nodes;
            for (const NodeId node : std::set<NodeId>(open)) {
                if (nodes.empty() || rng() % 2 == 0) {
                    nodes.push_back(node);
                    open.erase(node);
                    open_below(node);
                }
            }
            sort_depth_first(*trie, nodes);
            for (std::size_t n_placed = 0; n_placed < nodes.size();) {
                const std::size_t max_nodes = std::min<std::size_t>(nodes.size() - n_placed, 1 + rng() % kIds);
                const TreePaths::Wave wave = paths.next_wave(nodes.data() + n_placed, max_nodes, 5 + rng() % 20);
                ASSERT_GE(wave.n_queried, 1U);
                ASSERT_LE(wave.n_queried, max_nodes);
                std::vector<NodeId> wanted;
                for (const Row & row : wave.rows) {
                    if (row.wanted) {
                        wanted.push_back(row.node);
                        EXPECT_TRUE(queried.insert(row.node).second);
                    }
                }
                EXPECT_EQ(wanted,
                          std::vector<NodeId>(nodes.begin() + static_cast<std::ptrdiff_t>(n_placed),
                                              nodes.begin() + static_cast<std::ptrdiff_t>(n_placed + wave.n_queried)));
                evaluate(*trie, wave.rows);
                n_placed += wave.n_queried;
            }
        }
        EXPECT_EQ(queried.size(), trie->n_nodes() - 1);
        paths.clear();
        EXPECT_EQ(llama_memory_seq_pos_max(memory(), 0) + 1, static_cast<llama_pos>(kPrompt.size()));
        for (llama_seq_id id = 1; id < kIds; ++id) {
            EXPECT_EQ(llama_memory_seq_pos_max(memory(), id), -1);
        }
    }
}

TEST_F(TreePathsTest, AnIdThatNoPathIsOnComesBackWithNothingInIt) {
    const std::shared_ptr<const Trie> trie = unnamed_trie_of({{kRead, kFile}, {kSend, kMail}});
    TreePaths paths(memory(), *trie, 0, static_cast<llama_pos>(kPrompt.size()));
    for (const llama_seq_id id : {1, 2, 3}) {
        paths.add_id(id);
    }
    const std::vector<NodeId> nodes = {trie->child_at(kRoot, 0), trie->child_at(kRoot, 1)};
    evaluate(*trie, paths.next_wave(nodes.data(), 2, 10).rows);
    const llama_seq_id idle = paths.take_idle_id();
    ASSERT_GE(idle, 1);
    EXPECT_EQ(llama_memory_seq_pos_max(memory(), idle), -1);
    EXPECT_EQ(paths.n_ids(), 2U);
    EXPECT_EQ(paths.take_idle_id(), -1);
}

}  // namespace
}  // namespace token_trie::test
