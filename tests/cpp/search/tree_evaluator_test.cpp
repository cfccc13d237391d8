#include "search/tree_evaluator.h"

#include "scorer_fixture.h"

#include <map>

namespace token_trie::test {
namespace {

constexpr ScorerSetting kSettings[] = {{TinyKind::attention, 8},
                                       {TinyKind::attention, 1},
                                       {TinyKind::sliding_window, 8},
                                       {TinyKind::recurrent, 1},
                                       {TinyKind::hybrid, 1}};

class TreeEvaluatorOn : public ScorerOn {
   protected:
    // The logits of some tokens, each queried for on its own.
    std::vector<float> alone(Tokens tokens) {
        plain_.replace(std::move(tokens), kNotCancelled);
        const float * logits = plain_.logits({true, {}, {}}, false, kNotCancelled);
        return {logits, logits + kTinyVocab};
    }

    Sequence sequence_{maker()};
    Sequence plain_{maker_of(256, GetParam().kind)};
};

INSTANTIATE_TEST_SUITE_P(AllKinds, TreeEvaluatorOn, ::testing::ValuesIn(kSettings), [](const auto & info) {
    return std::to_string(static_cast<int>(info.param.kind)) + "With" + std::to_string(info.param.n_seq_max) + "Ids";
});

TEST_P(TreeEvaluatorOn, NodesHaveTheLogitsOfTheirPathsAndTheSequenceIsAsBefore) {
    std::mt19937 rng(10);
    for (const Tokens & prefix : {Tokens(), bytes("or else")}) {
        sequence_.replace(kPrompt, kNotCancelled);
        const std::vector<float> before = alone(kPrompt);
        const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 15, 4, 6));
        std::vector<NodeId> nodes(trie->n_nodes());
        std::iota(nodes.begin(), nodes.end(), kRoot);
        sort_depth_first(*trie, nodes);
        std::set<NodeId> seen;
        {
            TreeEvaluator evaluator(sequence_, *trie, trie->max_length(), prefix, kNotCancelled);
            evaluator.evaluate(nodes, [&](NodeId node, const float * logits) {
                EXPECT_TRUE(node == kRoot || seen.count(trie->parent(node)) > 0);
                EXPECT_TRUE(seen.insert(node).second);
                Tokens tokens = prefix.empty() ? kPrompt : prefix;
                for (const NodeId each : path_to(*trie, node)) {
                    tokens.push_back(trie->token(each));
                }
                const std::vector<float> expected = alone(tokens);
                for (std::size_t i = 0; i < expected.size(); ++i) {
                    ASSERT_NEAR(logits[i], expected[i], 2e-3);
                }
            });
            EXPECT_GE(evaluator.n_evaluated(), trie->n_nodes() - 1);
            EXPECT_LE(evaluator.n_evaluated(),
                      has_states(tiny_model(GetParam().kind)) ? trie->n_nodes() * 5 / 4 : trie->n_nodes() - 1);
        }
        EXPECT_EQ(seen.size(), nodes.size());
        EXPECT_EQ(sequence_.tokens(), kPrompt);
        const float * after = sequence_.logits({true, {}, {}}, false, kNotCancelled);
        for (std::size_t i = 0; i < before.size(); ++i) {
            ASSERT_NEAR(after[i], before[i], 2e-3);
        }
    }
}

}  // namespace
}  // namespace token_trie::test
