#include "answer.h"

#include "abi_calls.h"

#include <cmath>

namespace token_trie::fuzz {

using test::AnswerHandle;
using test::leaves_of;
using test::logprobs_of;
using test::Tokens;
namespace {

// The deepest node whose logits an answer asks for.
std::size_t depth(const SetModel & set, const token_trie_query & query) {
    const bool asks_after_leaves = query.leaf_end == TOKEN_TRIE_LEAF_FOLLOW && query.branches == 0;
    return set.max_length - (asks_after_leaves ? 0 : 1);
}

}  // namespace

void Caller::score(Input & in) {
    const std::uint32_t choice = in.byte();
    const std::uint32_t rest = in.byte();
    const PayloadCase payload = read_payload_case(in);
    const Tokens prefix = choice / 2 % 4 == 3 ? read_tokens(in, model_.capacity()) : Tokens();
    const test::SetHandle handle = set_of(payload, vocab());
    if (handle == nullptr) {
        return;
    }
    token_trie_query query = test::query_of(handle, TOKEN_TRIE_QUERY_SCORES);
    query.leaf_end = static_cast<std::int32_t>(rest % 4);
    query.branches = static_cast<std::int32_t>(rest / 4 % 2);
    const SetModel & set = payload.set;
    const std::size_t n_taken = prefix.empty() ? model_.tokens().size() : prefix.size() + model_.tokens().size();
    Expected wrong = expected();
    wrong.wrong_if(query.leaf_end == 3 || !set.is_scorable(), TOKEN_TRIE_ERROR_ARGUMENT);
    wrong.wrong_if(prefix.empty() && model_.tokens().empty(), TOKEN_TRIE_ERROR_ARGUMENT);
    wrong.wrong_if(!in_vocab(prefix), TOKEN_TRIE_ERROR_VOCAB);
    wrong.wrong_if(prefix.size() > model_.capacity(), TOKEN_TRIE_ERROR_CONTEXT);
    wrong.wrong_if(set.is_scorable() && n_taken + depth(set, query) > model_.capacity(), TOKEN_TRIE_ERROR_CONTEXT);
    AnswerHandle scored;
    if (!wrong.check(test::answer(stream_, query, scored, prefix))) {
        require(scored == nullptr, "a call that fails gives no answer");
        return;
    }
    const std::vector<double> leaves = logprobs_of(scored);
    require(leaves.size() == set.n_leaves, "every leaf has a score");
    double sum = 0;
    for (const double leaf : leaves) {
        require(leaf <= 1e-5, "a leaf's logarithm is no more than 0");  // nor is it a NaN
        sum += std::exp(leaf);
    }
    require((query.leaf_end == TOKEN_TRIE_LEAF_ANY && query.branches == 0) || sum < 1.001,
            "members exclude each other");
    if (rest / 128 == 0 && leaves.size() > 1) {
        // The best by a search are the best of these.
        query.mode = TOKEN_TRIE_QUERY_BEST;
        query.n_best = 1 + leaves.size() / 2;
        AnswerHandle best;
        if (test::answer(stream_, query, best, prefix) != TOKEN_TRIE_OK) {
            require(is_held_up() || fork_ != nullptr || parent_ != nullptr, "what can be scored can be searched");
            return;
        }
        const std::vector<std::int64_t> found = leaves_of(best);
        const std::vector<double> logprobs = logprobs_of(best);
        std::vector<double> sorted = leaves;
        std::sort(sorted.rbegin(), sorted.rend());
        for (std::size_t i = 0; i < found.size(); ++i) {
            constexpr double tolerance = 1e-2;
            require(std::abs(logprobs[i] - sorted[i]) < tolerance || logprobs[i] == sorted[i], "search finds the best");
            const double its = leaves[static_cast<std::size_t>(found[i])];
            require(std::abs(logprobs[i] - its) < tolerance || logprobs[i] == its, "by their scores");
        }
    }
}

void Caller::search(Input & in) {
    const std::uint32_t choice = in.byte();
    const std::size_t n_best = 1 + in.below(4);
    const std::uint32_t weighing = in.byte();
    const PayloadCase payload = read_payload_case(in);
    const test::SetHandle handle = set_of(payload, vocab());
    if (handle == nullptr) {
        return;
    }
    const SetModel & set = payload.set;
    token_trie_query query = test::query_of(handle, TOKEN_TRIE_QUERY_BEST);
    query.leaf_end = static_cast<std::int32_t>(choice % 3);
    query.branches = static_cast<std::int32_t>(choice / 4 % 2);
    query.beam_width = choice == 255 ? -1 : static_cast<std::int32_t>(choice / 8 % 3);
    query.max_nodes = choice / 32 % 4;
    query.n_best = n_best;
    std::vector<double> weights;
    if (weighing % 2 == 1) {
        constexpr std::array<double, 4> units = {0.1, 1e2, 1e6, 1e306};
        for (std::size_t i = 0; i < set.n_leaves; ++i) {
            weights.push_back(units[weighing / 2 % 4] * (static_cast<double>(in.byte()) - 128));
        }
        query.leaf_weights = weights.data();
        query.n_leaf_weights = weights.size();
    }
    const auto weight_of = [&](std::int64_t leaf) {
        return weights.empty() ? 0 : weights[static_cast<std::size_t>(leaf)];
    };
    Expected wrong = expected();
    wrong.wrong_if(!set.is_scorable() || model_.tokens().empty() || choice == 255, TOKEN_TRIE_ERROR_ARGUMENT);
    wrong.wrong_if(set.is_scorable() && model_.tokens().size() + depth(set, query) > model_.capacity(),
                   TOKEN_TRIE_ERROR_CONTEXT);
    AnswerHandle answer;
    if (!wrong.check(test::answer(stream_, query, answer))) {
        return;
    }
    const std::vector<std::int64_t> leaves = leaves_of(answer);
    const std::vector<double> logprobs = logprobs_of(answer);
    const double gap = test::info_of(answer).gap;
    require(leaves.size() == logprobs.size() && leaves.size() <= n_best && leaves.size() <= set.n_leaves,
            "no more found than asked for");
    require(gap >= 0, "a gap");
    require(query.beam_width != 0 || query.max_nodes != 0 || gap == 0 || leaves.size() < n_best,
            "a search without limits is exact");
    for (std::size_t i = 0; i < leaves.size(); ++i) {
        require(leaves[i] >= 0 && leaves[i] < static_cast<std::int64_t>(set.n_leaves) && logprobs[i] <= 1e-5, "found");
        require(i == 0 || logprobs[i] + weight_of(leaves[i]) <= logprobs[i - 1] + weight_of(leaves[i - 1]),
                "best first");
    }
}

}  // namespace token_trie::fuzz
