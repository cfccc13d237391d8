#include "decode/picker.h"

#include "tiny_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace token_trie::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class PickerTest : public WithTinyModel {
   protected:
    using Logits = std::vector<float>;

    static Sampling seeded(std::int64_t seed, float temperature) {
        Sampling out{};
        out.seed = seed;
        out.temperature = temperature;
        return out;
    }
    static Picker picker(const Sampling & options = {}) { return {tiny_vocab(), options}; }

    // Logits of -9 but for some tokens.
    static Logits logits_of(const Candidates::Pairs & pairs, float rest = -9) {
        Logits out(kTinyVocab, rest);
        for (const auto & [token, logit] : pairs) {
            out[static_cast<std::size_t>(token)] = logit;
        }
        return out;
    }

    static AllowedSet allow(const Tokens & tokens) {
        return {false, {tokens.data(), static_cast<std::uint32_t>(tokens.size())}, {}};
    }

    // How often each token comes in n draws from the allowed.
    static std::map<Token, int> count(Picker & picker, const Tokens & allowed, const Logits & logits, int n) {
        std::map<Token, int> out;
        for (int i = 0; i < n; ++i) {
            ++out[picker.pick_allowed(allow(allowed), logits.data(), false).token];
        }
        return out;
    }

    static std::set<Token> drawn(Picker & picker, const Tokens & allowed, const Logits & logits) {
        std::set<Token> out;
        for (const auto & [token, n] : count(picker, allowed, logits, 500)) {
            out.insert(token);
        }
        return out;
    }

    // Accepts a text, byte by byte, and takes the best of what the grammar leaves.
    static Token next_after(Picker & picker, const std::string & text, const Logits & logits) {
        for (const Token token : bytes(text)) {
            picker.accept(token);
        }
        return picker.pick_any(logits.data(), true);
    }
};

//    token   5   7   9    others
//    logit   1   3   2    -9         5 and 9 allowed: 9, by e^2 / (e^1 + e^2) = 0.731
TEST_F(PickerTest, TheBestAllowedIsTakenAndItsShareToldAmongTheAllowed) {
    Picker any = picker();
    const Logits logits = logits_of({{5, 1}, {7, 3}, {9, 2}});
    const Tokens allowed = {5, 9};
    Picker::Pick pick = any.pick_allowed(allow(allowed), logits.data(), true);
    EXPECT_EQ(pick.token, 9);
    EXPECT_NEAR(pick.logprob, std::log(0.7310586F), 1e-6);
    pick = any.pick_allowed(allow(allowed), logits.data(), false);
    EXPECT_EQ(pick.token, 9) << "temperature 0 is greedy";
    any.set_sampling(seeded(0, 5));
    for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(any.pick_allowed(allow(allowed), logits.data(), true).token, 9) << "greedy at any temperature";
    }
    EXPECT_EQ(picker().pick_any(logits.data(), true), 7);
}

TEST_F(PickerTest, ChildrenAndFollowAreOneSet) {
    const Tokens children = {5, 9};
    const Tokens follow = {2, 9};
    const AllowedSet allowed = {false, {children.data(), 2}, {follow.data(), 2}};
    const Picker::Pick pick = picker().pick_allowed(allowed, logits_of({{2, 1}, {5, 1}, {9, 1}}).data(), true);
    EXPECT_EQ(pick.token, 2) << "the first of equals";
    EXPECT_NEAR(pick.logprob, -std::log(3.0F), 1e-6) << "9 counted once";
}

