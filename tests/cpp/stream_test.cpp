#include "stream/stream.h"

#include "oracle.h"
#include "tiny_model.h"

#include <cmath>
#include <stdexcept>

namespace token_trie::test {
namespace {

const Tokens kPrompt = bytes("Do: ");
const FollowSet::Options kUntilTheEnd = {OnComplete::end, {kTinyEnd}, {}, 0};

// What one generate passed on.
struct Output {
    std::vector<Stream::Step> steps;

    Tokens tokens() const {
        Tokens out;
        for (const Stream::Step & step : steps) {
            out.push_back(step.token);
        }
        return out;
    }
    std::string text() const {
        std::string out;
        for (const Stream::Step & step : steps) {
            out += step.text;
        }
        return out;
    }
};

// A stream on a tiny model that has read kPrompt.
class StreamTest : public WithTinyModel {
   protected:
    struct Opened {
        Context context;
        std::unique_ptr<Stream> stream;
        Stream * operator->() const { return stream.get(); }
        Stream & operator*() const { return *stream; }
    };

    static Opened open(const Stream::Options & options = {}) {
        Opened out{tiny_stream_context(), nullptr};
        out.stream = std::make_unique<Stream>(std::make_unique<Sequence>(out.context.get()), options);
        out->prefill(kPrompt);
        return out;
    }

    static Stream::Options drawing_from(std::uint32_t seed) {
        Stream::Options options;
        options.picker.seed = seed;
        return options;
    }

    static void set(Stream & stream,
                    std::shared_ptr<const Trie> trie,
                    Mode mode = Mode::greedy,
                    FollowSet::Options options = kUntilTheEnd) {
        auto follow = std::make_shared<const FollowSet>(*trie, std::move(options));
        stream.set_trie(Cursor(std::move(trie), std::move(follow)), mode);
    }

    static Output run(Stream & stream, std::int32_t max_tokens = 32, float temperature = 0) {
        Output out;
        stream.generate(max_tokens, temperature, 1, [&](const Stream::Step & step) {
            out.steps.push_back(step);
            return true;
        });
        return out;
    }
    static Output run(const Opened & opened, std::int32_t max_tokens = 32, float temperature = 0) {
        return run(*opened.stream, max_tokens, temperature);
    }

