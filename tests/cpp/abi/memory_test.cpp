#include "allowance.h"
#include "answer.h"

#include <algorithm>
#include <array>
#include <utility>

// Memory runs out at the first, second, third ... allocation, in the library as in llama.cpp, until there is enough.

// llama.cpp loses what it holds when an allocation of its own fails. Nothing but sanitizers calls this.
extern "C" const char * __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char * __lsan_default_suppressions() { return "leak:libllama\nleak:libggml"; }

namespace token_trie::test {
namespace {

// Runs make with one allocation, with two, ... until it succeeds; returns how many that took.
long fail_at_every_allocation(const std::function<llama_sampler *()> & make) {
    for (long n = 0; n < 10000; ++n) {
        token_trie_cache_clear();
        allowance = n;
        llama_sampler * sampler = make();
        const bool all_used = allowance == 0;
        allowance = -1;
        if (sampler != nullptr) {
            const Sampler done(sampler);
            Candidates candidates(Candidates::Pairs{{9, 1.0F}, {7, 0.5F}});
            llama_sampler_apply(done.get(), candidates.get());
            EXPECT_EQ(candidates.ids(), Tokens({7}));
            return n;
        }
        EXPECT_TRUE(all_used);
        EXPECT_STREQ(token_trie_last_error(), "out of memory") << "at allocation " << n;
    }
    ADD_FAILURE() << "no number of allocations is enough";
    return -1;
}

TEST(Memory, RunningOutMakesNoSamplerAndNoCrash) {
    const std::string payload = payload_of(
        {{"READ", {7}}, {"READ_FILE", {7, 8}}, {"a name that is too long to stand in a string itself", {7, 8}}});
    const long n = fail_at_every_allocation(
        [&] { return llama_sampler_init_token_trie(nullptr, payload.c_str(), TOKEN_TRIE_GREEDY); });
    EXPECT_GT(n, 10);
}

TEST(Memory, RunningOutWithEveryOption) {
    const std::string payload = R"({"modelId": "a text that is too long to stand in a string itself", "descriptors": [
        {"path": "another text that is too long to stand in a string itself", "leaves": [{"name": "A", "tokens": [1]}]},
        {"path": "p", "leaves": [{"name": "B", "tokens": [7, 8, 9]}, {"name": "C", "tokens": [5]}]}]})";
    const llama_token tokens[] = {3, 2, 1};
    const char * const name = "C";
    auto params = sized<token_trie_params>();
    params.on_complete = TOKEN_TRIE_RESTART;
    params.path = "p";
    params.end_tokens = tokens;
    params.n_end_tokens = 3;
    params.separator = tokens;
    params.n_separator = 2;
    params.unique = 1;
    params.min_items = 1;
    params.exclude = &name;
    params.n_exclude = 1;
    fail_at_every_allocation([&]() -> llama_sampler * {
        const SetHandle set = set_of(payload);
        return set == nullptr ? nullptr : llama_sampler_init_token_trie_set(nullptr, set.get(), &params);
    });
}

TEST(Memory, RunningOutInTheMiddleOfAListEndsTheConstraintAndSaysSo) {
    const CapturedLog restores;
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);  // which needs no memory
    const std::string payload = payload_of({{"A", {7}}, {"B", {8}}});
    auto params = sized<token_trie_params>();
    params.on_complete = TOKEN_TRIE_RESTART;
    params.unique = 1;
    const Sampler sampler(llama_sampler_init_token_trie_set(nullptr, set_of(payload).get(), &params));
    ASSERT_NE(sampler, nullptr) << token_trie_last_error();
    allowance = 0;
    llama_sampler_accept(sampler.get(), 7);
    allowance = -1;
    EXPECT_EQ(state_of(sampler.get()).state, TOKEN_TRIE_ESCAPED);
    EXPECT_EQ(state_of(sampler.get()).n_escaped, 1U);
}

class MemoryVocab : public WithVocab {};

TEST_F(MemoryVocab, RunningOutWhileLookingIntoTheVocabulary) {
    const std::string payload = payload_of({{"A", {7}}});
    auto params = sized<token_trie_params>();
    params.on_complete = TOKEN_TRIE_END;
    fail_at_every_allocation([&]() -> llama_sampler * {
        const SetHandle set = set_of(payload, 0, vocab);
        return set == nullptr ? nullptr : llama_sampler_init_token_trie_set(vocab, set.get(), &params);
    });
}

