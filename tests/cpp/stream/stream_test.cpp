#include "stream_fixture.h"

#include "oracle.h"

#include <cmath>

namespace token_trie::test {
namespace {

//       R     E A D     of one member: nothing to ask the model
TEST_F(StreamTest, ForcedTokensCostNoPass) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    const Output out = run(stream);
    EXPECT_EQ(out.tokens(), bytes("READ"));
    EXPECT_EQ(out.text(), "READ");
    for (const Stream::Step & step : out.steps) {
        EXPECT_TRUE(step.forced);
        EXPECT_EQ(step.logprob, 0.0F);
    }
    const token_trie_stream_state seen = stream->state();
    EXPECT_EQ(seen.stop, TOKEN_TRIE_STOP_COMPLETE);
    EXPECT_EQ(seen.n_passes, 0U);
    EXPECT_EQ(seen.n_forced, 4U);
    EXPECT_EQ(seen.n_branches, 0U);
    EXPECT_EQ(seen.logprob, 0.0);
    EXPECT_EQ(seen.n_tokens, kPrompt.size() + 4);
    EXPECT_EQ(seen.n_cached, kPrompt.size()) << "nothing evaluated that nobody needs";
    EXPECT_EQ(cursor_of(stream).state(), State::complete);
}

//      GET_A  GET_B      G E T _ are forced, A or B is the one branch point
TEST_F(StreamTest, ForcedTokensAreEvaluatedWithTheNextBranchPoint) {
    const Opened stream = open();
    set(*stream, trie_of({{"A", bytes("GET_A")}, {"B", bytes("GET_B")}}));
    const Output out = run(stream);
    ASSERT_EQ(out.steps.size(), 5U);
    EXPECT_FALSE(out.steps[4].forced);
    const token_trie_stream_state seen = stream->state();
    EXPECT_EQ(seen.n_passes, 1U);
    EXPECT_EQ(seen.n_forced, 4U);
    EXPECT_EQ(seen.n_branches, 1U);
    EXPECT_EQ(seen.n_cached, kPrompt.size() + 4);
    EXPECT_LT(out.steps[4].logprob, 0.0F);
    EXPECT_EQ(seen.logprob, static_cast<double>(out.steps[4].logprob));
}

// Over random sets, and against a decoder of its own kind: one context, one token a pass, the best of what the oracle
// allows.
class PlainDecoder {
   public:
    explicit PlainDecoder(Context context) : context_(std::move(context)) {}

    struct Path {
        Tokens tokens;             // ends included
        std::uint64_t n_branches;  // allowed sets of two or more
        bool first_branches;
        double logprob;
    };

    Path greedy(const Tokens & prompt, const std::set<Tokens> & members, const FollowSet::Options & options) {
        llama_memory_clear(llama_get_memory(context_.get()), true);
        Oracle oracle(members, options);
        Path path{{}, 0, false, 0};
        for (const Token token : prompt) {
            feed(token);
        }
        while (oracle.state() == State::constrained) {
            const std::set<Token> allowed = oracle.allowed().value_or(std::set<Token>{});
            if (allowed.empty()) {
                ADD_FAILURE() << "a set under " << members.size() << " members that allows any token";
                break;
            }
            const Token best = *std::max_element(allowed.begin(), allowed.end(),
                                                 [&](Token a, Token b) { return logits()[a] < logits()[b]; });
            double sum = 0;
            for (const Token token : allowed) {
                sum += std::exp(static_cast<double>(logits()[token]) - logits()[best]);
            }
            path.logprob -= std::log(sum);
            path.n_branches += allowed.size() > 1 ? 1 : 0;
            path.first_branches |= path.tokens.empty() && allowed.size() > 1;
            path.tokens.push_back(best);
            oracle.accept(best);
            feed(best);
        }
        return path;
    }

   private:
    void feed(Token token) { ASSERT_EQ(llama_decode(context_.get(), llama_batch_get_one(&token, 1)), 0); }
    const float * logits() { return llama_get_logits_ith(context_.get(), -1); }