    static Stream::Stop stop_of(const Opened & opened) { return opened->snapshot().stats.stop; }
    static Cursor cursor_of(const Opened & opened) {
        const std::optional<Cursor> cursor = opened->snapshot().cursor;
        if (!cursor) {
            throw std::logic_error("no trie is set");
        }
        return *cursor;
    }
    static std::string leaf_of(const Opened & opened) {
        const Cursor cursor = cursor_of(opened);
        return cursor.leaf() == kNoLeaf ? "none" : cursor.trie().name(cursor.leaf());
    }
};

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
    const Stream::Snapshot seen = stream->snapshot();
    EXPECT_EQ(seen.stats.stop, Stream::Stop::complete);
    EXPECT_EQ(seen.stats.n_passes, 0U);
    EXPECT_EQ(seen.stats.n_forced, 4U);
    EXPECT_EQ(seen.stats.n_branches, 0U);
    EXPECT_EQ(seen.stats.span_logprob, 0.0);
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
    const Stream::Snapshot seen = stream->snapshot();
    EXPECT_EQ(seen.stats.n_passes, 1U);
    EXPECT_EQ(seen.stats.n_forced, 4U);
    EXPECT_EQ(seen.stats.n_branches, 1U);
    EXPECT_EQ(seen.n_cached, kPrompt.size() + 4);
    EXPECT_LT(out.steps[4].logprob, 0.0F);
    EXPECT_EQ(seen.stats.span_logprob, static_cast<double>(out.steps[4].logprob));
}

// Over random sets, and against a walk of its own kind: one context, one token a pass, the best of what the oracle
// allows.
class Walk {
   public:
    explicit Walk(Context context) : context_(std::move(context)) {}

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
        while (oracle.state() == State::walking) {
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

// Sets over bytes, so that no member holds the end token.
std::set<Tokens> random_byte_members(std::mt19937 & rng) {
    std::set<Tokens> out;
    for (const Tokens & member : random_members(rng, 1 + rng() % 12, 6, 4)) {
        Tokens shifted;
        for (const Token token : member) {
            shifted.push_back(bytes("a")[0] + token);
        }
        out.insert(shifted);
    }
    return out;
}

TEST_F(StreamTest, PassesAreTheBranchPointsAfterTheFirstTokensAndTokensThoseOfAnIndependentWalk) {
    const Opened stream = open();
    Walk walk(tiny_context());
    for (unsigned seed = 1; seed <= 150; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const std::set<Tokens> members = random_byte_members(rng);
        Walk::Path expected = walk.greedy(kPrompt, members, kUntilTheEnd);
        stream->prefill(kPrompt);
        set(*stream, unnamed_trie_of(members));
        const Stream::Stats before = stream->snapshot().stats;
        const Output out = run(stream);
        const Stream::Stats after = stream->snapshot().stats;
        ASSERT_EQ(after.stop, Stream::Stop::complete);
        ASSERT_EQ(expected.tokens.back(), kTinyEnd);
        expected.tokens.pop_back();
        ASSERT_EQ(out.tokens(), expected.tokens);
        ASSERT_EQ(after.n_branches - before.n_branches, expected.n_branches);
        ASSERT_EQ(after.n_passes - before.n_passes, expected.n_branches - (expected.first_branches ? 1 : 0));
        ASSERT_NEAR(after.span_logprob, expected.logprob, 0.01);
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
            stream->set_seed(seed);
            set(*stream, trie, seed % 2 == 0 ? Mode::greedy : Mode::sampled);
            const std::uint64_t before = stream->snapshot().stats.n_passes;
            outputs[jump ? 1 : 0] = run(stream, 32, 1);
            passes[jump ? 1 : 0] = stream->snapshot().stats.n_passes - before;
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
        }
        Oracle oracle(random.members, random.options);
        stream->prefill({kSend, static_cast<Token>(3 + seed % 256)});
        set(*stream, unnamed_trie_of(random.members), Mode::sampled, random.options);
        const Output out = run(stream, 20, 2);
        for (const Token token : out.tokens()) {
            ASSERT_TRUE(oracle.accept(token)) << token;
        }
        n_ended += stop_of(stream) == Stream::Stop::complete ? 1 : 0;
        if (random.options.on_complete != OnComplete::release && stop_of(stream) == Stream::Stop::complete &&
            oracle.state() == State::walking) {
            ASSERT_TRUE(oracle.accept(kTinyEnd)) << "an end that is not passed on";
        }
    }
    EXPECT_GT(n_ended, 300);
}

TEST_F(StreamTest, EndOfGenerationIsNeitherPassedOnNorPartOfTheSequence) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}}), Mode::sampled);
    std::set<std::string> reached;
    for (std::uint32_t seed = 1; seed <= 40; ++seed) {
        stream->prefill(kPrompt);
        stream->set_seed(seed);
        const Output out = run(stream, 32, 2);
        EXPECT_EQ(stop_of(stream), Stream::Stop::complete);
        EXPECT_EQ(leaf_of(stream), out.text());
        EXPECT_EQ(stream->snapshot().n_tokens, kPrompt.size() + out.steps.size());
        reached.insert(out.text());
    }
    EXPECT_EQ(reached, std::set<std::string>({"READ", "READ_FILE"})) << "a leaf and its continuation";
    const Stream::Stats stats = stream->snapshot().stats;
    EXPECT_EQ(stats.n_forced, 40U) << "READ; _FILE stood beside an end";
    EXPECT_EQ(stats.n_branches, 40U);
    EXPECT_EQ(stats.n_passes, 40U);
}

TEST_F(StreamTest, AnEndTokenOfOnesOwnIsText) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}}), Mode::greedy, {OnComplete::end, bytes("\n"), {}, 0});
    EXPECT_EQ(run(stream).text(), "READ\n");
    EXPECT_EQ(stop_of(stream), Stream::Stop::complete);
    EXPECT_EQ(stream->snapshot().stats.n_passes, 0U);
}

