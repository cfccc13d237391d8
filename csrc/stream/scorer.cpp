#include "stream/scorer.h"

#include "stream/tree_evaluator.h"

#include <algorithm>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

std::vector<NodeId> nodes_with_logits(const ScoreRules & rules) {
    const Trie & trie = rules.trie();
    std::vector<NodeId> nodes;
    std::vector<NodeId> stack{kRoot};
    while (!stack.empty()) {
        const NodeId node = stack.back();
        stack.pop_back();
        if (rules.needs_logits(node)) {
            nodes.push_back(node);
        }
        for (NodeId child = trie.first_child(node) + trie.children(node).size; child > trie.first_child(node);) {
            stack.push_back(--child);
        }
    }
    return nodes;
}

}  // namespace

Scores score_all(Sequence & sequence,
                 const Cursor & cursor,
                 const ScoreOptions & options,
                 const std::atomic<bool> & cancelled) {
    const Trie & trie = cursor.trie();
    const ScoreRules rules(cursor, options);
    const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(sequence.vocab()));
    Scores scores;
    scores.nodes.assign(trie.n_nodes(), 0);
    std::vector<double> ends(trie.n_leaves(), 0);
    ScoreRules::Split split;
    TreeEvaluator evaluator(sequence, trie, rules.depth(), options.prefix, cancelled, /* all = */ true);
    evaluator.evaluate(nodes_with_logits(rules), [&](NodeId node, const float * logits) {
        rules.split(node, logits, n_vocab, split);
        std::copy(split.children.begin(), split.children.end(), scores.nodes.begin() + trie.first_child(node));
        if (rules.ends_leaf(node)) {
            ends[trie.leaf(node)] = split.end;
        }
    });
    // Parents come before their children.
    std::vector<double> sums(trie.n_nodes(), 0);
    for (NodeId node = kRoot; node < trie.n_nodes(); ++node) {
        for (std::uint32_t i = 0; i < trie.children(node).size; ++i) {
            const NodeId child = trie.first_child(node) + i;
            sums[child] = sums[node] + scores.nodes[child];
        }
    }
    scores.leaves.resize(trie.n_leaves());
    for (LeafId leaf = 0; leaf < trie.n_leaves(); ++leaf) {
        scores.leaves[leaf] = sums[trie.leaf_node(leaf)] + ends[leaf];
    }
    static_cast<Cost &>(scores) = evaluator.cost();
    return scores;
}

}  // namespace token_trie