class MemoryStream : public WithTinyModel {
   protected:
    // Runs work with no allocation, with one, ... until it succeeds; returns how many that took.
    static long fail_until_done(const std::function<std::int32_t()> & work) {
        for (long n = 0; n < 100000; ++n) {
            token_trie_cache_clear();
            allowance = n;
            const std::int32_t status = work();
            allowance = -1;
            if (status == TOKEN_TRIE_OK) {
                return n;
            }
            EXPECT_EQ(status, TOKEN_TRIE_ERROR_MEMORY) << token_trie_last_error() << " at allocation " << n;
        }
        ADD_FAILURE() << "no number of allocations is enough";
        return -1;
    }

    static inline const Tokens kPrompt = bytes("Do: ");
    static Handle open(const token_trie_stream_params & params = sized<token_trie_stream_params>(),
                       TinyKind kind = TinyKind::attention) {
        Handle out = open_tiny(tiny_context_params(), kind, params);
        EXPECT_EQ(prefill(out), TOKEN_TRIE_OK);
        return out;
    }
    static std::int32_t prefill(const Handle & stream) {
        return token_trie_stream_prefill(stream.get(), kPrompt.data(), kPrompt.size());
    }
    static Tokens sequence(const Handle & stream) {
        Tokens out(256);
        std::size_t n = 0;
        EXPECT_EQ(token_trie_stream_get_tokens(stream.get(), out.data(), out.size(), &n), TOKEN_TRIE_OK);
        out.resize(n);
        return out;
    }

    // The result of next, or its failure: -1 for no token.
    struct Next {
        std::int32_t status;
        Token token;
        std::string text;
    };
    static Next next(const Handle & stream, long n_allocations = -1) {
        auto token = sized<token_trie_token>();
        std::int32_t stop = 0;
        allowance = n_allocations;
        const std::int32_t status = token_trie_stream_next(stream.get(), &token, &stop);
        allowance = -1;
        return {status, token.id, status == TOKEN_TRIE_OK ? std::string(token.text, token.text_len) : ""};
    }

    // Wherever memory runs out in one of the next n tokens, that token comes when there is some again. Each time it is
    // another stream, as one that fails may keep what it has found.
    static void expect_nothing_lost(const std::function<Handle()> & make, int n) {
        std::vector<Next> expected;
        {
            const Handle usual = make();
            for (int i = 0; i < n; ++i) {
                expected.push_back(next(usual));
                ASSERT_GE(expected.back().token, 0);
            }
        }
        Tokens before = kPrompt;
        for (int at = 0; at < n; ++at) {
            std::int32_t status = TOKEN_TRIE_ERROR_MEMORY;
            for (long n_allocations = 0; status != TOKEN_TRIE_OK; ++n_allocations) {
                const Handle stream = make();
                for (int i = 0; i < at; ++i) {
                    next(stream);
                }
                Next given = next(stream, n_allocations);
                status = given.status;
                if (status != TOKEN_TRIE_OK) {
                    ASSERT_EQ(status, TOKEN_TRIE_ERROR_MEMORY) << token_trie_last_error();
                    ASSERT_EQ(sequence(stream), before) << "at allocation " << n_allocations;
                    given = next(stream);
                }
                ASSERT_EQ(given.token, expected[static_cast<std::size_t>(at)].token)
                    << "at allocation " << n_allocations;
                ASSERT_EQ(given.text, expected[static_cast<std::size_t>(at)].text);
            }
            before.push_back(expected[static_cast<std::size_t>(at)].token);
        }
    }
};

// To a std::string; what the host allocates is its own.
bool append_text(const token_trie_token * token, void * text) {
    const long left = std::exchange(allowance, -1);
    static_cast<std::string *>(text)->append(token->text, token->text_len);
    allowance = left;
    return true;
}

class MemoryPass : public MemoryStream {
   protected:
    void SetUp() override {
        if (!may_run_out_in_passes()) {
            GTEST_SKIP() << "where memory runs out in a pass, this llama.cpp ends the process";
        }
    }
};

