#pragma once

#include "scorer_fixture.h"

#include <optional>

namespace token_trie::test {

// Logits behind any tokens, as good as random and the same each time.
inline std::vector<float> scripted_logits(const Tokens & tokens, std::size_t n_vocab = kTinyVocab) {
    std::uint32_t seed = 17;
    for (const Token token : tokens) {
        seed = seed * 31 + static_cast<std::uint32_t>(token);
    }
    std::mt19937 rng(seed);
    std::vector<float> out(n_vocab);
    std::generate(out.begin(), out.end(), [&] { return static_cast<float>(rng() % 1000) / 100; });
    return out;
}

inline double log_share(const std::vector<float> & logits, const std::set<Token> & among, Token token) {
    double sum = 0;
    for (const Token each : among) {
        sum += std::exp(static_cast<double>(logits[static_cast<std::size_t>(each)]));
    }
    return static_cast<double>(logits[static_cast<std::size_t>(token)]) - std::log(sum);
}

// The answer of a loop over plain sets: the best allowed token each time, until nothing but the end is left.
struct PlainAnswer {
    Tokens tokens;
    double logprob = 0;
    std::uint64_t n_forced = 0;
    std::uint64_t n_branches = 0;

    PlainAnswer(const std::set<Tokens> & members, const std::function<std::vector<float>(const Tokens &)> & logits_of) {
        for (;;) {
            std::set<Token> allowed;
            for (const Tokens & member : members) {
                if (member.size() >= tokens.size() && std::equal(tokens.begin(), tokens.end(), member.begin())) {
                    allowed.insert(member.size() == tokens.size() ? kTinyEnd : member[tokens.size()]);
                }
            }
            if (allowed == std::set<Token>{kTinyEnd}) {
                return;
            }
            Token best = *allowed.begin();
            if (allowed.size() == 1) {
                ++n_forced;
            } else {
                const std::vector<float> logits = logits_of(tokens);
                for (const Token token : allowed) {
                    best =
                        logits[static_cast<std::size_t>(token)] > logits[static_cast<std::size_t>(best)] ? token : best;
                }
                logprob += log_share(logits, allowed, best);
                ++n_branches;
            }
            if (best == kTinyEnd) {
                return;
            }
            tokens.push_back(best);
        }
    }
};

}  // namespace token_trie::test