TEST_F(PickerTest, LogprobIsTheLogSoftmaxOverTheAllowed) {
    for (unsigned seed = 1; seed <= 50; ++seed) {
        std::mt19937 rng(seed);
        const Logits logits = random_logits(rng, kTinyVocab);
        std::set<Token> some;
        while (some.size() < 2 + seed) {
            some.insert(static_cast<Token>(rng() % kTinyVocab));
        }
        const Tokens allowed(some.begin(), some.end());
        Sampling options{};
        options.seed = seed;
        options.top_k = 5;
        options.temperature = 3;
        options.top_p = 0.9F;
        Picker drawing = picker(options);
        const Picker::Pick pick = drawing.pick_allowed(allow(allowed), logits.data(), false);
        ASSERT_EQ(some.count(pick.token), 1U);
        double sum = 0;
        for (const Token token : allowed) {
            sum += std::exp(static_cast<double>(logits[static_cast<std::size_t>(token)]));
        }
        ASSERT_NEAR(pick.logprob, static_cast<double>(logits[static_cast<std::size_t>(pick.token)]) - std::log(sum),
                    1e-4)
            << "by the model's own logits, before temperature and truncation";
    }
}

TEST_F(PickerTest, DrawsAreReproducibleBySeed) {
    const Logits logits = logits_of({}, 0);
    const auto draw = [&](Picker & from) {
        Tokens out(20);
        for (Token & token : out) {
            token = from.pick_any(logits.data(), true);
        }
        return out;
    };
    Picker a = picker(seeded(5, 1));
    Picker b = picker(seeded(5, 1));
    const Tokens of_5 = draw(a);
    EXPECT_EQ(draw(b), of_5);
    EXPECT_NE(draw(a), of_5);
    a.set_sampling(seeded(5, 1));
    EXPECT_EQ(draw(a), of_5);
    a.set_sampling(seeded(6, 1));
    EXPECT_NE(draw(a), of_5);
    a.set_sampling(seeded(5, 1));
    b.set_sampling(seeded(5, 1));
    draw(a);
    draw(b);
    b.set_sampling(seeded(TOKEN_TRIE_SEED_KEEP, 1));
    EXPECT_EQ(draw(a), draw(b)) << "the draws go on";
}

TEST_F(PickerTest, DrawsAreDistributedAsTheSoftmaxAtTheTemperature) {
    constexpr int n = 20000;
    const Tokens allowed = {5, 7, 9, 11};
    const Logits logits = logits_of({{5, 0}, {7, 1}, {9, 2}, {11, 3}}, 50);
    for (const float temperature : {0.5F, 1.0F, 2.0F}) {
        Sampling options{};
        options.seed = 42;
        options.temperature = temperature;
        Picker drawing = picker(options);
        const std::map<Token, int> counts = count(drawing, allowed, logits, n);
        double sum = 0;
        for (const Token token : allowed) {
            sum += std::exp(static_cast<double>(logits[static_cast<std::size_t>(token)] / temperature));
        }
        double chi_square = 0;
        for (const Token token : allowed) {
            const double expected =
                n * std::exp(static_cast<double>(logits[static_cast<std::size_t>(token)] / temperature)) / sum;
            const auto at = counts.find(token);
            const double difference = (at == counts.end() ? 0 : at->second) - expected;
            chi_square += difference * difference / expected;
        }
        EXPECT_LT(chi_square, 16.27) << "three degrees of freedom, one in a thousand; temperature " << temperature;
    }
}

TEST_F(PickerTest, TruncationKeepsWhatItNames) {
    const Tokens allowed = {5, 7, 9, 11};
    // Shares 0.1, 0.2, 0.3, 0.4.
    const Logits logits =
        logits_of({{5, std::log(1.0F)}, {7, std::log(2.0F)}, {9, std::log(3.0F)}, {11, std::log(4.0F)}});
    const auto drawn_with = [&](Sampling options, float top_p = 1) {
        options.temperature = 1;
        options.top_p = top_p;
        Picker drawing = picker(options);
        return drawn(drawing, allowed, logits);
    };
    Sampling options{};
    EXPECT_EQ(drawn_with(options), std::set<Token>({5, 7, 9, 11}));
    EXPECT_EQ(drawn_with(options, 0.75F), std::set<Token>({7, 9, 11})) << "0.4 + 0.3 is not yet 0.75";
    EXPECT_EQ(drawn_with(options, 1e-9F), std::set<Token>({11}));
    options.top_k = 2;
    EXPECT_EQ(drawn_with(options), std::set<Token>({9, 11}));
    options.top_k = 0;
    options.min_p = 0.6F;
    EXPECT_EQ(drawn_with(options), std::set<Token>({9, 11})) << "0.3 is 0.75 of the best, 0.2 half";
}

