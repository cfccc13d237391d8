#include "allowance.h"
#include "batch_fixture.h"

#include <thread>

// Memory runs out at the first, second, third ... allocation of a batch's, in its submits as in its passes.
namespace token_trie::test {
namespace {

class MemoryBatch : public BatchTest {
   protected:
    void SetUp() override {
        if (!may_run_out_in_passes()) {
            GTEST_SKIP() << "where memory runs out in a pass, this llama.cpp ends the process";
        }
    }

    // Whether it came to its end with so many allocations.
    static bool succeeds(long n_allocations, const std::function<void()> & work) {
        allowance = n_allocations;
        const Status status = status_of([&] {
            try {
                work();
            } catch (const std::bad_alloc &) {
                throw_memory();
            }
        });
        allowance = -1;
        EXPECT_TRUE(status == Status::ok || status == Status::memory);
        return status == Status::ok;
    }

    static std::vector<Request> requests() {
        std::vector<Request> out;
        for (const Query::Mode mode : {Query::Mode::greedy, Query::Mode::best, Query::Mode::scores}) {
            out.push_back(request(bytes("a beginning that is shared: " + std::to_string(out.size())), kActions, mode));
        }
        out.push_back(text_behind(bytes("a beginning that is shared: text"), 4));
        out.back().text.stop_strings = {"zz"};
        return out;
    }

   private:
    [[noreturn]] static void throw_memory() {
        allowance = -1;
        throw Error(Status::memory, "out of memory");
    }
};

TEST_F(MemoryBatch, EachPromptHasOneAnswerWhereverMemoryRunsOut) {
    const std::shared_ptr<Batch> batch = open(256, {4, 16});
    const std::vector<Request> all = requests();
    bool ran_out = true;
    for (long n = 0; ran_out; ++n) {
        SCOPED_TRACE("allocation " + std::to_string(n));
        ASSERT_LT(n, 100000) << "no number of allocations is enough";
        ran_out = false;
        std::set<Ticket> asked;
        for (const Request & each : all) {
            asked.insert(submit(batch, each));
        }
        Answer taken;
        taken.message.reserve(100);
        long left = n;
        for (bool is_over = false; !is_over;) {
            const bool done = succeeds(left, [&] {
                is_over = batch->next(Batch::kAny, -1, taken) == Batch::Found::none;
                left = allowance;
            });
            ran_out = ran_out || !done || left == 0;
            left = done && left != 0 ? left : -1;
            if (done && !is_over) {
                ASSERT_EQ(asked.erase(taken.info.ticket), 1U);
                const auto status = static_cast<Status>(taken.info.status);
                ASSERT_TRUE(status == Status::ok || status == Status::memory || status == Status::context)
                    << taken.message;
                ASSERT_EQ(status == Status::ok, taken.message.empty());
            }
        }
        ASSERT_TRUE(asked.empty());
    }
    Alone alone;
    for (const Request & each : all) {
        const Ticket ticket = submit(batch, each);
        expect_same(take(*batch, ticket), alone.decide(each));
    }
}

// Requests that do not fit beside a prompt that is kept, whose context is to grow.
TEST_F(MemoryBatch, WhereverMemoryRunsOutAsItGrowsEachPromptHasOneAnswerAndTheNextAreRight) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);  // a context that goes logs, too
    constexpr long step = 37;
    Scheduler::Options options{8, 32};
    options.n_first = 256;
    const Request kept = request(bytes(std::string(180, 'x')), kActions, Query::Mode::scores);
    const std::vector<Request> others = {
        request(bytes(std::string(180, 'x') + " and more"), kActions, Query::Mode::scores),
        request(bytes(std::string(300, 'y')), kActions, Query::Mode::best),
        text_behind(bytes(std::string(200, 'z')), 4)};
    for (const TinyKind kind : {TinyKind::attention, TinyKind::hybrid}) {
        Alone alone(kind);
        const Answer expected = alone.decide(kept);
        std::set<Status> statuses;
        bool ran_out = true;
        for (long n = 0; ran_out; n += step) {
            SCOPED_TRACE("allocation " + std::to_string(n));
            ASSERT_LT(n, 100000) << "no number of allocations is enough";
            const std::shared_ptr<Batch> batch = open(2048, options, kind);
            submit(batch, kept);
            expect_same(take(*batch), expected);
            std::set<Ticket> asked;
            for (const Request & each : others) {
                asked.insert(submit(batch, each));
            }
            Answer taken;
            taken.message.reserve(100);
            ran_out = !succeeds(n, [&] { batch->next(Batch::kAny, -1, taken); });
            std::map<Ticket, Answer> answers = take_all(*batch);
            if (!ran_out) {
                answers.emplace(taken.info.ticket, taken);
            }
            for (const auto & [ticket, answer] : answers) {
                ASSERT_EQ(asked.erase(ticket), 1U);
                statuses.insert(static_cast<Status>(answer.info.status));
                ran_out = ran_out || answer.info.status != TOKEN_TRIE_OK;
            }
            ASSERT_TRUE(asked.empty());
            submit(batch, kept);
            expect_same(take(*batch), expected);
        }
        EXPECT_EQ(statuses, (std::set<Status>{Status::ok, Status::memory}));
    }
}

