#include "decode/decoder.h"

#include "plain_answer.h"

namespace token_trie::test {
namespace {

class ScriptedHost final : public Decoder::Host {
   public:
    void reserve() override {}
    const float * logits(const AllowedSet & /*wanted*/) override {
        ++n_logits;
        logits_ = scripted_logits(tokens);
        return logits_.data();
    }
    void before_forced(const AllowedSet & /*allowed*/) override { ++n_forced; }
    void check_not_full() const override {
        if (is_full) {
            throw Error(Status::context, "full");
        }
    }
    std::size_t n_tokens() const noexcept override { return tokens.size(); }
    void append(Token token) noexcept override { tokens.push_back(token); }

    Tokens tokens;
    std::uint64_t n_logits = 0;
    std::uint64_t n_forced = 0;
    bool is_full = false;

   private:
    std::vector<float> logits_;
};

class DecoderTest : public WithTinyModel {
   protected:
    static Decoder decoder_of(const std::set<Tokens> & members, Mode mode = Mode::greedy) {
        Decoder decoder(tiny_vocab());
        decoder.set_trie(cursor_of(unnamed_trie_of(members)), mode);
        decoder.begin();
        return decoder;
    }

    static Decoder::Outcome run(Decoder & decoder, Decoder::Host & host) {
        Decoder::Outcome outcome{};
        do {
            outcome = decoder.step(host);
        } while (outcome.stop == Stop::none);
        return outcome;
    }
};

TEST_F(DecoderTest, DecidesWhatALoopOverPlainSetsDoesAndLooksAtLogitsAtBranchPointsAlone) {
    std::mt19937 rng(5);
    for (int round = 0; round < 200; ++round) {
        const std::set<Tokens> members = random_texts(rng, 1 + rng() % 20, 1 + rng() % 5, 8);
        Decoder decoder = decoder_of(members);
        ScriptedHost host;
        EXPECT_EQ(run(decoder, host).stop, Stop::complete);
        const PlainAnswer plain(members, [](const Tokens & tokens) { return scripted_logits(tokens); });
        EXPECT_EQ(host.tokens, plain.tokens);
        EXPECT_EQ(decoder.counts().n_forced, plain.n_forced);
        EXPECT_EQ(host.n_forced, plain.n_forced);
        EXPECT_EQ(decoder.counts().n_branches, plain.n_branches);
        EXPECT_EQ(host.n_logits, plain.n_branches);
        EXPECT_NEAR(decoder.counts().span_logprob, plain.logprob, 1e-4);
        const Cursor cursor = cursor_in(decoder.cursor());
        EXPECT_EQ(cursor.trie().sequence(cursor.leaf()), plain.tokens);
    }
}

TEST_F(DecoderTest, WhatAHostHasNoPlaceForHasNotBeen) {
    Decoder decoder = decoder_of({{kRead, kFile}, {kSend, kMail}});
    ScriptedHost host;
    host.is_full = true;
    EXPECT_EQ(status_of([&] { decoder.step(host); }), Status::context);
    EXPECT_EQ(cursor_in(decoder.cursor()).node(), kRoot);
    EXPECT_EQ(decoder.counts().n_branches, 0U);
    EXPECT_EQ(decoder.counts().span_logprob, 0);
    host.is_full = false;
    run(decoder, host);
    EXPECT_EQ(host.tokens, PlainAnswer({{kRead, kFile}, {kSend, kMail}}, [](const Tokens & tokens) {
                               return scripted_logits(tokens);
                           }).tokens);
}

TEST_F(DecoderTest, ACopyGoesOnAsTheOtherDoes) {
    std::mt19937 rng(6);
    for (int round = 0; round < 50; ++round) {
        Sampling sampling{};
        sampling.temperature = 1;
        Decoder decoder(tiny_vocab(), sampling);
        decoder.set_trie(cursor_of(unnamed_trie_of(random_texts(rng, 30, 6, 8))), Mode::sampled);
        decoder.begin();
        ScriptedHost host;
        decoder.step(host);
        Decoder copy(decoder);
        ScriptedHost other;
        other.tokens = host.tokens;
        if (cursor_in(decoder.cursor()).is_active()) {
            EXPECT_EQ(run(copy, other).stop, run(decoder, host).stop);
        }
        EXPECT_EQ(other.tokens, host.tokens);
    }
}

TEST_F(DecoderTest, AMarkerEndsTextThatIsLookedThrough) {
    FollowSet::Options options = {OnComplete::end, {kTinyEnd}, {}, 0};
    options.start_after = bytes("->");
    options.max_before = 7;
    options.not_before = {kTinyEnd};
    Decoder decoder(tiny_vocab());
    decoder.set_trie(cursor_of(unnamed_trie_of({{kRead}, {kSend}}), options), Mode::sampled);
    decoder.begin();
    ScriptedHost host;
    WrittenText written(std::vector<std::string>{});
    Decoder::Outcome outcome{};
    while (outcome.stop == Stop::none) {
        outcome = decoder.step(host, &written);
    }
    EXPECT_EQ(outcome.stop, Stop::complete);
    ASSERT_EQ(host.tokens.size(), 9U);
    EXPECT_EQ(Tokens(host.tokens.end() - 2, host.tokens.end()), bytes("->"));
    EXPECT_EQ(decoder.counts().n_free, 7U);
    EXPECT_EQ(decoder.counts().n_forced, 2U);
}

TEST_F(DecoderTest, WhatCompletesAStopStringIsNoPartOfTheText) {
    ScriptedHost plain;
    Decoder decoder(tiny_vocab());
    decoder.begin();
    std::string text;
    for (int i = 0; i < 6; ++i) {
        ASSERT_EQ(decoder.step(plain).stop, Stop::none);
        text += decoder.last().text;
    }
    ASSERT_FALSE(text.empty());
    WrittenText written({text});
    decoder.restart();
    ScriptedHost host;
    Decoder::Outcome outcome{};
    do {
        outcome = decoder.step(host, &written);
    } while (outcome.stop == Stop::none);
    EXPECT_EQ(outcome.stop, Stop::string);
    EXPECT_FALSE(outcome.has_token);
    EXPECT_LE(host.tokens.size(), 5U);
    EXPECT_TRUE(std::equal(host.tokens.begin(), host.tokens.end(), plain.tokens.begin()));
}

}  // namespace
}  // namespace token_trie::test