TEST_F(PickerTest, PenaltiesFallOnTheTokensAcceptedLast) {
    const Tokens allowed = {5, 7};
    const Logits logits = logits_of({{5, 2}, {7, 1.5F}});
    const auto best = [&](Picker & from) { return from.pick_allowed(allow(allowed), logits.data(), true).token; };
    for (const int which : {0, 1, 2}) {
        Sampling options{};
        options.penalty_last_n = 2;
        options.penalty_repeat = which == 0 ? 2.0F : 1.0F;
        options.penalty_freq = which == 1 ? 1.0F : 0.0F;
        options.penalty_present = which == 2 ? 1.0F : 0.0F;
        Picker penalizing = picker(options);
        EXPECT_EQ(best(penalizing), 5);
        penalizing.accept(5);
        EXPECT_EQ(best(penalizing), 7);
        EXPECT_NEAR(penalizing.pick_allowed(allow(allowed), logits.data(), true).logprob, -std::log(1 + std::exp(0.5F)),
                    1e-5)
            << "the share is the model's own";
        penalizing.accept(20);
        penalizing.accept(21);
        EXPECT_EQ(best(penalizing), 5) << "two tokens back and no further";
        penalizing.accept(5);
        EXPECT_EQ(best(penalizing), 7);
        penalizing.restart();
        EXPECT_EQ(best(penalizing), 5) << "a new text";
    }
}

TEST_F(PickerTest, BadOptionsAreRefused) {
    const auto refusal = [](const std::function<void(Sampling &)> & change) {
        return message_of([&] {
            Sampling options{};
            change(options);
            picker(options);
        });
    };
    EXPECT_EQ(refusal([](auto & o) { o.top_k = -1; }), "top_k: not in [0, 2147483647]");
    for (const float value : {-0.1F, 1.1F, kNan}) {
        EXPECT_EQ(refusal([&](auto & o) { o.min_p = value; }), "min_p: not in [0, 1]");
    }
    EXPECT_EQ(refusal([](auto & o) { o.penalty_last_n = -1; }), "penalty_last_n: not in [0, 1048576]");
    EXPECT_EQ(refusal([](auto & o) { o.penalty_last_n = INT32_MAX; }), "penalty_last_n: not in [0, 1048576]");
    for (const float value : {-1.0F, kNan, kInfinity}) {
        EXPECT_EQ(refusal([&](auto & o) { o.penalty_repeat = value; }), "penalty_repeat: not above 0");
    }
    EXPECT_EQ(refusal([](auto & o) { o.penalty_freq = kInfinity; }), "penalty_freq: not finite");
    EXPECT_EQ(refusal([](auto & o) { o.penalty_present = kNan; }), "penalty_present: not finite");
    for (const float value : {-1.0F, kNan, kInfinity}) {
        EXPECT_EQ(refusal([&](auto & o) { o.temperature = value; }), "temperature: not in [0, inf)");
    }
    for (const float value : {-1.0F, 1.5F, kNan}) {
        EXPECT_EQ(refusal([&](auto & o) { o.top_p = value; }), "top_p: not in (0, 1]");
    }
}