TEST_F(StreamTest, UnderReleaseFreeTextFollows) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"SEND", {kSend}}}), Mode::greedy, {});
    const Output out = run(stream, 5);
    ASSERT_GE(out.steps.size(), 2U);
    EXPECT_TRUE(out.text().rfind("READ", 0) == 0 || out.text().rfind("SEND", 0) == 0) << out.text();
    EXPECT_TRUE(std::isnan(out.steps[1].logprob));
    const Stream::Snapshot seen = stream->snapshot();
    EXPECT_EQ(seen.stats.n_branches, 1U);
    EXPECT_EQ(seen.stats.n_free, out.steps.size() - 1);
    EXPECT_EQ(cursor_of(stream).state(), State::complete);
    const std::string leaf = leaf_of(stream);
    run(stream, 3);
    EXPECT_EQ(leaf_of(stream), leaf) << "released text stays free: no second span";
}

TEST_F(StreamTest, BehindALeafThatIsReleasedAnyTokenIsFreeTextAndNoBranchPoint) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}}), Mode::greedy, {});
    const Output out = run(stream, 4);
    const Stream::Stats stats = stream->snapshot().stats;
    EXPECT_EQ(stats.n_forced, 1U);
    EXPECT_EQ(stats.n_branches, 0U);
    EXPECT_EQ(stats.n_free, out.steps.size() - 1);
    EXPECT_EQ(stats.span_logprob, 0.0);
}

TEST_F(StreamTest, UnderRestartAListOfMembersComesOut) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"SEND", {kSend}}}), Mode::sampled,
        {OnComplete::restart, {kTinyEnd}, bytes(", "), 3});
    std::set<std::int32_t> lengths;
    for (std::uint32_t seed = 1; seed <= 40; ++seed) {
        stream->prefill(kPrompt);
        stream->set_seed(seed);
        std::string text = run(stream, 32, 3).text();
        EXPECT_EQ(stop_of(stream), Stream::Stop::complete);
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

TEST_F(StreamTest, AListFullWithoutEndTokensIsComplete) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}}), Mode::greedy, {OnComplete::restart, {}, bytes(","), 3});
    EXPECT_EQ(run(stream).text(), "READ,READ,READ");
    EXPECT_EQ(stop_of(stream), Stream::Stop::complete);
    EXPECT_EQ(stream->snapshot().stats.n_passes, 0U);
}

TEST_F(StreamTest, TheOnlyTokenIsForcedThoughItContinuesAMemberAndBeginsAnother) {
    const Opened stream = open();
    set(*stream, trie_of({{"A", {kRead}}, {"B", {kRead, kRead}}}), Mode::greedy, {OnComplete::restart, {}, {}, 2});
    EXPECT_EQ(run(stream, 3).tokens(), Tokens({kRead, kRead, kRead}));
    EXPECT_EQ(stream->snapshot().stats.n_forced, 3U);
    EXPECT_EQ(stream->snapshot().stats.n_passes, 0U);
}

TEST_F(StreamTest, AnEndTokenThatSeparatesMembersOrBeginsOneIsPartOfTheList) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}}), Mode::greedy, {OnComplete::restart, {}, {kTinyEnd}, 2});
    EXPECT_EQ(run(stream).tokens(), Tokens({kRead, kTinyEnd, kRead}));
    EXPECT_EQ(stop_of(stream), Stream::Stop::complete);
    set(*stream, trie_of({{"an end", {kTinyEnd}}}), Mode::greedy, {OnComplete::restart, {}, {}, 3});
    EXPECT_EQ(run(stream).tokens(), Tokens(3, kTinyEnd));
    EXPECT_EQ(cursor_of(stream).n_items(), 3);
}

TEST_F(StreamTest, MaxTokensOutAtTheLastTokenIsComplete) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    EXPECT_EQ(run(stream, 3).text(), "REA");
    EXPECT_EQ(stop_of(stream), Stream::Stop::max_tokens);
    EXPECT_EQ(run(stream, 0).text(), "");
    EXPECT_EQ(stop_of(stream), Stream::Stop::max_tokens);
    EXPECT_EQ(run(stream, 1).text(), "D") << "the span goes on in a further call";
    EXPECT_EQ(stop_of(stream), Stream::Stop::complete);
}