    Context context_;
};

TEST_F(StreamTest, PassesAreTheBranchPointsAfterTheFirstTokensAndTokensThoseOfAnIndependentWalk) {
    const Opened stream = open();
    PlainDecoder decoder(tiny_context());
    for (unsigned seed = 1; seed <= 150; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const std::set<Tokens> members = random_byte_members(rng);
        PlainDecoder::Path expected = decoder.greedy(kPrompt, members, kUntilTheEnd);
        stream->prefill(kPrompt);
        set(*stream, unnamed_trie_of(members));
        const token_trie_stream_state before = stream->state();
        const Output out = run(stream);
        const token_trie_stream_state after = stream->state();
        ASSERT_EQ(after.stop, TOKEN_TRIE_STOP_COMPLETE);
        ASSERT_EQ(expected.tokens.back(), kTinyEnd);
        expected.tokens.pop_back();
        ASSERT_EQ(out.tokens(), expected.tokens);
        ASSERT_EQ(after.n_branches - before.n_branches, expected.n_branches);
        ASSERT_EQ(after.n_passes - before.n_passes, expected.n_branches - (expected.first_branches ? 1 : 0));
        ASSERT_NEAR(after.logprob, expected.logprob, 0.01);
        ASSERT_EQ(after.n_free, 0U);
    }
}

TEST_F(StreamTest, JumpForwardAndStepByStepGiveTheSameTokens) {
    Stream::Options options;
    options.jump_forward = false;
    const Opened jumping = open();
    const Opened stepping = open(options);
    for (unsigned seed = 1; seed <= 150; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const auto trie = unnamed_trie_of(random_byte_members(rng));
        Output outputs[2];
        std::uint64_t passes[2];
        for (const bool jump : {true, false}) {
            const Opened & stream = jump ? jumping : stepping;
            stream->prefill(kPrompt);
            stream->set_sampling(seeded(seed));
            set(*stream, trie, seed % 2 == 0 ? Mode::greedy : Mode::sampled);
            const std::uint64_t before = stream->state().n_passes;
            outputs[jump ? 1 : 0] = run(stream, 32, 1);
            passes[jump ? 1 : 0] = stream->state().n_passes - before;
        }
        ASSERT_EQ(outputs[0].tokens(), outputs[1].tokens());
        ASSERT_GE(passes[0], outputs[0].steps.size() - 1) << "a pass a token, the first excepted";
        ASSERT_LE(passes[1], passes[0]);
        for (std::size_t i = 0; i < outputs[0].steps.size(); ++i) {
            ASSERT_NEAR(outputs[0].steps[i].logprob, outputs[1].steps[i].logprob, 0.01);
        }
    }
}

// Independent draws over every kind of follow set: not one token that the oracle does not allow.
TEST_F(StreamTest, NoOutputOfAThousandSampledDecisionsIsInvalid) {
    const Opened stream = open();
    int n_ended = 0;
    for (unsigned seed = 1; seed <= 1000; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        RandomCase random(rng, kTinyVocab);
        if (seed % 2 == 0) {
            random.members = random_byte_members(rng);
            random.limit_min_items(random.members.size());
        }
        Oracle oracle(random.members, random.options);
        stream->prefill({kSend, static_cast<Token>(3 + seed % 256)});
        set(*stream, unnamed_trie_of(random.members), Mode::sampled, random.options);
        const Output out = run(stream, 20, 2);
        for (const Token token : out.tokens()) {
            ASSERT_TRUE(oracle.accept(token)) << token;
        }
        n_ended += stop_of(stream) == Stop::complete ? 1 : 0;
        if (random.options.on_complete != OnComplete::release && stop_of(stream) == Stop::complete &&
            oracle.state() == State::constrained) {
            ASSERT_TRUE(oracle.accept(kTinyEnd)) << "an end that is not passed on";
        }
    }
    EXPECT_GT(n_ended, 300);
}

TEST_F(StreamTest, NextGivesTheStepsOfGenerateOneByOne) {
    const Opened stream = open();
    const auto trie = trie_of({{"GET", bytes("GET")}, {"GET_A", bytes("GET_A")}, {"GET_B", bytes("GET_B")}});
    set(*stream, trie);
    const Output expected = run(stream);
    stream->prefill(kPrompt);
    set(*stream, trie);
    Output out;
    Stream::Next next{nullptr, Stop::max_tokens};
    while (next.stop == Stop::max_tokens) {
        next = stream->next();
        if (next.step != nullptr) {
            out.steps.push_back(*next.step);
        }
        EXPECT_EQ(stop_of(stream), next.stop);
    }
    EXPECT_EQ(next.stop, Stop::complete);
    EXPECT_EQ(out.tokens(), expected.tokens());
    EXPECT_EQ(out.text(), expected.text());
}

TEST_F(StreamTest, ACallbackThatReturnsFalseStopsBehindItsToken) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    int n = 0;
    stream->generate(32, [&](const Stream::Step & /*step*/) { return ++n < 2; });
    EXPECT_EQ(n, 2);
    EXPECT_EQ(stop_of(stream), Stop::callback);
    EXPECT_EQ(stream->state().n_tokens, kPrompt.size() + 2);
    EXPECT_EQ(run(stream).text(), "AD") << "and a further call goes on there";
}