// Whatever a broken model computes, a token comes out, and where there are numbers it is one of these.
TEST_F(PickerTest, LogitsThatAreNoNumbersNeverCrash) {
    const Tokens allowed = {5, 7, 9, 11};
    for (unsigned seed = 1; seed <= 300; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        Logits logits = random_logits(rng, kTinyVocab);
        const float odd[] = {kNan, -kInfinity, -kNan};
        for (float & logit : logits) {
            logit = rng() % 4 < seed % 5 ? odd[rng() % (seed % 2 == 0 ? 2 : 3)] : logit;
        }
        Sampling options{};
        options.seed = seed;
        options.top_k = seed % 3 == 0 ? 40 : seed % 3 == 1 ? 200 : 0;
        options.min_p = seed % 2 == 0 ? 0.05F : 0;
        options.penalty_last_n = seed % 7 == 0 ? 8 : 0;
        options.penalty_present = 1;
        options.temperature = seed % 11 == 0 ? 0 : 1.5F;
        options.top_p = seed % 4 == 0 ? 1.0F : 0.9F;
        Picker drawing = picker(options);
        for (int i = 0; i < 5; ++i) {
            const auto is_number = [&](Token token) { return logits[static_cast<std::size_t>(token)] > -kInfinity; };
            const Token any = drawing.pick_any(logits.data(), true);
            ASSERT_TRUE(any >= 0 && any < kTinyVocab);
            ASSERT_TRUE(is_number(any) ||
                        std::none_of(logits.begin(), logits.end(), [](float l) { return l > -kInfinity; }));
            const Token one = drawing.pick_allowed(allow(allowed), logits.data(), false).token;
            ASSERT_TRUE(allow(allowed).contains(one));
            ASSERT_TRUE(is_number(one) || std::none_of(allowed.begin(), allowed.end(), is_number));
            drawing.accept(any);
        }
    }
}

TEST_F(PickerTest, TemperaturesNextToNothingTakeTheBest) {
    const Tokens allowed = {5, 7, 9};
    const Logits logits = logits_of({{5, 1}, {7, 20}, {9, 19}});
    for (const float temperature : {1e-3F, 1e-20F, 1e-38F, std::numeric_limits<float>::denorm_min()}) {
        Picker drawing = picker(seeded(0, temperature));
        EXPECT_EQ(drawn(drawing, allowed, logits), std::set<Token>({7})) << temperature;
        EXPECT_EQ(drawing.pick_any(logits.data(), true), 7) << temperature;
    }
}

TEST_F(PickerTest, AGrammarThatDoesNotParseLeavesTheOneBefore) {
    Picker under = picker();
    const Logits wants_x = logits_of({{bytes("x")[0], 5}, {bytes("a")[0], 1}});
    EXPECT_EQ(under.pick_any(wants_x.data(), true), bytes("x")[0]);
    under.set_grammar("root ::= \"aab\"", nullptr);
    EXPECT_EQ(next_after(under, "", wants_x), bytes("a")[0]);
    under.accept(bytes("a")[0]);
    for (const char * bad : {"", "root ::= (", "answer ::= \"a\"", "root ::= root \"a\"", "root ::= missing"}) {
        EXPECT_EQ(status_of([&] { under.set_grammar(bad, nullptr); }), Status::grammar) << bad;
    }
    EXPECT_EQ(status_of([&] { under.set_grammar("root ::= \"a\"", "elsewhere"); }), Status::grammar);
    EXPECT_EQ(next_after(under, "a", wants_x), bytes("b")[0]) << "in the place where it stood";
    under.set_grammar("answer ::= \"a\"", "answer");
    EXPECT_EQ(next_after(under, "", wants_x), bytes("a")[0]);
    under.set_grammar(nullptr, nullptr);
    EXPECT_EQ(next_after(under, "", wants_x), bytes("x")[0]);
}

TEST_F(PickerTest, TheBestOfWhatAGrammarTakesIsFoundWhereverItStands) {
    for (unsigned seed = 1; seed <= 200; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        Logits logits = random_logits(rng, kTinyVocab);
        Tokens taken = {kTinyEnd};  // which a grammar takes at its end
        const auto low = static_cast<char>('a' + rng() % 20);
        const auto high = static_cast<char>(low + static_cast<char>(rng() % 4));
        for (char each = low; each <= high; ++each) {
            taken.push_back(bytes(std::string(1, each))[0]);
        }
        for (float & logit : logits) {
            logit = rng() % 8 < seed % 3 ? kNan : logit;
        }
        if (seed % 4 == 0) {
            for (const Token token : taken) {
                logits[static_cast<std::size_t>(token)] -= 100;
            }
        }
        Sampling options{};
        options.penalty_last_n = seed % 2 == 0 ? 4 : 0;
        options.penalty_present = 200;
        Picker under = picker(options);
        under.set_grammar((std::string("root ::= [") + low + "-" + high + "]*").c_str(), nullptr);
        std::optional<Token> before;
        for (int i = 0; i < 2 && before != kTinyEnd; ++i) {
            const auto logit_of = [&](Token token) {
                const float logit = logits[static_cast<std::size_t>(token)];
                return std::isnan(logit)                               ? -kInfinity
                       : options.penalty_last_n > 0 && before == token ? logit - 200
                                                                       : logit;
            };
            const Token best = *std::max_element(taken.begin(), taken.end(),
                                                 [&](Token a, Token b) { return logit_of(a) < logit_of(b); });
            if (logit_of(best) == -kInfinity) {
                EXPECT_EQ(status_of([&] { under.pick_any(logits.data(), true); }), Status::grammar);
                break;
            }
            ASSERT_EQ(under.pick_any(logits.data(), true), best);
            under.accept(best);
            before = best;
        }
    }
}