TEST_F(StreamTest, AfterCompletionAFurtherGenerateBeginsANewSpan) {
    const Opened stream = open();
    set(*stream, trie_of({{"A", bytes("xA")}, {"B", bytes("xB")}}));
    EXPECT_EQ(run(stream).steps.size(), 2U);
    const double logprob = stream->snapshot().stats.span_logprob;
    const Output second = run(stream);
    ASSERT_EQ(second.steps.size(), 2U);
    EXPECT_EQ(second.steps[0].token, bytes("x")[0]);
    EXPECT_LT(logprob, 0.0);
    EXPECT_EQ(stream->snapshot().stats.span_logprob, static_cast<double>(second.steps[1].logprob))
        << "of this span alone";
    EXPECT_EQ(stream->snapshot().n_tokens, kPrompt.size() + 4);
    EXPECT_EQ(stream->snapshot().stats.n_passes, 2U);
}

TEST_F(StreamTest, ATrieClearedMidSpanLeavesFreeText) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    run(stream, 2);
    stream->clear_trie();
    EXPECT_FALSE(stream->snapshot().cursor);
    const Output out = run(stream, 3);
    for (const Stream::Step & step : out.steps) {
        EXPECT_TRUE(std::isnan(step.logprob));
        EXPECT_FALSE(step.forced);
    }
    EXPECT_EQ(stream->snapshot().stats.n_free, out.steps.size());
    stream->clear_trie();  // none to clear
}

// An end chosen beside a longer member is not part of the sequence, so that free text goes on from the very logits of
// which a few alone were computed.
TEST_F(StreamTest, FreeTextBehindABranchPointIsWhatItIsWithoutOne) {
    std::set<std::string> reached;
    for (std::uint32_t seed = 1; seed <= 20; ++seed) {
        const Opened stream = open(drawing_from(seed));
        set(*stream, trie_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}}), Mode::sampled);
        const Output member = run(stream, 32, 2);
        reached.insert(member.text());
        stream->clear_trie();
        const Tokens rest = run(stream, 4).tokens();

        const Opened other = open();
        set(*other, unnamed_trie_of({member.tokens()}));
        EXPECT_EQ(run(other).tokens(), member.tokens());
        other->clear_trie();
        EXPECT_EQ(run(other, 4).tokens(), rest);
    }
    EXPECT_EQ(reached.size(), 2U);
}

TEST_F(StreamTest, AnotherTrieAtABranchPointThatWasEvaluatedNeedsNoOtherPass) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}}));
    stream->generate(32, 0, 1, [](const Stream::Step & step) { return step.token != kFile; });
    const bool ended = stream->snapshot().n_tokens == kPrompt.size() + 1;
    const std::uint64_t passes = stream->snapshot().stats.n_passes;
    set(*stream, trie_of({{"A", bytes("A")}, {"B", bytes("B")}}));
    const Output out = run(stream);
    EXPECT_EQ(stream->snapshot().stats.n_passes - passes, ended ? 0U : 1U);

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

TEST_F(StreamTest, NextGivesTheStepsOfGenerateOneByOne) {
    const Opened stream = open();
    const auto trie = trie_of({{"GET", bytes("GET")}, {"GET_A", bytes("GET_A")}, {"GET_B", bytes("GET_B")}});
    set(*stream, trie);
    const Output expected = run(stream);
    stream->prefill(kPrompt);
    set(*stream, trie);
    Output out;
    Stream::Next next{nullptr, Stream::Stop::max_tokens};
    while (next.stop == Stream::Stop::max_tokens) {
        next = stream->next(0, 1);
        if (next.step != nullptr) {
            out.steps.push_back(*next.step);
        }
        EXPECT_EQ(stop_of(stream), next.stop);
    }
    EXPECT_EQ(next.stop, Stream::Stop::complete);
    EXPECT_EQ(out.tokens(), expected.tokens());
    EXPECT_EQ(out.text(), expected.text());
}

TEST_F(StreamTest, ATrieSetMidSpanBeginsAtItsRoot) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    run(stream, 2);
    set(*stream, trie_of({{"SEND", bytes("SEND")}}));
    EXPECT_EQ(run(stream).text(), "SEND");
    EXPECT_EQ(leaf_of(stream), "SEND");
}

