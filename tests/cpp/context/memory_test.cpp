#include "abi_stream_fixture.h"
#include "allowance.h"

// Memory runs out at the first, second, third ... allocation of one call on a stream.
namespace token_trie::test {
namespace {

class MemoryCall : public AbiStream {
   protected:
    void SetUp() override {
        if (!may_run_out_in_passes()) {
            GTEST_SKIP() << "where memory runs out in a pass, this llama.cpp ends the process";
        }
    }

    // With a grammar and penalties, behind some tokens of text.
    static Handle make() {
        auto params = sized<token_trie_stream_params>();
        auto sampling = sized<token_trie_sampling>();
        params.sampling = &sampling;
        sampling.penalty_last_n = 8;
        sampling.penalty_repeat = 1.5F;
        Handle out = open(params);
        EXPECT_EQ(token_trie_stream_set_grammar(out.get(), "root ::= [a-z] \"SEND_MAIL\"+", nullptr), TOKEN_TRIE_OK);
        EXPECT_EQ(text_of(out, 2).size(), 2U);
        return out;
    }
    static Tokens tokens_of(const Handle & stream) {
        Tokens out(256);
        std::size_t n = 0;
        EXPECT_EQ(token_trie_stream_get_tokens(stream.get(), out.data(), out.size(), &n), TOKEN_TRIE_OK);
        out.resize(n);
        return out;
    }
    // check(stream, whether it failed) behind call(stream), which fails at each of its allocations.
    static void fail_at_each(const std::function<bool(const Handle &)> & call,
                             const std::function<void(const Handle &, bool)> & check) {
        bool has_failed = true;
        for (long n = 0; has_failed; ++n) {
            SCOPED_TRACE("allocation " + std::to_string(n));
            ASSERT_LT(n, 20000) << "no number of allocations is enough";
            const Handle stream = make();
            allowance = n;
            has_failed = !call(stream);
            allowance = -1;
            if (has_failed) {
                ASSERT_EQ(token_trie_last_status(), TOKEN_TRIE_ERROR_MEMORY) << token_trie_last_error();
            }
            check(stream, has_failed);
            if (HasFailure()) {
                return;
            }
        }
    }
};

TEST_F(MemoryCall, AFailedForkLeavesNothingBehind) {
    const std::string rest = text_of(make(), 6);
    Handle fork;
    const auto call = [&](const Handle & stream) {
        fork.reset(token_trie_stream_fork(stream.get()));
        return fork != nullptr;
    };
    fail_at_each(call, [&](const Handle & stream, bool has_failed) {
        EXPECT_EQ(text_of(stream, 6), rest);
        if (has_failed) {
            const Tokens other(state_of(stream).n_context_max, 'x');
            EXPECT_EQ(prefill(stream, other), TOKEN_TRIE_OK) << token_trie_last_error();
            EXPECT_EQ(state_of(stream).n_context_max, other.size());
        } else {
            EXPECT_EQ(text_of(fork, 6), rest);
        }
        fork.reset();
    });
}

TEST_F(MemoryCall, AFailedAppendChangesNothing) {
    const std::string rest = text_of(make(), 6);
    const Tokens before = tokens_of(make());
    const Tokens more = bytes("a piece of text that needs memory of its own");
    const auto call = [&](const Handle & stream) {
        return token_trie_stream_splice(stream.get(), 3, more.data(), more.size()) == TOKEN_TRIE_OK;
    };
    fail_at_each(call, [&](const Handle & stream, bool has_failed) {
        if (has_failed) {
            EXPECT_EQ(tokens_of(stream), before);
            EXPECT_EQ(text_of(stream, 6), rest);
        } else {
            EXPECT_EQ(tokens_of(stream).size(), 3 + more.size());
        }
    });
}

TEST_F(MemoryCall, AFailedGenerationUntilAStopStringHoldsWhatWasPassedOn) {
    const Tokens before = tokens_of(make());
    const char * const stop = "AIL";
    struct Told {
        Tokens tokens = Tokens(64);
        std::size_t n = 0;
    } told;
    const auto listen = [](const token_trie_token * token, void * user) {
        auto & all = *static_cast<Told *>(user);
        all.tokens[all.n++] = token->id;
        return true;
    };
    const auto call = [&](const Handle & stream) {
        told.n = 0;
        return token_trie_stream_generate_until(stream.get(), 24, &stop, 1, listen, &told, nullptr) == TOKEN_TRIE_OK;
    };
    fail_at_each(call, [&](const Handle & stream, bool has_failed) {
        if (has_failed) {
            Tokens expected = before;
            expected.insert(expected.end(), told.tokens.begin(),
                            told.tokens.begin() + static_cast<std::ptrdiff_t>(told.n));
            EXPECT_EQ(tokens_of(stream), expected);
        } else {
            EXPECT_EQ(state_of(stream).stop, TOKEN_TRIE_STOP_STRING);
        }
    });
}

}  // namespace
}  // namespace token_trie::test
