#include "stream_fixture.h"

#include <cmath>

// Where a span begins and ends, and what follows it.
namespace token_trie::test {
namespace {

class StreamSpan : public StreamTest {};

TEST_F(StreamSpan, EndOfGenerationIsNeitherPassedOnNorPartOfTheSequence) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}}), Mode::sampled);
    std::set<std::string> reached;
    for (std::uint32_t seed = 1; seed <= 40; ++seed) {
        stream->prefill(kPrompt);
        stream->set_sampling(seeded(seed));
        const Output out = run(stream, 32, 2);
        EXPECT_EQ(stop_of(stream), Stop::complete);
        EXPECT_EQ(leaf_of(stream), out.text());
        EXPECT_EQ(stream->state().n_tokens, kPrompt.size() + out.steps.size());
        reached.insert(out.text());
    }
    EXPECT_EQ(reached, std::set<std::string>({"READ", "READ_FILE"})) << "a leaf and its continuation";
    const token_trie_stream_state stats = stream->state();
    EXPECT_EQ(stats.n_forced, 40U) << "READ; _FILE stood beside an end";
    EXPECT_EQ(stats.n_branches, 40U);
    EXPECT_EQ(stats.n_passes, 40U);
}

TEST_F(StreamSpan, AnEndTokenOfOnesOwnIsText) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}}), Mode::greedy, {OnComplete::end, bytes("\n"), {}, 0});
    EXPECT_EQ(run(stream).text(), "READ\n");
    EXPECT_EQ(stop_of(stream), Stop::complete);
    EXPECT_EQ(stream->state().n_passes, 0U);
}

TEST_F(StreamSpan, UnderReleaseFreeTextFollows) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"SEND", {kSend}}}), Mode::greedy, {});
    const Output out = run(stream, 5);
    ASSERT_GE(out.steps.size(), 2U);
    EXPECT_TRUE(out.text().rfind("READ", 0) == 0 || out.text().rfind("SEND", 0) == 0) << out.text();
    EXPECT_TRUE(std::isnan(out.steps[1].logprob));
    const token_trie_stream_state seen = stream->state();
    EXPECT_EQ(seen.n_branches, 1U);
    EXPECT_EQ(seen.n_free, out.steps.size() - 1);
    EXPECT_EQ(cursor_of(stream).state(), State::complete);
    const std::string leaf = leaf_of(stream);
    run(stream, 3);
    EXPECT_EQ(leaf_of(stream), leaf) << "released text stays free: no second span";
}

TEST_F(StreamSpan, BehindALeafThatIsReleasedAnyTokenIsFreeTextAndNoBranchPoint) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}}), Mode::greedy, {});
    const Output out = run(stream, 4);
    const token_trie_stream_state stats = stream->state();
    EXPECT_EQ(stats.n_forced, 1U);
    EXPECT_EQ(stats.n_branches, 0U);
    EXPECT_EQ(stats.n_free, out.steps.size() - 1);
    EXPECT_EQ(stats.logprob, 0.0);
}

TEST_F(StreamSpan, UnderRestartAListOfMembersComesOut) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"SEND", {kSend}}}), Mode::sampled,
        {OnComplete::restart, {kTinyEnd}, bytes(", "), 3});
    std::set<std::int32_t> lengths;
    for (std::uint32_t seed = 1; seed <= 40; ++seed) {
        stream->prefill(kPrompt);
        stream->set_sampling(seeded(seed));
        std::string text = run(stream, 32, 3).text();
        EXPECT_EQ(stop_of(stream), Stop::complete);
        const std::int32_t n_items = cursor_of(stream).n_items();
        EXPECT_EQ(static_cast<std::int32_t>(text.size()), 4 * n_items + 2 * (n_items - 1)) << text;
        for (; text.size() > 4; text.erase(0, 6)) {
            EXPECT_TRUE(text.rfind("READ, ", 0) == 0 || text.rfind("SEND, ", 0) == 0) << text;
        }
        EXPECT_TRUE(text == "READ" || text == "SEND") << text;
        lengths.insert(n_items);
    }
    EXPECT_EQ(lengths, std::set<std::int32_t>({1, 2, 3}));
}

TEST_F(StreamSpan, AListFullWithoutEndTokensIsComplete) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}}), Mode::greedy, {OnComplete::restart, {}, bytes(","), 3});
    EXPECT_EQ(run(stream).text(), "READ,READ,READ");
    EXPECT_EQ(stop_of(stream), Stop::complete);
    EXPECT_EQ(stream->state().n_passes, 0U);
}

TEST_F(StreamSpan, TheMemberThatIsLeftIsForced) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}, {"SEND", {kSend}}}), Mode::sampled,
        {OnComplete::restart, {kTinyEnd}, bytes(", "), 0, 2, true, {"READ_FILE"}});
    std::set<std::string> reached;
    for (std::uint32_t seed = 1; seed <= 20; ++seed) {
        stream->prefill(kPrompt);
        stream->set_sampling(seeded(seed));
        reached.insert(run(stream, 32, 2).text());
        EXPECT_EQ(stop_of(stream), Stop::complete);
    }
    EXPECT_EQ(reached, std::set<std::string>({"READ, SEND", "SEND, READ"}));
    const token_trie_stream_state stats = stream->state();
    EXPECT_EQ(stats.n_branches, 20U);
    EXPECT_EQ(stats.n_forced, 60U);
    EXPECT_EQ(stats.n_passes, 0U);
}