TEST_F(StreamTest, APrefillBeginsSpanAndTextAnew) {
    const Opened stream = open();
    set(*stream, trie_of({{"smile", bytes("\U0001F600")}}));
    EXPECT_EQ(run(stream, 2).text(), "") << "inside a character";
    stream->prefill(kPrompt);
    EXPECT_EQ(cursor_of(stream).state(), State::walking);
    EXPECT_EQ(run(stream).text(), "\U0001F600");
}

TEST_F(StreamTest, TextIsWholeCharactersAndNoneForControlTokens) {
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

TEST_F(StreamTest, AnEndTokenInsideAMemberIsAMembersToken) {
    const Opened stream = open();
    set(*stream, trie_of({{"odd", {kRead, kTinyEnd, kSend}}}));
    EXPECT_EQ(run(stream).tokens(), Tokens({kRead, kTinyEnd, kSend}));
    EXPECT_EQ(stop_of(stream), Stream::Stop::complete);
}

TEST_F(StreamTest, ACallbackThatReturnsFalseStopsBehindItsToken) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    int n = 0;
    stream->generate(32, 0, 1, [&](const Stream::Step & /*step*/) { return ++n < 2; });
    EXPECT_EQ(n, 2);
    EXPECT_EQ(stop_of(stream), Stream::Stop::callback);
    EXPECT_EQ(stream->snapshot().n_tokens, kPrompt.size() + 2);
    EXPECT_EQ(run(stream).text(), "AD") << "and a further call goes on there";
}

TEST_F(StreamTest, ACallbackThatThrowsLeavesItsTokenInTheSequence) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    EXPECT_THROW(stream->generate(32, 0, 1, [](const Stream::Step & /*step*/) -> bool { throw std::bad_exception(); }),
                 std::bad_exception);
    EXPECT_EQ(stop_of(stream), Stream::Stop::none);
    EXPECT_EQ(run(stream).text(), "EAD");
}

TEST_F(StreamTest, CancelFromTheCallbackStopsBehindItsToken) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    stream->generate(32, 0, 1, [&](const Stream::Step & /*step*/) {
        stream->cancel();
        return true;
    });
    EXPECT_EQ(stop_of(stream), Stream::Stop::cancelled);
    EXPECT_EQ(stream->snapshot().n_tokens, kPrompt.size() + 1);
    stream->resume();
    EXPECT_EQ(run(stream).text(), "EAD");
}

TEST_F(StreamTest, TheGrammarIsBackAfterASpanAndHasSeenIt) {
    const Opened stream = open();
    stream->set_grammar(R"(root ::= "<" ("READ" | "SEND") ">" "!")", nullptr);
    EXPECT_EQ(run(stream, 1).text(), "<");
    set(*stream, trie_of({{"READ", bytes("READ")}, {"SEND", {kSend}}}));
    const std::string member = run(stream).text();
    EXPECT_TRUE(member == "READ" || member == "SEND") << member;
    stream->clear_trie();
    EXPECT_EQ(run(stream).text(), ">!");
    EXPECT_EQ(stop_of(stream), Stream::Stop::end) << "the grammar is through";
}

TEST_F(StreamTest, ATrieIsNotBoundByTheGrammarItReplaces) {
    const Opened stream = open();
    stream->set_grammar(R"(root ::= "only this")", nullptr);
    set(*stream, trie_of({{"READ", {kRead}}}), Mode::greedy, {});
    EXPECT_EQ(run(stream, 4).tokens().front(), kRead);
    EXPECT_EQ(stop_of(stream), Stream::Stop::max_tokens) << "nor is the text behind it, as long as the trie is set";
    stream->clear_trie();
    const std::size_t n_tokens = stream->snapshot().n_tokens;
    EXPECT_EQ(status_of([&] { static_cast<void>(run(stream)); }), Status::grammar);
    EXPECT_EQ(status_of([&] { static_cast<void>(run(stream)); }), Status::grammar) << "again, not worse";
    EXPECT_EQ(stream->snapshot().n_tokens, n_tokens);
    stream->set_grammar(R"(root ::= "from here")", nullptr);
    EXPECT_EQ(run(stream).text(), "from here");
    stream->prefill(kPrompt);
    EXPECT_EQ(run(stream).text(), "from here") << "a prefill begins it anew";
}

