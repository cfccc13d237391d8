#pragma once

#include "search/scorer.h"

#include "tiny_model.h"

#include <algorithm>
#include <cmath>

namespace token_trie::test {

inline const std::atomic<bool> kNotCancelled{false};
constexpr double kNear = 1e-4;

inline std::vector<double> probabilities(const float * logits) {
    std::vector<double> p = log_probabilities(logits);
    std::transform(p.begin(), p.end(), p.begin(), [](double value) { return std::exp(value); });
    return p;
}

// Probabilities of the next token, each asked for on its own: a sequence at a time, in double.
class PlainModel {
   public:
    explicit PlainModel(TinyKind kind = TinyKind::attention) : sequence_(maker_of(256, kind)) {}

    std::vector<double> next(const Tokens & tokens) {
        sequence_.replace(tokens, kNotCancelled);
        const float * logits = sequence_.logits({true, {}, {}}, false, kNotCancelled);
        return probabilities(logits);
    }

    double logprob(Tokens prefix, const Tokens & leaf) {
        double sum = 0;
        for (const Token token : leaf) {
            sum += std::log(next(prefix)[static_cast<std::size_t>(token)]);
            prefix.push_back(token);
        }
        return sum;
    }

   private:
    Sequence sequence_;
};

inline Cursor cursor_of(const std::shared_ptr<const Trie> & trie,
                        FollowSet::Options options = {OnComplete::end, {kTinyEnd}, {}, 0}) {
    return {trie, std::make_shared<const FollowSet>(*trie, std::move(options))};
}

// Without the end token, which nothing can come behind.
inline std::set<Tokens> random_texts(std::mt19937 & rng, std::size_t n, std::size_t max_length, Token n_tokens) {
    std::set<Tokens> out;
    for (Tokens member : random_members(rng, n, max_length, n_tokens)) {
        for (Token & token : member) {
            token += kTinyEnd + 1;
        }
        out.insert(member);
    }
    return out;
}

// Contexts in which scoring takes its different ways.
struct ScorerSetting {
    TinyKind kind;
    std::uint32_t n_seq_max;
};

class ScorerOn : public ::testing::TestWithParam<ScorerSetting> {
   protected:
    static inline const Tokens kPrompt = bytes("the answer is");

    static ContextMaker maker() { return maker_of(256, GetParam().kind, GetParam().n_seq_max); }

    // Otherwise one at a time, and some again for the sake of others below them.
    static bool takes_many_at_once() { return GetParam().n_seq_max > 1 && !has_states(tiny_model(GetParam().kind)); }

    // Gemma's GELU comes from a table in half precision, whose steps a difference in the last bit may cross,
    // differently on each processor.
    static double near() { return GetParam().kind == TinyKind::sliding_window ? 3e-3 : kNear; }

   private:
    CapturedLog quiet_;
};

inline auto scorer_settings() {
    return ::testing::Values(ScorerSetting{TinyKind::attention, 1}, ScorerSetting{TinyKind::attention, 2},
                             ScorerSetting{TinyKind::attention, 3}, ScorerSetting{TinyKind::attention, 64},
                             ScorerSetting{TinyKind::sliding_window, 1}, ScorerSetting{TinyKind::sliding_window, 8},
                             ScorerSetting{TinyKind::recurrent, 1}, ScorerSetting{TinyKind::recurrent, 4},
                             ScorerSetting{TinyKind::hybrid, 1}, ScorerSetting{TinyKind::hybrid, 4});
}

inline std::string name_of(const ::testing::TestParamInfo<ScorerSetting> & info) {
    const std::string kind = info.param.kind == TinyKind::attention   ? "Attention"
                             : info.param.kind == TinyKind::recurrent ? "Recurrence"
                             : info.param.kind == TinyKind::hybrid    ? "BothInTurn"
                                                                      : "ASlidingWindow";
    return kind + "And" + std::to_string(info.param.n_seq_max) + "Ids";
}

struct Found {
    LeafId leaf;
    double logprob;
};

inline std::vector<Found> found_by(const Answer & answer) {
    std::vector<Found> out;
    out.reserve(answer.leaves.size());
    for (std::size_t i = 0; i < answer.leaves.size(); ++i) {
        out.push_back({static_cast<LeafId>(answer.leaves[i]), answer.logprobs.at(i)});
    }
    return out;
}

inline Answer result_of(const TreeQuery & query) {
    Answer out;
    query.write(out);
    return out;
}

class ScorerTest : public WithTinyModel {
   protected:
    static inline const Tokens kPrompt = bytes("the answer is");

    Sequence sequence_{maker_of(256, TinyKind::attention, 16)};

    void SetUp() override { sequence_.replace(kPrompt, kNotCancelled); }
};

}  // namespace token_trie::test
