#include "stream_fixture.h"

// Text: free, under a grammar, drawn, and in characters.
namespace token_trie::test {
namespace {

class StreamText : public StreamTest {};

// An end chosen beside a longer member is not part of the sequence, so that free text goes on from the very logits of
// which a few alone were computed.
TEST_F(StreamText, FreeTextBehindABranchPointIsWhatItIsWithoutOne) {
    std::set<std::string> reached;
    for (std::uint32_t seed = 1; seed <= 20; ++seed) {
        const Opened stream = open(drawing_from(seed));
        set(*stream, trie_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}}), Mode::sampled);
        const Output member = run(stream, 32, 2);
        reached.insert(member.text());
        stream->clear_trie();
        const Tokens rest = run(stream, 4, 0).tokens();

        const Opened other = open();
        set(*other, unnamed_trie_of({member.tokens()}));
        EXPECT_EQ(run(other).tokens(), member.tokens());
        other->clear_trie();
        EXPECT_EQ(run(other, 4).tokens(), rest);
    }
    EXPECT_EQ(reached.size(), 2U);
}

TEST_F(StreamText, TextIsWholeCharactersAndNoneForControlTokens) {
    const Opened stream = open();
    Tokens tokens = bytes("\u00e9");
    tokens.push_back(1);  // <s>
    tokens.push_back(kFile);
    tokens.push_back(bytes("\xff")[0]);
    set(*stream, trie_of({{"odd", tokens}}));
    const Output out = run(stream);
    std::vector<std::string> texts;
    texts.reserve(out.steps.size());
    for (const Stream::Step & step : out.steps) {
        texts.push_back(step.text);
    }
    EXPECT_EQ(texts, std::vector<std::string>({"", "\u00e9", "", "_FILE", "\xEF\xBF\xBD"}));
}

TEST_F(StreamText, TheGrammarIsBackAfterASpanAndHasSeenIt) {
    const Opened stream = open();
    stream->set_grammar(R"(root ::= "<" ("READ" | "SEND") ">" "!")", nullptr);
    EXPECT_EQ(run(stream, 1).text(), "<");
    set(*stream, trie_of({{"READ", bytes("READ")}, {"SEND", {kSend}}}));
    const std::string member = run(stream).text();
    EXPECT_TRUE(member == "READ" || member == "SEND") << member;
    stream->clear_trie();
    EXPECT_EQ(run(stream).text(), ">!");
    EXPECT_EQ(stop_of(stream), Stop::end) << "the grammar is through";
}

TEST_F(StreamText, ATrieIsNotBoundByTheGrammarItReplaces) {
    const Opened stream = open();
    stream->set_grammar(R"(root ::= "only this")", nullptr);
    set(*stream, trie_of({{"READ", {kRead}}}), Mode::greedy, {});
    EXPECT_EQ(run(stream, 4).tokens().front(), kRead);
    EXPECT_EQ(stop_of(stream), Stop::max_tokens) << "nor is the text behind it, as long as the trie is set";
    stream->clear_trie();
    const std::size_t n_tokens = stream->state().n_tokens;
    EXPECT_EQ(status_of([&] { static_cast<void>(run(stream)); }), Status::grammar);
    EXPECT_EQ(status_of([&] { static_cast<void>(run(stream)); }), Status::grammar) << "again, not worse";
    EXPECT_EQ(stream->state().n_tokens, n_tokens);
    stream->set_grammar(R"(root ::= "from here")", nullptr);
    EXPECT_EQ(run(stream).text(), "from here");
    stream->prefill(kPrompt);
    EXPECT_EQ(run(stream).text(), "from here") << "a prefill begins it anew";
}

TEST_F(StreamText, GreedyModeTakesTheBestWhateverTheTemperature) {
    const Opened stream = open();
    std::mt19937 rng(7);
    const auto trie = unnamed_trie_of(random_byte_members(rng));
    const auto decide = [&](Mode mode, float temperature) {
        stream->prefill(kPrompt);
        set(*stream, trie, mode);
        return run(stream, 32, temperature).tokens();
    };
    const Tokens best = decide(Mode::greedy, 0);
    std::set<Tokens> drawn;
    for (int i = 0; i < 30; ++i) {
        EXPECT_EQ(decide(Mode::greedy, 5), best);
        drawn.insert(decide(Mode::sampled, 5));
    }
    EXPECT_GT(drawn.size(), 1U);
    EXPECT_EQ(decide(Mode::sampled, 0), best);
}

TEST_F(StreamText, DrawsAreThoseOfTheSeed) {
    std::mt19937 rng(7);
    std::set<Tokens> members;
    while (members.size() < 200) {
        members.merge(random_byte_members(rng));
    }
    const auto trie = unnamed_trie_of(members);
    const auto draw = [&](const Opened & stream) {
        stream->prefill(kPrompt);
        set(*stream, trie, Mode::sampled);
        std::vector<Tokens> out(10);
        for (Tokens & tokens : out) {
            tokens = run(stream, 32, 2).tokens();
        }
        return out;
    };
    const Opened a = open(drawing_from(5));
    const std::vector<Tokens> of_5 = draw(a);
    EXPECT_EQ(draw(open(drawing_from(5))), of_5);
    EXPECT_NE(draw(open(drawing_from(6))), of_5);
    EXPECT_NE(draw(a), of_5) << "draws go on";
    a->set_sampling(seeded(5));
    EXPECT_EQ(draw(a), of_5) << "until begun anew";
}

TEST_F(StreamText, FreeTextIsTheModelsOwn) {
    const Opened stream = open();
    const Output out = run(stream, 12);
    const Context context = tiny_context();
    Tokens all = kPrompt;
    ASSERT_EQ(llama_decode(context.get(), llama_batch_get_one(all.data(), static_cast<std::int32_t>(all.size()))), 0);
    for (const Token token : out.tokens()) {
        const float * logits = llama_get_logits_ith(context.get(), -1);
        ASSERT_EQ(token, std::max_element(logits, logits + kTinyVocab) - logits);
        Token next = token;
        ASSERT_EQ(llama_decode(context.get(), llama_batch_get_one(&next, 1)), 0);
    }
    EXPECT_EQ(stream->state().n_free, out.steps.size());
}

}  // namespace
}  // namespace token_trie::test