TEST_F(StreamTest, WhatIsRefusedChangesNothing) {
    const Opened stream = open();
    set(*stream, trie_of({{"READ", bytes("READ")}}));
    run(stream, 2);
    const auto refusal = [&](const std::function<void()> & work) {
        std::string message = message_of(work);
        const Stream::Snapshot seen = stream->snapshot();
        EXPECT_EQ(seen.n_tokens, kPrompt.size() + 2);
        EXPECT_EQ(cursor_of(stream).node(), 2U);
        EXPECT_EQ(seen.stats.n_forced, 2U);
        return message;
    };
    const auto generate = [&](std::int32_t max_tokens, float temperature, float top_p) {
        return refusal([&, max_tokens, temperature, top_p] {
            stream->generate(max_tokens, temperature, top_p, [](const Stream::Step & /*step*/) { return true; });
        });
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(generate(-1, 0, 1), "max_tokens: -1 is negative");
    for (const float temperature : {-1.0F, nan, infinity}) {
        EXPECT_EQ(generate(1, temperature, 1), "temperature: not in [0, inf)");
    }
    for (const float top_p : {0.0F, -1.0F, 1.5F, nan}) {
        EXPECT_EQ(generate(1, 0, top_p), "top_p: not in (0, 1]");
    }
    EXPECT_EQ(refusal([&] { stream->prefill({}); }), "tokens: none; a prompt needs at least one");
    EXPECT_EQ(refusal([&] { stream->prefill({1, kTinyVocab}); }),
              "tokens[1]: 263 is outside the vocabulary (263 tokens)");
    EXPECT_EQ(refusal([&] { stream->prefill({-1}); }), "tokens[0]: -1 is outside the vocabulary (263 tokens)");
    EXPECT_EQ(refusal([&] { stream->prefill(Tokens(257, kRead)); }), "257 tokens do not fit the context of 256");
    EXPECT_NE(refusal([&] { stream->set_grammar("root ::= (", nullptr); }), "");
    EXPECT_EQ(run(stream).text(), "AD");
}

TEST_F(StreamTest, WithoutAPrefillThereIsNothingToGoOnFrom) {
    const Context context = tiny_context();
    Stream stream(std::make_unique<Sequence>(context.get()), {});
    EXPECT_EQ(message_of([&] { static_cast<void>(run(stream)); }), "nothing to go on from: prefill first");
}

TEST_F(StreamTest, AFullContextEndsInAnErrorBehindTheTokensThatFit) {
    const Opened stream = open();
    stream->prefill(Tokens(254, kRead));
    set(*stream, trie_of({{"A", bytes("xyA")}, {"B", bytes("xyB")}}));
    Tokens tokens;
    const auto go_on = [&] {
        stream->generate(32, 0, 1, [&](const Stream::Step & step) {
            tokens.push_back(step.token);
            return true;
        });
    };
    EXPECT_EQ(status_of(go_on), Status::context);
    EXPECT_EQ(tokens, bytes("xy"));
    EXPECT_EQ(status_of(go_on), Status::context);
    const Stream::Snapshot seen = stream->snapshot();
    EXPECT_EQ(seen.n_tokens, 256U);
    EXPECT_EQ(seen.stats.stop, Stream::Stop::none);
    EXPECT_EQ(seen.stats.span_logprob, 0.0) << "of a token that is not there";
    EXPECT_EQ(seen.stats.n_branches, 0U);
    stream->prefill(kPrompt);
    EXPECT_EQ(run(stream).steps.size(), 3U) << "and a shorter sequence goes on";
}

TEST_F(StreamTest, GreedyModeTakesTheBestWhateverTheTemperature) {
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

TEST_F(StreamTest, DrawsAreThoseOfTheSeed) {
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
    a->set_seed(5);
    EXPECT_EQ(draw(a), of_5) << "until begun anew";
}

TEST_F(StreamTest, FreeTextIsTheModelsOwn) {
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
    EXPECT_EQ(stream->snapshot().stats.n_free, out.steps.size());
}

TEST_F(StreamTest, AModelWithoutATokenizerIsRefused) {
    const Context context = tiny_context(64, TinyKind::no_tokenizer);
    ASSERT_NE(context, nullptr);
    EXPECT_EQ(message_of([&] { const Sequence sequence(context.get()); }), "context: its model has no tokenizer");
}

}  // namespace
}  // namespace token_trie::test
