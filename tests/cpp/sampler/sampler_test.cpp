#include "sampler/sampler.h"

#include "oracle.h"
#include "support.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace token_trie::test {
namespace {

using Pairs = Candidates::Pairs;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Mode kModes[] = {Mode::greedy, Mode::sampled};

// THINK is 100 101, EXECUTE is 200.
std::shared_ptr<const Trie> think_or_execute() { return trie_of({{"THINK", {100, 101}}, {"EXECUTE", {200}}}); }

TEST(Sampler, TheDisallowedCandidateIsDroppedThoughItIsTheBest) {
    for (const Mode mode : kModes) {
        const Sampler sampler = sampler_of(think_or_execute(), mode);
        Candidates candidates(Pairs{{100, 5.0F}, {200, 4.0F}, {999, 6.0F}});
        llama_sampler_apply(sampler.get(), candidates.get());
        EXPECT_EQ(candidates->size, mode == Mode::greedy ? 1U : 2U);
        EXPECT_EQ(candidates->data[0].id, 100);
        EXPECT_EQ(candidates->data[0].logit, 5.0F);
        EXPECT_EQ(candidates->data[1].id, 200);
        EXPECT_EQ(candidates->data[1].logit, 4.0F);
        EXPECT_EQ(candidates->data[2].id, 999);
        EXPECT_EQ(candidates->data[2].logit, -kInfinity);
        EXPECT_EQ(candidates->selected, mode == Mode::greedy ? 0 : -1);
    }
}

TEST(Sampler, EachTokenAcceptedNarrowsTheNextAndTheLastReleases) {
    const Sampler sampler = sampler_of(trie_of({{"THINK", {100, 101}}}), Mode::sampled);
    const Pairs all = {{101, 3.0F}, {100, 2.0F}, {7, 1.0F}};
    for (const Token token : {100, 101}) {
        Candidates candidates(all);
        llama_sampler_apply(sampler.get(), candidates.get());
        EXPECT_EQ(candidates.ids(), Tokens({token}));
        llama_sampler_accept(sampler.get(), token);
    }
    Candidates candidates(all);
    llama_sampler_apply(sampler.get(), candidates.get());
    EXPECT_EQ(candidates.pairs(), all);
    EXPECT_EQ(state_of(sampler.get()).state, TOKEN_TRIE_COMPLETE);
}

TEST(Sampler, ResetReturnsToTheRoot) {
    const Sampler sampler = sampler_of(think_or_execute(), Mode::greedy);
    llama_sampler_accept(sampler.get(), 100);
    llama_sampler_reset(sampler.get());
    Candidates candidates(Pairs{{101, 3.0F}, {200, 2.0F}});
    llama_sampler_apply(sampler.get(), candidates.get());
    EXPECT_EQ(candidates.ids(), Tokens({200}));
}

TEST(Sampler, ACloneStandsWhereTheOriginalStoodAndSharesTheTrie) {
    const auto trie = think_or_execute();
    for (const bool original_first : {true, false}) {
        Sampler original = sampler_of(trie, Mode::greedy);
        llama_sampler_accept(original.get(), 100);
        Sampler clone(llama_sampler_clone(original.get()));
        EXPECT_EQ(&view(clone.get()).cursor->trie(), trie.get());
        (original_first ? original : clone).reset();

        const Sampler & left = original_first ? clone : original;
        Candidates candidates(Pairs{{100, 9.0F}, {101, 3.0F}, {200, 2.0F}});
        llama_sampler_apply(left.get(), candidates.get());
        EXPECT_EQ(candidates.ids(), Tokens({101}));
    }
    EXPECT_EQ(trie.use_count(), 1);
}

TEST(Sampler, AnEscapeIsCountedAndEndsTheSpan) {
    const Sampler sampler = sampler_of(think_or_execute(), Mode::greedy);
    llama_sampler_accept(sampler.get(), 999);
    llama_sampler_accept(sampler.get(), 999);
    EXPECT_EQ(state_of(sampler.get()).state, TOKEN_TRIE_ESCAPED);
    EXPECT_EQ(state_of(sampler.get()).n_escaped, 1U);
    Candidates candidates(Pairs{{7, 1.0F}, {8, 2.0F}});
    llama_sampler_apply(sampler.get(), candidates.get());
    EXPECT_EQ(candidates->size, 2U);
}

TEST(Sampler, AnEmptyArrayIsLeftAlone) {
    for (const Mode mode : kModes) {
        const Sampler sampler = sampler_of(think_or_execute(), mode);
        Candidates candidates(Pairs{});
        llama_sampler_apply(sampler.get(), candidates.get());
        EXPECT_EQ(candidates->size, 0U);
        EXPECT_EQ(state_of(sampler.get()).n_restored, 0U);
    }
}

// Whatever upstream samplers did to the allowed tokens, some of them come back with equal logits.
TEST(Sampler, AllowedTokensThatWereCutAwayAreRestored) {
    const CapturedLog quiet;
    const float nan = std::nanf("");
    const std::vector<Pairs> arrays = {
        {{999, 6.0F}, {998, 5.0F}, {997, 4.0F}},
        {{100, -kInfinity}, {200, -kInfinity}, {999, 6.0F}},
        {{100, nan}, {200, nan}, {999, 6.0F}},
        {{100, nan}, {999, nan}},
    };
    for (const Mode mode : kModes) {
        const Sampler sampler = sampler_of(think_or_execute(), mode);
        std::uint64_t n_restored = 0;
        for (const Pairs & pairs : arrays) {
            Candidates candidates(pairs);
            candidates->selected = 0;
            llama_sampler_apply(sampler.get(), candidates.get());
            EXPECT_EQ(candidates->selected, mode == Mode::greedy ? 0 : -1);
            EXPECT_TRUE(candidates->sorted);
            EXPECT_EQ(candidates.pairs(),
                      mode == Mode::greedy ? Pairs({{100, 0.0F}}) : Pairs({{100, 0.0F}, {200, 0.0F}}));
            EXPECT_EQ(state_of(sampler.get()).n_restored, ++n_restored);
        }
        // No more than fit.
        Candidates one(Pairs{{999, 6.0F}});
        llama_sampler_apply(sampler.get(), one.get());
        EXPECT_EQ(one.ids(), Tokens({100}));
    }
}

TEST(Sampler, RestoringInAFullArrayStandingAtItsOwnIndexesIsTheSame) {
    const CapturedLog quiet;
    for (const Mode mode : kModes) {
        const Sampler sampler = sampler_of(trie_of({{"A", {3}}, {"B", {1}}}), mode);
        Candidates candidates = Candidates::at_own_index({1.0F, -kInfinity, 2.0F, std::nanf("")});
        llama_sampler_apply(sampler.get(), candidates.get());
        EXPECT_EQ(candidates.pairs(), mode == Mode::greedy ? Pairs({{1, 0.0F}}) : Pairs({{1, 0.0F}, {3, 0.0F}}));
        EXPECT_EQ(state_of(sampler.get()).n_restored, 1U);
    }
}

TEST(Sampler, ANanNeverWinsOverANumber) {
    for (const Pairs & pairs : {Pairs{{0, std::nanf("")}, {1, -5.0F}}, Pairs{{1, -5.0F}, {0, std::nanf("")}}}) {
        const Sampler sampler = sampler_of(trie_of({{"A", {0}}, {"B", {1}}}), Mode::greedy);
        Candidates candidates(pairs);
        llama_sampler_apply(sampler.get(), candidates.get());
        EXPECT_EQ(candidates.pairs(), Pairs({{1, -5.0F}}));
        EXPECT_EQ(state_of(sampler.get()).n_restored, 0U);
    }
}

TEST(Sampler, WarnsOnceThroughTheLogOfLlamaCpp) {
    const CapturedLog log;
    const Sampler sampler = sampler_of(think_or_execute(), Mode::greedy);
    for (int i = 0; i < 3; ++i) {
        Candidates candidates(Pairs{{999, 6.0F}});
        llama_sampler_apply(sampler.get(), candidates.get());
    }
    ASSERT_EQ(log.lines().size(), 1U);
    EXPECT_EQ(log.lines()[0].rfind("token-trie: the samplers before it cut every allowed token away", 0), 0U);
    EXPECT_EQ(log.lines()[0].back(), '\n');
}

TEST(Sampler, SortedAndSelectedStayTrue) {
    // Where the candidate 200 stood selected, it is followed; where another, nothing is selected any more.
    for (const Token selected : {200, 999}) {
        const Sampler sampler = sampler_of(think_or_execute(), Mode::sampled);
        Candidates candidates(Pairs{{999, 6.0F}, {100, 5.0F}, {7, 4.5F}, {200, 4.0F}});
        candidates->sorted = true;
        candidates->selected = selected == 200 ? 3 : 0;
        llama_sampler_apply(sampler.get(), candidates.get());
        EXPECT_EQ(candidates.ids(), Tokens({100, 200}));
        EXPECT_TRUE(candidates->sorted);
        EXPECT_EQ(candidates->selected, selected == 200 ? 1 : -1);
    }
    const Sampler greedy = sampler_of(think_or_execute(), Mode::greedy);
    Candidates candidates(Pairs{{100, 4.0F}, {200, 5.0F}, {999, 6.0F}});
    llama_sampler_apply(greedy.get(), candidates.get());
    EXPECT_TRUE(candidates->sorted) << "one candidate is a sorted array";
    EXPECT_EQ(candidates.selected(), 200);
}

TEST(Sampler, TellsItsName) {
    const Sampler sampler = sampler_of(think_or_execute(), Mode::greedy);
    EXPECT_STREQ(llama_sampler_name(sampler.get()), "token-trie");
}

TEST(Sampler, ViewRefusesWhatWasNotMadeHere) {
    const Sampler other(llama_sampler_init_greedy());
    EXPECT_THROW(view(other.get()), Error);
    EXPECT_THROW(view(nullptr), Error);
}

enum class Order { own_index, shuffled, descending };

Candidates in_order(Order order, const std::vector<float> & logits, std::mt19937 & rng) {
    Candidates out = Candidates::at_own_index(logits);
    llama_token_data * end = out->data + out->size;
    if (order == Order::shuffled) {
        std::shuffle(out->data, end, rng);
    } else if (order == Order::descending) {
        std::stable_sort(out->data, end, [](const auto & a, const auto & b) { return a.logit > b.logit; });
        out->sorted = true;
    }
    return out;
}

// The candidates that apply has to leave: those of the allowed set in the order they had, or the first best of them.
Pairs expected_of(const Candidates & before, const std::set<Token> & allowed, Mode mode) {
    Pairs out;
    for (const auto & pair : before.pairs()) {
        if (allowed.count(pair.first) > 0) {
            out.push_back(pair);
        }
    }
    if (mode == Mode::greedy) {
        const auto less = [](const auto & a, const auto & b) { return a.second < b.second; };
        out = {*std::max_element(out.begin(), out.end(), less)};
    }
    return out;
}

// One apply against the expectation, with a candidate selected before.
void check_apply(llama_sampler * sampler,
                 Mode mode,
                 Candidates & candidates,
                 const std::optional<std::set<Token>> & allowed,
                 std::int64_t selected) {
    candidates->selected = selected;
    const Token was_selected = candidates.selected();
    const Pairs expected = allowed ? expected_of(candidates, *allowed, mode) : candidates.pairs();
    llama_sampler_apply(sampler, candidates.get());
    ASSERT_EQ(candidates.pairs(), expected);
    const auto by_logit = [](const auto & a, const auto & b) { return a.logit > b.logit; };
    if (candidates->sorted) {
        EXPECT_TRUE(std::is_sorted(candidates->data, candidates->data + candidates->size, by_logit));
    }
    if (allowed && mode == Mode::greedy) {
        EXPECT_EQ(candidates->selected, 0);
    } else if (!allowed || allowed->count(was_selected) > 0) {
        ASSERT_GE(candidates->selected, 0);
        EXPECT_EQ(candidates.selected(), was_selected);
    } else {
        EXPECT_EQ(candidates->selected, -1);
    }
}

TEST(Sampler, RandomWalksAgreeWithTheOracleInEveryOrderOfCandidates) {
    constexpr Token n_tokens = 12;
    for (unsigned seed = 1; seed <= 600; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const RandomCase random(rng, n_tokens);
        const Mode mode = kModes[seed % 2];
        const Sampler sampler = sampler_of(unnamed_trie_of(random.members), mode, random.options);
        Oracle oracle(random.members, random.options);
        std::uint64_t n_escaped = 0;
        for (int step = 0; step < 12; ++step) {
            const std::optional<std::set<Token>> allowed = oracle.allowed();
            const std::vector<float> logits = random_logits(rng, n_tokens);
            for (const Order order : {Order::own_index, Order::shuffled, Order::descending}) {
                Candidates candidates = in_order(order, logits, rng);
                ASSERT_NO_FATAL_FAILURE(check_apply(sampler.get(), mode, candidates, allowed, rng() % n_tokens))
                    << "step " << step;
            }
            auto token = static_cast<Token>(rng() % n_tokens);
            if (allowed && rng() % 16 != 0) {
                token = *std::next(allowed->begin(), static_cast<std::ptrdiff_t>(rng() % allowed->size()));
            }
            llama_sampler_accept(sampler.get(), token);
            n_escaped += oracle.accept(token) ? 0 : 1;
        }
        const token_trie_sampler_state state = state_of(sampler.get());
        EXPECT_EQ(state.state, static_cast<std::int32_t>(oracle.state()));
        EXPECT_EQ(state.n_items, oracle.n_items());
        EXPECT_EQ(state.n_escaped, n_escaped);
        EXPECT_EQ(state.n_restored, 0U);
    }
}

TEST(Sampler, AFullVocabularyLeavesTheSameSurvivorsInEveryOrder) {
    constexpr std::size_t n_vocab = 49152;
    for (unsigned seed = 1; seed <= 4; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const std::set<Tokens> members = random_members(rng, std::size_t{seed} * 500, 1, n_vocab);
        std::set<Token> allowed;
        for (const Tokens & tokens : members) {
            allowed.insert(tokens[0]);
        }
        const std::vector<float> logits = random_logits(rng, n_vocab);
        for (const Mode mode : kModes) {
            const Sampler sampler = sampler_of(unnamed_trie_of(members), mode);
            for (const Order order : {Order::own_index, Order::shuffled, Order::descending}) {
                Candidates candidates = in_order(order, logits, rng);
                ASSERT_NO_FATAL_FAILURE(check_apply(sampler.get(), mode, candidates, allowed, rng() % n_vocab));
                Tokens ids = candidates.ids();
                std::sort(ids.begin(), ids.end());
                if (mode == Mode::sampled) {
                    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), allowed.begin(), allowed.end()));
                }
            }
        }
    }
}

TEST(Sampler, AtItsOwnIndexTheArrayStaysAPermutation) {
    std::mt19937 rng(1);
    for (const Mode mode : kModes) {
        const Sampler sampler = sampler_of(unnamed_trie_of(random_members(rng, 300, 1, 1000)), mode);
        Candidates candidates = Candidates::at_own_index(random_logits(rng, 1000));
        const std::size_t n = candidates->size;
        llama_sampler_apply(sampler.get(), candidates.get());
        std::set<Token> ids;
        for (std::size_t i = 0; i < n; ++i) {
            ids.insert(candidates->data[i].id);
        }
        EXPECT_EQ(ids.size(), n);
    }
}

}  // namespace
}  // namespace token_trie::test