TEST_F(StreamTest, ACallbackThatThrowsLeavesItsTokenInTheSequence) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    EXPECT_THROW(stream->generate(32, [](const Stream::Step & /*step*/) -> bool { throw std::bad_exception(); }),
                 std::bad_exception);
    EXPECT_EQ(stop_of(stream), Stop::none);
    EXPECT_EQ(run(stream).text(), "EAD");
}

TEST_F(StreamTest, CancelFromTheCallbackStopsBehindItsToken) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    stream->generate(32, [&](const Stream::Step & /*step*/) {
        stream->cancel();
        return true;
    });
    EXPECT_EQ(stop_of(stream), Stop::cancelled);
    EXPECT_EQ(stream->state().n_tokens, kPrompt.size() + 1);
    stream->resume();
    EXPECT_EQ(run(stream).text(), "EAD");
}

TEST_F(StreamTest, WhatIsRefusedChangesNothing) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    run(stream, 2);
    const auto refusal = [&](const std::function<void()> & work) {
        std::string message = message_of(work);
        const token_trie_stream_state seen = stream->state();
        EXPECT_EQ(seen.n_tokens, kPrompt.size() + 2);
        EXPECT_EQ(cursor_of(stream).node(), 2U);
        EXPECT_EQ(seen.n_forced, 2U);
        return message;
    };
    EXPECT_EQ(refusal([&] { stream->generate(-1, [](const Stream::Step & /*step*/) { return true; }); }),
              "max_tokens: -1 is negative");
    EXPECT_EQ(refusal([&] { stream->set_sampling(seeded(0, -1)); }), "temperature: not in [0, inf)");
    EXPECT_EQ(refusal([&] { stream->prefill({}); }), "tokens: none; a prompt needs at least one");
    EXPECT_EQ(refusal([&] { stream->prefill({1, kTinyVocab}); }),
              "tokens[1]: 263 is outside the vocabulary (263 tokens)");
    EXPECT_EQ(refusal([&] { stream->prefill({-1}); }), "tokens[0]: -1 is outside the vocabulary (263 tokens)");
    EXPECT_EQ(refusal([&] { stream->prefill(Tokens(257, kRead)); }), "257 tokens do not fit the context of 256");
    EXPECT_NE(refusal([&] { stream->set_grammar("root ::= (", nullptr); }), "");
    EXPECT_EQ(run(stream).text(), "AD");
}

TEST_F(StreamTest, WithoutAPrefillThereIsNothingToGoOnFrom) {
    Stream stream(std::make_unique<Sequence>(maker_of()), {});
    EXPECT_EQ(message_of([&] { static_cast<void>(run(stream)); }), "nothing to go on from: prefill first");
}

TEST_F(StreamTest, AFullContextEndsInAnErrorBehindTheTokensThatFit) {
    const Opened stream = open();
    stream->prefill(Tokens(254, kRead));
    set(*stream, trie_of({{"A", bytes("xyA")}, {"B", bytes("xyB")}}));
    Tokens tokens;
    const auto go_on = [&] {
        stream->generate(32, [&](const Stream::Step & step) {
            tokens.push_back(step.token);
            return true;
        });
    };
    EXPECT_EQ(status_of(go_on), Status::context);
    EXPECT_EQ(tokens, bytes("xy"));
    EXPECT_EQ(status_of(go_on), Status::context);
    const token_trie_stream_state seen = stream->state();
    EXPECT_EQ(seen.n_tokens, 256U);
    EXPECT_EQ(seen.stop, TOKEN_TRIE_STOP_NONE);
    EXPECT_EQ(seen.logprob, 0.0) << "of a token that is not there";
    EXPECT_EQ(seen.n_branches, 0U);
    stream->prefill(kPrompt);
    EXPECT_EQ(run(stream).steps.size(), 3U) << "and a shorter sequence goes on";
}

TEST_F(StreamTest, AModelWithoutATokenizerIsRefused) {
    EXPECT_EQ(message_of([&] { const Sequence sequence(maker_of(64, TinyKind::no_tokenizer)); }),
              "model: it has no tokenizer");
}

}  // namespace
}  // namespace token_trie::test
