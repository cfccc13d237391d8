#include "stream_fixture.h"

#include <gtest/gtest.h>

namespace token_trie::test {
namespace {

class StreamSplice : public StreamTest {};

Tokens joined(Tokens a, const Tokens & b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

TEST_F(StreamSplice, IsThePromptThatGoesOn) {
    const Opened appended = open();
    const Opened whole = open();
    appended->splice(kPrompt.size(), bytes("set the "));
    EXPECT_EQ(appended->state().n_cached, kPrompt.size());
    whole->prefill(joined(kPrompt, bytes("set the ")));
    EXPECT_EQ(appended->tokens(), whole->tokens());
    EXPECT_EQ(run(appended, 8).tokens(), run(whole, 8).tokens());
}

TEST_F(StreamSplice, IsEvaluatedWithWhatFollowsInOneBatch) {
    const Opened opened = open();
    set(*opened, trie_of({{"a", bytes("ab")}, {"b", bytes("ac")}}));
    const std::uint64_t before = opened->state().n_passes;
    opened->splice(kPrompt.size(), bytes("x: "));
    EXPECT_EQ(run(opened).steps.size(), 2U);
    EXPECT_EQ(opened->state().n_passes, before + 1);
}

TEST_F(StreamSplice, TakesTheEndBack) {
    const Opened opened = open();
    const Opened other = open();
    static_cast<void>(run(opened, 5));
    opened->splice(kPrompt.size() - 1, bytes("!"));
    other->prefill(joined({kPrompt.begin(), kPrompt.end() - 1}, bytes("!")));
    EXPECT_EQ(opened->tokens(), other->tokens());
    EXPECT_EQ(run(opened, 8).tokens(), run(other, 8).tokens());
}

TEST_F(StreamSplice, BeginsTheSpanAnew) {
    const Opened opened = open();
    set(*opened, trie_of({{"a", bytes("abc")}}));
    EXPECT_EQ(run(opened, 2).tokens(), bytes("ab"));
    opened->splice(opened->tokens().size(), bytes(", "));
    EXPECT_EQ(run(opened).tokens(), bytes("abc"));
}

TEST_F(StreamSplice, OfNothingChangesNoToken) {
    const Opened opened = open();
    opened->splice(kPrompt.size(), {});
    EXPECT_EQ(opened->tokens(), kPrompt);
    opened->splice(0, {});
    EXPECT_TRUE(opened->tokens().empty());
    EXPECT_THROW(static_cast<void>(run(opened)), Error);
    opened->prefill(kPrompt);
    EXPECT_EQ(run(opened, 3).steps.size(), 3U);
}

TEST_F(StreamSplice, RefusedLeavesTheSequence) {
    const Opened opened = open();
    const std::size_t n_ctx = opened->n_ctx_max();
    EXPECT_THROW(opened->splice(kPrompt.size() + 1, bytes("a")), Error);
    EXPECT_THROW(opened->splice(kPrompt.size(), {-1}), Error);
    EXPECT_THROW(opened->splice(1, Tokens(n_ctx, 5)), Error);
    EXPECT_EQ(opened->tokens(), kPrompt);
    EXPECT_EQ(run(opened, 3).tokens(), run(open(), 3).tokens());
    opened->splice(1, Tokens(n_ctx - 1, 5));
    EXPECT_EQ(opened->tokens().size(), n_ctx);
}

}  // namespace
}  // namespace token_trie::test
