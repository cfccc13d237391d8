#include "soak.h"

#include <algorithm>
#include <limits>

namespace token_trie::soak {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kMaxSteps = 16;

Sampler sampler_behind(std::mt19937 & rng) {
    switch (below(rng, 6)) {
        case 0: return Sampler(llama_sampler_init_top_k(1 + static_cast<std::int32_t>(below(rng, 5))));
        case 1: return Sampler(llama_sampler_init_top_p(0.5F, 1));
        case 2: return Sampler(llama_sampler_init_min_p(0.3F, 1));
        case 3: return Sampler(llama_sampler_init_temp(0.7F));
        case 4: return Sampler(llama_sampler_init_xtc(0.5F, 0.05F, 1, static_cast<std::uint32_t>(rng())));
        default: return nullptr;
    }
}

// Every token with a random logit, in order or not, and at times only those that samplers before have left.
Candidates::Pairs random_candidates(std::mt19937 & rng, Token n_tokens) {
    const std::vector<float> logits = random_logits(rng, static_cast<std::size_t>(n_tokens));
    Candidates::Pairs out;
    for (Token token = 0; token < n_tokens; ++token) {
        out.emplace_back(token, one_in(rng, 64) ? kMinusInfinity : logits[static_cast<std::size_t>(token)]);
    }
    if (one_in(rng, 2)) {
        std::shuffle(out.begin(), out.end(), rng);
        if (one_in(rng, 3)) {
            out.resize(1 + below(rng, out.size()));
        }
    }
    return out;
}

// The candidates that token-trie has to leave, ascending.
Candidates::Pairs expected_of(const Candidates::Pairs & candidates,
                              const std::optional<std::set<Token>> & allowed,
                              Mode mode) {
    Candidates::Pairs out;
    for (const auto & candidate : candidates) {
        if (!allowed || allowed->count(candidate.first) > 0) {
            out.push_back(candidate);
        }
    }
    const auto by_logit = [](const auto & a, const auto & b) { return a.second < b.second; };
    const bool cut_away = out.empty() || std::max_element(out.begin(), out.end(), by_logit)->second == kMinusInfinity;
    if (allowed && cut_away) {
        out.clear();
        for (const Token token : *allowed) {
            if (out.size() < candidates.size()) {
                out.emplace_back(token, 0.0F);
            }
        }
    }
    if (allowed && mode == Mode::greedy) {
        out = {*std::max_element(out.begin(), out.end(), by_logit)};
    }
    std::sort(out.begin(), out.end());
    return out;
}

Sampler random_chain(std::mt19937 & rng, const std::set<Tokens> & members, const token_trie_params & params) {
    llama_sampler * trie = llama_sampler_init_token_trie_set(nullptr, set_of(payload_of(members)).get(), &params);
    if (trie == nullptr) {
        return nullptr;
    }
    Sampler chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    llama_sampler_chain_add(chain.get(), trie);
    if (Sampler behind = sampler_behind(rng)) {
        llama_sampler_chain_add(chain.get(), behind.release());
    }
    llama_sampler_chain_add(chain.get(), one_in(rng, 2) ? llama_sampler_init_greedy()
                                                        : llama_sampler_init_dist(static_cast<std::uint32_t>(rng())));
    return chain;
}

}  // namespace

void decide_in_chain(std::mt19937 & rng, const Wrong & wrong) {
    const Token n_tokens = one_in(rng, 2) ? 10 : 60;
    const RandomCase random(rng, n_tokens);
    const Mode mode = one_in(rng, 2) ? Mode::greedy : Mode::sampled;
    Sampler chain = random_chain(rng, random.members, params_of(random.options, mode));
    if (chain == nullptr) {
        wrong(std::string("no sampler: ") + token_trie_last_error());
        return;
    }
    Oracle oracle(random.members, random.options);
    for (int step = 0; step < kMaxSteps; ++step) {
        llama_sampler * trie = llama_sampler_chain_get(chain.get(), 0);
        const std::optional<std::set<Token>> allowed = oracle.allowed();
        const Candidates::Pairs pairs = random_candidates(rng, n_tokens);
        const Candidates::Pairs expected = expected_of(pairs, allowed, mode);
        Candidates candidates(pairs);
        llama_sampler_apply(trie, candidates.get());
        Candidates::Pairs left = candidates.pairs();
        std::sort(left.begin(), left.end());
        if (left != expected) {
            wrong("step " + std::to_string(step) + ": the candidates left are not the allowed ones");
            return;
        }
        if (!allowed &&
            std::all_of(pairs.begin(), pairs.end(), [](const auto & c) { return c.second == kMinusInfinity; })) {
            continue;  // nothing for any sampler to choose from
        }
        Candidates whole(pairs);
        llama_sampler_apply(chain.get(), whole.get());
        if (whole->selected < 0 || whole->selected >= static_cast<std::int64_t>(whole->size) ||
            (allowed && allowed->count(whole.selected()) == 0)) {
            wrong("step " + std::to_string(step) + ": the chain selected what is not allowed");
            return;
        }
        const Token token =
            one_in(rng, 32) ? static_cast<Token>(below(rng, static_cast<std::size_t>(n_tokens))) : whole.selected();
        llama_sampler_accept(chain.get(), token);
        const bool fits = oracle.accept(token);
        const token_trie_sampler_state state = state_of(trie);
        const bool leaf_is_known = oracle.state() != State::escaped && !oracle.item().empty();
        const std::string leaf = state.leaf_name == nullptr ? "" : state.leaf_name;
        if (state.state != static_cast<std::int32_t>(oracle.state()) || state.n_items != oracle.n_items() ||
            state.n_escaped != (fits ? 0U : 1U) ||
            (leaf_is_known && leaf != (oracle.is_finished() ? name_of(oracle.item()) : ""))) {
            wrong("step " + std::to_string(step) + ": the sampler stands elsewhere than the oracle");
            return;
        }
        if (oracle.state() != State::constrained && !one_in(rng, 4)) {
            return;  // else once more: whatever comes behind is left alone
        }
        if (!fits) {
            return;
        }
        if (one_in(rng, 16)) {
            chain.reset(llama_sampler_clone(chain.get()));
        }
        if (one_in(rng, 64)) {
            llama_sampler_reset(chain.get());
            oracle = Oracle(random.members, random.options);
        }
    }
}

}  // namespace token_trie::soak