TEST_F(MemoryPass, RunningOutLosesNoTokenThatPenaltiesLookBackOn) {
    auto params = sized<token_trie_stream_params>();
    auto sampling = sized<token_trie_sampling>();
    params.sampling = &sampling;
    sampling.penalty_last_n = 3;
    sampling.penalty_repeat = 2;
    sampling.penalty_freq = 1;
    expect_nothing_lost([&] { return open(params); }, 6);
}

TEST_F(MemoryPass, RunningOutLosesNoTokenThatAGrammarParses) {
    const auto make = [&] {
        Handle out = open();
        EXPECT_EQ(token_trie_stream_set_grammar(out.get(), "root ::= [a-z] \"=\" [0-9] [0-9]", nullptr), TOKEN_TRIE_OK);
        return out;
    };
    expect_nothing_lost(make, 4);
}

TEST_F(MemoryPass, RunningOutInAPrefillLeavesTheTextAndItsGrammarAsTheyWere) {
    std::int32_t status = TOKEN_TRIE_ERROR_MEMORY;
    for (long n_allocations = 0; status != TOKEN_TRIE_OK; ++n_allocations) {
        const Handle stream = open();
        ASSERT_EQ(token_trie_stream_set_grammar(stream.get(), "root ::= [a-z] \"=\"", nullptr), TOKEN_TRIE_OK);
        const std::string letter = next(stream).text;
        const Tokens before = sequence(stream);
        allowance = n_allocations;
        status = prefill(stream);
        allowance = -1;
        if (status == TOKEN_TRIE_OK) {
            EXPECT_EQ(next(stream).text, letter);
        } else {
            ASSERT_EQ(sequence(stream), before) << "at allocation " << n_allocations;
        }
        EXPECT_EQ(next(stream).text, "=") << "at allocation " << n_allocations;
    }
}

TEST_F(MemoryStream, RunningOutLosesNoTokenOfALongText) {
    const std::string payload = payload_of({{"A", {kSend}}});
    const auto make = [&] {
        Handle out = open(sized<token_trie_stream_params>(), TinyKind::long_word);
        EXPECT_EQ(set_trie(out.get(), payload), TOKEN_TRIE_OK);
        return out;
    };
    EXPECT_EQ(next(make()).text, "SEND_WITHOUT_DELAY");
    expect_nothing_lost(make, 1);
}

TEST_F(MemoryPass, RunningOutBeforeATokenIsDrawnCostsNoDraw) {
    auto params = sized<token_trie_stream_params>();
    auto sampling = sized<token_trie_sampling>();
    params.sampling = &sampling;
    sampling.penalty_last_n = 8;
    sampling.temperature = 1;
    sampling.penalty_repeat = 2;
    for (sampling.seed = 0; sampling.seed < 5; ++sampling.seed) {
        expect_nothing_lost([&] { return open(params); }, 2);
    }
}

// Answered beside another, so that no pass is left to make when its own is taken.
TEST_F(MemoryPass, AnAnswerOfABatchIsTakenWholeOrKept) {
    const llama_context_params like = tiny_context_params();
    const auto params = sized<token_trie_batch_params>();
    token_trie_batch * batch = token_trie_batch_open(tiny_model(), &like, &params);
    ASSERT_NE(batch, nullptr) << token_trie_last_error();
    const Tokens tokens = bytes("Do: ");
    const SetHandle set = set_of(payload_of({{"READ", {kRead}}, {"SEND", {kSend, kMail}}}));
    for (const int mode : {TOKEN_TRIE_QUERY_GREEDY, TOKEN_TRIE_QUERY_BEST, TOKEN_TRIE_QUERY_SCORES}) {
        const token_trie_query query = query_of(set, mode);
        std::array<std::int64_t, 2> tickets{};
        for (std::int64_t & ticket : tickets) {
            ASSERT_EQ(token_trie_batch_submit(batch, tokens.data(), tokens.size(), &query, &ticket), TOKEN_TRIE_OK);
        }
        token_trie_answer * other = nullptr;
        ASSERT_EQ(token_trie_batch_next(batch, tickets[1], -1, &other, nullptr), TOKEN_TRIE_OK);
        token_trie_answer_free(other);
        token_trie_answer * answer = nullptr;
        EXPECT_GT(fail_until_done([&] { return token_trie_batch_next(batch, tickets[0], 0, &answer, nullptr); }), 0);
        ASSERT_NE(answer, nullptr);
        auto figures = sized<token_trie_answer_info>();
        ASSERT_EQ(token_trie_answer_get_info(answer, &figures), TOKEN_TRIE_OK);
        EXPECT_EQ(figures.ticket, tickets[0]);
        EXPECT_EQ(figures.status, TOKEN_TRIE_OK);
        EXPECT_GE(figures.leaf, 0);
        token_trie_answer_free(answer);
    }
    token_trie_batch_close(batch);
}

