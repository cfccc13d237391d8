#include "abi_calls.h"

#include <cmath>

namespace token_trie::fuzz {

using test::Tokens;
namespace {

// The deepest node whose logits a score asks for.
std::size_t depth(const SetModel & set, const token_trie_score_params & params, OnComplete on_complete) {
    const bool asks_behind_leaves =
        params.leaf_end == TOKEN_TRIE_LEAF_FOLLOW && params.branches == 0 && on_complete != OnComplete::release;
    return set.max_length - (asks_behind_leaves ? 0 : 1);
}

}  // namespace

void Caller::score(Input & in) {
    const std::uint32_t choice = in.byte();
    const std::uint32_t rest = in.byte();
    PayloadCase payload;
    const bool has_payload = choice % 2 == 1;
    if (has_payload) {
        payload = read_payload_case(in, ends_);
    }
    const Tokens prefix = choice / 2 % 4 == 3 ? read_tokens(in, model_.capacity()) : Tokens();
    auto params = sized<token_trie_score_params>();
    params.leaf_end = static_cast<std::int32_t>(rest % 4);
    params.branches = static_cast<std::int32_t>(rest / 4 % 2);
    params.prefix = prefix.empty() ? nullptr : prefix.data();
    params.n_prefix = prefix.size();
    const test::SetHandle handle = has_payload ? set_of(payload, vocab()) : nullptr;
    params.set = handle.get();
    if (has_payload && handle == nullptr) {
        return;
    }
    const SetModel none;
    const SetModel & set = has_payload ? payload.set : model_.set() != nullptr ? *model_.set() : none;
    const bool is_scorable = set.is_scorable();
    const std::size_t n_taken = prefix.empty() ? model_.tokens().size() : prefix.size() + model_.tokens().size();
    Expected wrong = expected();
    wrong.wrong_if(params.leaf_end == 3 || (!is_scorable), TOKEN_TRIE_ERROR_ARGUMENT);
    wrong.wrong_if(prefix.empty() && model_.tokens().empty(), TOKEN_TRIE_ERROR_ARGUMENT);
    wrong.wrong_if(!in_vocab(prefix), TOKEN_TRIE_ERROR_VOCAB);
    wrong.wrong_if(prefix.size() > model_.capacity(), TOKEN_TRIE_ERROR_CONTEXT);
    const OnComplete on_complete = has_payload ? OnComplete::end : set.options.on_complete;
    wrong.wrong_if(is_scorable && n_taken + depth(set, params, on_complete) > model_.capacity(),
                   TOKEN_TRIE_ERROR_CONTEXT);
    const bool is_short = rest / 8 % 16 == 15;
    wrong.wrong_if(is_short, TOKEN_TRIE_ERROR_ARGUMENT);
    std::vector<double> leaves(set.n_leaves + (is_short ? 1 : 0));
    std::vector<double> nodes(set.n_nodes);
    auto stats = sized<token_trie_score_stats>();
    double unused = 0;
    if (!wrong.check(token_trie_stream_score(stream_, &params, leaves.empty() ? &unused : leaves.data(), leaves.size(),
                                             set.is_any || rest / 128 == 1 ? nullptr : nodes.data(), nodes.size(),
                                             &stats))) {
        return;
    }
    double sum = 0;
    for (const double leaf : leaves) {
        require(leaf <= 1e-5, "a leaf's logarithm is no more than 0");  // nor is it a NaN
        sum += std::exp(leaf);
    }
    require((params.leaf_end == TOKEN_TRIE_LEAF_ANY && params.branches == 0) || sum < 1.001,
            "members exclude each other");
    for (const double node : nodes) {
        require(node <= 1e-5, "a node's logarithm is no more than 0");
    }
    if (rest / 128 == 0 && leaves.size() > 1) {
        // The best by a search are the best of these.
        std::vector<std::int64_t> found(leaves.size());
        std::vector<double> logprobs(leaves.size());
        if (token_trie_stream_search(stream_, &params, found.data(), logprobs.data(), 1 + leaves.size() / 2, &stats) !=
            TOKEN_TRIE_OK) {
            require(is_held_up() || fork_ != nullptr || parent_ != nullptr, "what can be scored can be searched");
            return;
        }
        std::vector<double> sorted = leaves;
        std::sort(sorted.rbegin(), sorted.rend());
        for (std::size_t i = 0; i < stats.n_found; ++i) {
            constexpr double tolerance = 1e-2;
            require(std::abs(logprobs[i] - sorted[i]) < tolerance || logprobs[i] == sorted[i], "search finds the best");
            const double scored = leaves[static_cast<std::size_t>(found[i])];
            require(std::abs(logprobs[i] - scored) < tolerance || logprobs[i] == scored, "by their scores");
        }
    }
}

void Caller::search(Input & in) {
    const std::uint32_t choice = in.byte();
    auto params = sized<token_trie_score_params>();
    params.leaf_end = static_cast<std::int32_t>(choice % 3);
    params.branches = static_cast<std::int32_t>(choice / 4 % 2);
    params.beam_width = choice == 255 ? -1 : static_cast<std::int32_t>(choice / 8 % 3);
    params.max_nodes = choice / 32 % 4;
    const std::size_t n_best = in.below(5);
    const SetModel * set = model_.set();
    const std::uint32_t weighing = in.byte();
    std::vector<double> weights;
    if (set != nullptr && weighing % 2 == 1) {
        constexpr std::array<double, 4> units = {0.1, 1e2, 1e6, 1e306};
        for (std::size_t i = 0; i < set->n_leaves; ++i) {
            weights.push_back(units[weighing / 2 % 4] * (static_cast<double>(in.byte()) - 128));
        }
        params.leaf_weights = weights.data();
        params.n_leaf_weights = weights.size();
    }
    const auto weight_of = [&](std::int64_t leaf) {
        return weights.empty() ? 0 : weights[static_cast<std::size_t>(leaf)];
    };
    Expected wrong = expected();
    wrong.wrong_if(set == nullptr || !set->is_scorable() || model_.tokens().empty() || n_best == 0 || choice == 255,
                   TOKEN_TRIE_ERROR_ARGUMENT);
    wrong.wrong_if(
        set != nullptr && model_.tokens().size() + depth(*set, params, set->options.on_complete) > model_.capacity(),
        TOKEN_TRIE_ERROR_CONTEXT);
    std::array<std::int64_t, 5> leaves{};
    std::array<double, 5> logprobs{};
    auto stats = sized<token_trie_score_stats>();
    if (!wrong.check(token_trie_stream_search(stream_, &params, leaves.data(), logprobs.data(), n_best, &stats))) {
        return;
    }
    require(stats.n_found <= n_best && stats.n_found <= set->n_leaves, "no more found than asked for");
    require(stats.gap >= 0, "a gap");
    require(params.beam_width != 0 || params.max_nodes != 0 || stats.gap == 0 || stats.n_found < n_best,
            "a search without limits is exact");
    for (std::size_t i = 0; i < stats.n_found; ++i) {
        require(leaves[i] >= 0 && leaves[i] < static_cast<std::int64_t>(set->n_leaves) && logprobs[i] <= 1e-5, "found");
        require(i == 0 || logprobs[i] + weight_of(leaves[i]) <= logprobs[i - 1] + weight_of(leaves[i - 1]),
                "best first");
    }
}

}  // namespace token_trie::fuzz