// The grammar takes "a", one of the best, and "b", the last of all.
TEST_F(PickerTest, WhatAGrammarTakesIsDrawnByItsShareOfAllThatItTakes) {
    Logits logits(kTinyVocab, 0);
    const Token a = bytes("a")[0];
    const Token b = bytes("b")[0];
    logits[static_cast<std::size_t>(a)] = 0.5F;
    logits[static_cast<std::size_t>(b)] = -0.5F;
    logits[kTinyEnd] = -kInfinity;
    Picker under = picker(seeded(1, 1));
    under.set_grammar("root ::= [ab]*", nullptr);
    std::map<Token, int> n;
    for (int i = 0; i < 4000; ++i) {
        ++n[under.pick_any(logits.data(), true)];
    }
    EXPECT_EQ(n[a] + n[b], 4000);
    EXPECT_NEAR(n[a] / 4000.0, 0.7310586, 0.03);
}

TEST_F(PickerTest, TextThatDoesNotFitTheGrammarIsAnErrorUntilItIsSetAgain) {
    Picker under = picker();
    const Logits logits = logits_of({{bytes("x")[0], 5}});
    under.set_grammar("root ::= \"ab\"", nullptr);
    EXPECT_EQ(status_of([&] { next_after(under, "ac", logits); }), Status::grammar);
    EXPECT_EQ(status_of([&] { next_after(under, "", logits); }), Status::grammar);
    EXPECT_EQ(under.pick_any(logits.data(), false), bytes("x")[0]) << "nobody asked the grammar";
    under.restart();
    EXPECT_EQ(next_after(under, "a", logits), bytes("b")[0]) << "a new text";
    under.accept(kTinyEnd);
    EXPECT_EQ(status_of([&] { next_after(under, "", logits); }), Status::grammar);
    under.set_grammar("root ::= \"cd\"", nullptr);
    EXPECT_EQ(next_after(under, "c", logits), bytes("d")[0]);
}

// The grammar is asked about the token drawn first, and about all only if it refuses that one.
TEST_F(PickerTest, UnderAGrammarDrawsComeFromWhatItLeaves) {
    Sampling options{};
    options.seed = 11;
    options.temperature = 3;
    Picker drawing = picker(options);
    drawing.set_grammar("root ::= [a-c]+", nullptr);
    const Logits logits = logits_of({}, 0);
    std::set<Token> seen;
    for (int i = 0; i < 200; ++i) {
        const Token token = drawing.pick_any(logits.data(), true);
        seen.insert(token);
        if (token != kTinyEnd) {
            drawing.accept(token);
        }
    }
    EXPECT_EQ(seen, std::set<Token>({kTinyEnd, bytes("a")[0], bytes("b")[0], bytes("c")[0]}));
}

TEST_F(PickerTest, AGrammarThatLeavesOnlyWhatTheModelRulesOutIsAnError) {
    Picker under = picker();
    under.set_grammar("root ::= \"a\"", nullptr);
    const Logits logits = logits_of({{bytes("a")[0], -kInfinity}});
    EXPECT_EQ(message_of([&] { under.pick_any(logits.data(), true); }), "the grammar leaves no token to go on with");
}

}  // namespace
}  // namespace token_trie::test