TEST_F(MemoryPass, RunningOutInAStreamLosesNothing) {
    const Tokens prompt = bytes("Do: ");
    const std::string payload = payload_of({{"GET_A", bytes("GET_A")}, {"GET_B", bytes("GET_B")}});
    token_trie_stream * stream = open_tiny().release();
    EXPECT_GT(fail_until_done([&] { return token_trie_stream_prefill(stream, prompt.data(), prompt.size()); }), 0);
    EXPECT_GT(fail_until_done([&] { return set_trie(stream, payload); }), 10);
    std::string text;
    EXPECT_GT(fail_until_done([&] { return token_trie_stream_generate(stream, 32, append_text, &text); }), 0);
    auto state = sized<token_trie_stream_state>();
    EXPECT_EQ(token_trie_stream_get_state(stream, &state), TOKEN_TRIE_OK);
    EXPECT_EQ(text, state.leaf_name);
    EXPECT_EQ(state.n_branches, 1U);

    // The failure left nothing behind in the model's memory.
    double logprob = 0;
    ASSERT_EQ(token_trie_stream_prefill(stream, bytes("x").data(), 1), TOKEN_TRIE_OK);
    ASSERT_EQ(token_trie_stream_prefill(stream, prompt.data(), prompt.size()), TOKEN_TRIE_OK);
    const auto keep = [](const token_trie_token * token, void * user) {
        *static_cast<double *>(user) += static_cast<double>(token->logprob);
        return true;
    };
    ASSERT_EQ(token_trie_stream_generate(stream, 32, keep, &logprob), TOKEN_TRIE_OK);
    EXPECT_NEAR(logprob, state.logprob, 1e-4);
    token_trie_stream_close(stream);
}

TEST_F(MemoryStream, RunningOutInAListLosesNothing) {
    const Tokens prompt = bytes("Do: ");
    const std::string payload = payload_of({{"A", bytes("A")}, {"B", bytes("B")}, {"BC", bytes("BC")}});
    const Tokens comma = bytes(",");
    const Handle stream = open_tiny();
    auto params = sized<token_trie_params>();
    params.on_complete = TOKEN_TRIE_RESTART;
    params.unique = 1;
    params.min_items = 3;
    params.separator = comma.data();
    params.n_separator = 1;
    ASSERT_EQ(token_trie_stream_prefill(stream.get(), prompt.data(), prompt.size()), TOKEN_TRIE_OK);
    ASSERT_EQ(token_trie_stream_set_token_trie(stream.get(), set_of(payload).get(), &params), TOKEN_TRIE_OK);
    std::string text;
    EXPECT_GT(fail_until_done([&] { return token_trie_stream_generate(stream.get(), 32, append_text, &text); }), 0);
    std::set<std::string> items;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t end = std::min(text.find(',', at), text.size());
        items.insert(text.substr(at, end - at));
        at = end + 1;
    }
    EXPECT_EQ(items, std::set<std::string>({"A", "B", "BC"})) << text;
}

// A message that there is no memory for is "out of memory" too, and the call fails all the same.
TEST(Memory, RunningOutWhileRefusingIsARefusal) {
    const std::string payload = payload_of({{"a name that is too long to stand in a string itself", {7, -1}}});
    for (long n = 0; n < 200; ++n) {
        allowance = n;
        llama_sampler * sampler = llama_sampler_init_token_trie(nullptr, payload.c_str(), TOKEN_TRIE_GREEDY);
        const bool enough = allowance > 0;
        allowance = -1;
        EXPECT_EQ(sampler, nullptr);
        if (enough) {
            EXPECT_STREQ(token_trie_last_error(), "descriptors[0].leaves[0].tokens[1]: -1 is not a token id");
            return;
        }
    }
    FAIL() << "no number of allocations is enough";
}

}  // namespace
}  // namespace token_trie::test