TEST_F(StreamSpan, TheOnlyTokenIsForcedThoughItContinuesAMemberAndBeginsAnother) {
    const Opened stream = open();
    set(*stream, trie_of({{"A", {kRead}}, {"B", {kRead, kRead}}}), Mode::greedy, {OnComplete::restart, {}, {}, 2});
    EXPECT_EQ(run(stream, 3).tokens(), Tokens({kRead, kRead, kRead}));
    EXPECT_EQ(stream->state().n_forced, 3U);
    EXPECT_EQ(stream->state().n_passes, 0U);
}

TEST_F(StreamSpan, AnEndTokenThatSeparatesMembersOrBeginsOneIsPartOfTheList) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}}), Mode::greedy, {OnComplete::restart, {}, {kTinyEnd}, 2});
    EXPECT_EQ(run(stream).tokens(), Tokens({kRead, kTinyEnd, kRead}));
    EXPECT_EQ(stop_of(stream), Stop::complete);
    set(*stream, trie_of({{"an end", {kTinyEnd}}}), Mode::greedy, {OnComplete::restart, {}, {}, 3});
    EXPECT_EQ(run(stream).tokens(), Tokens(3, kTinyEnd));
    EXPECT_EQ(cursor_of(stream).n_items(), 3);
}

TEST_F(StreamSpan, MaxTokensOutAtTheLastTokenIsComplete) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    EXPECT_EQ(run(stream, 3).text(), "REA");
    EXPECT_EQ(stop_of(stream), Stop::max_tokens);
    EXPECT_EQ(run(stream, 0).text(), "");
    EXPECT_EQ(stop_of(stream), Stop::max_tokens);
    EXPECT_EQ(run(stream, 1).text(), "D") << "the span goes on in a further call";
    EXPECT_EQ(stop_of(stream), Stop::complete);
}

TEST_F(StreamSpan, AfterCompletionAFurtherGenerateBeginsANewSpan) {
    const Opened stream = open();
    set(*stream, trie_of({{"A", bytes("xA")}, {"B", bytes("xB")}}));
    EXPECT_EQ(run(stream).steps.size(), 2U);
    const double logprob = stream->state().logprob;
    const Output second = run(stream);
    ASSERT_EQ(second.steps.size(), 2U);
    EXPECT_EQ(second.steps[0].token, bytes("x")[0]);
    EXPECT_LT(logprob, 0.0);
    EXPECT_EQ(stream->state().logprob, static_cast<double>(second.steps[1].logprob)) << "of this span alone";
    EXPECT_EQ(stream->state().n_tokens, kPrompt.size() + 4);
    EXPECT_EQ(stream->state().n_passes, 2U);
}

TEST_F(StreamSpan, ATrieClearedMidSpanLeavesFreeText) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    run(stream, 2);
    stream->clear_trie();
    EXPECT_FALSE(stream->cursor());
    const Output out = run(stream, 3);
    for (const Stream::Step & step : out.steps) {
        EXPECT_TRUE(std::isnan(step.logprob));
        EXPECT_FALSE(step.forced);
    }
    EXPECT_EQ(stream->state().n_free, out.steps.size());
    stream->clear_trie();  // none to clear
}

TEST_F(StreamSpan, AnotherTrieAtABranchPointThatWasEvaluatedNeedsNoOtherPass) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}}));
    stream->generate(32, [](const Stream::Step & step) { return step.token != kFile; });
    const bool ended = stream->state().n_tokens == kPrompt.size() + 1;
    const std::uint64_t passes = stream->state().n_passes;
    set(*stream, trie_of({{"A", bytes("A")}, {"B", bytes("B")}}));
    const Output out = run(stream);
    EXPECT_EQ(stream->state().n_passes - passes, ended ? 0U : 1U);

    const Opened other = open();
    Tokens prompt = kPrompt;
    prompt.push_back(kRead);
    if (!ended) {
        prompt.push_back(kFile);
    }
    other->prefill(prompt);
    set(*other, trie_of({{"A", bytes("A")}, {"B", bytes("B")}}));
    const Output expected = run(other);
    ASSERT_EQ(out.tokens(), expected.tokens());
    EXPECT_NEAR(out.steps[0].logprob, expected.steps[0].logprob, 1e-4);
}

TEST_F(StreamSpan, ATrieSetMidSpanBeginsAtItsRoot) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    run(stream, 2);
    set(*stream, trie_of({{"SEND", bytes("SEND")}}));
    EXPECT_EQ(run(stream).text(), "SEND");
    EXPECT_EQ(leaf_of(stream), "SEND");
}

TEST_F(StreamSpan, APrefillBeginsSpanAndTextAnew) {
    const Opened stream = open();
    set(*stream, trie_of({{"smile", bytes("\U0001F600")}}));
    EXPECT_EQ(run(stream, 2).text(), "") << "inside a character";
    stream->prefill(kPrompt);
    EXPECT_EQ(cursor_of(stream).state(), State::constrained);
    EXPECT_EQ(run(stream).text(), "\U0001F600");
}

TEST_F(StreamSpan, AnEndTokenInsideAMemberIsAMembersToken) {
    const Opened stream = open();
    set(*stream, trie_of({{"odd", {kRead, kTinyEnd, kSend}}}));
    EXPECT_EQ(run(stream).tokens(), Tokens({kRead, kTinyEnd, kSend}));
    EXPECT_EQ(stop_of(stream), Stop::complete);
}

}  // namespace
}  // namespace token_trie::test