TEST_F(MemoryBatch, WhatIsNotSubmittedForWantOfMemoryIsNotOut) {
    const std::shared_ptr<Batch> batch = open(256);
    for (const Request & each : requests()) {
        Ticket ticket = 0;
        long n = 0;
        while (!succeeds(n, [&] { ticket = submit(batch, each); })) {
            ASSERT_EQ(ticket, 0);
            ASSERT_LT(++n, 10000);
        }
        EXPECT_EQ(take_all(*batch).size(), 1U);
    }
}

TEST_F(MemoryBatch, WhoseMemoryRunsOutLeavesNobodyWaiting) {
    const std::vector<Request> all = requests();
    for (long n = 0; n < 300; n += 3) {
        SCOPED_TRACE("allocation " + std::to_string(n));
        const std::shared_ptr<Batch> batch = open(256, {4, 16});
        const Ticket its = submit(batch, all[1]);
        std::vector<std::thread> others;
        for (std::size_t i = 0; i < 2; ++i) {
            const Ticket ticket = submit(batch, all[2 * i]);
            others.emplace_back([&batch, ticket] { EXPECT_EQ(take(*batch, ticket).info.ticket, ticket); });
        }
        Answer taken;
        const bool done = succeeds(n, [&] { batch->next(its, -1, taken); });
        for (std::thread & other : others) {
            other.join();
        }
        EXPECT_EQ(done ? its : take(*batch, its).info.ticket, its);
        batch->close();
    }
}

TEST_F(MemoryBatch, ABatchIsOpenedOrNotAndItsCloseNeedsNoMemory) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);  // which needs no memory
    llama_model * const model = tiny_model();
    const llama_context_params context = tiny_context_params();
    const Tokens tokens = bytes("text");
    token_trie_batch * batch = nullptr;
    const auto open_it = [&] {
        const auto params = sized<token_trie_batch_params>();
        batch = token_trie_batch_open(model, &context, &params);
        if (batch == nullptr) {
            throw Error(static_cast<Status>(token_trie_last_status()), "not opened");
        }
    };
    for (long n = 0; !succeeds(n, open_it); ++n) {
        ASSERT_LT(n, 10000);
    }
    auto prompt = sized<token_trie_query>();
    prompt.mode = TOKEN_TRIE_QUERY_TEXT;
    prompt.max_tokens = 2;
    std::int64_t ticket = 0;
    EXPECT_EQ(token_trie_batch_submit(batch, tokens.data(), tokens.size(), &prompt, &ticket), TOKEN_TRIE_OK);
    EXPECT_TRUE(succeeds(0, [batch] { token_trie_batch_close(batch); }));
    EXPECT_EQ(token_trie_batch_submit(batch, tokens.data(), tokens.size(), &prompt, &ticket),
              TOKEN_TRIE_ERROR_ARGUMENT);
}

}  // namespace
}  // namespace token_trie::test
