#include "batch_fixture.h"

#include <thread>

namespace token_trie::test {
namespace {

TEST_P(BatchOn, DecidesInCompanyWhatAStreamDecidesAlone) {
    Alone alone(GetParam());
    std::mt19937 rng(1);
    for (const Scheduler::Options options : {Scheduler::Options{}, {2, 0}, {5, 7}, {16, 64}}) {
        SCOPED_TRACE(::testing::Message() << options.n_ids << " ids, " << options.n_batch << " rows");
        const std::shared_ptr<Batch> batch = open(512, options);
        for (int round = 0; round < 3; ++round) {
            std::map<Ticket, Request> asked;
            for (int i = 0; i < 40; ++i) {
                const Request each = random_request(rng);
                asked.emplace(submit(batch, each), each);
            }
            const std::map<Ticket, Answer> answers = take_all(*batch);
            ASSERT_EQ(answers.size(), asked.size());
            for (const auto & [ticket, each] : asked) {
                SCOPED_TRACE(::testing::Message()
                             << "round " << round << ", ticket " << ticket << " mode " << int(each.mode) << " think "
                             << each.is_thinking() << " cur " << (each.cursor != nullptr) << " n_shared "
                             << answers.at(ticket).info.n_shared << " of " << each.prompt.size() << " passes "
                             << answers.at(ticket).info.n_passes << " end " << int(each.search.leaf_end));
                expect_same(answers.at(ticket), alone.decide(each), has_same_bounds(each));
            }
        }
    }
}

TEST_P(BatchOn, ASharedBeginningIsEvaluatedOnce) {
    const std::shared_ptr<Batch> batch = open();
    const Tokens beginning = bytes(std::string(200, 'x'));
    for (int i = 0; i < 30; ++i) {
        Tokens prompt = beginning;
        const Tokens rest = bytes("request " + std::to_string(i));
        prompt.insert(prompt.end(), rest.begin(), rest.end());
        submit(batch, request(prompt, kActions, Query::Mode::best));
    }
    std::size_t n_alone = 0;
    for (const auto & [ticket, answer] : take_all(*batch)) {
        n_alone += answer.info.n_shared < beginning.size() ? 1 : 0;
    }
    EXPECT_EQ(n_alone, 1U);
}

TEST_P(BatchOn, BeginningsThatOnlySomeShareAreEvaluatedOnceEach) {
    const std::shared_ptr<Batch> batch = open(2048);
    for (int i = 0; i < 48; ++i) {
        const char of = static_cast<char>('a' + i % 6);
        submit(batch, request(bytes(std::string(100, of) + " " + std::to_string(i)), kActions));
    }
    std::size_t n_alone = 0;
    for (const auto & [ticket, answer] : take_all(*batch)) {
        n_alone += answer.info.n_shared < 50 ? 1 : 0;  // nearly all of it is as good as all
    }
    EXPECT_EQ(n_alone, 6U);
}

TEST_P(BatchOn, AnAnswerWithoutAChoiceTakesNoPass) {
    const std::shared_ptr<Batch> batch = open();
    submit(batch, request(bytes("Do: "), {{kSend, kMail}}));
    const Answer taken = take(*batch);
    EXPECT_EQ(taken.tokens, (Tokens{kSend, kMail}));
    EXPECT_EQ(taken.info.n_evaluated, 0U);
}

TEST_P(BatchOn, AnAnswerWithoutAChoiceComesWithTheStateThatIsAskedFor) {
    const std::shared_ptr<Batch> batch = open();
    Request asked = request(bytes("Do: "), {{kSend, kMail}});
    asked.with_hidden_state = true;
    submit(batch, asked);
    const Answer taken = take(*batch);
    EXPECT_EQ(taken.tokens, (Tokens{kSend, kMail}));
    EXPECT_EQ(taken.hidden_state.size(), static_cast<std::size_t>(llama_model_n_embd(tiny_model(GetParam()))));
}

TEST_P(BatchOn, LabelsOfOneTokenTakeNothingBeyondThePrompt) {
    const std::shared_ptr<Batch> batch = open();
    for (const Query::Mode mode : {Query::Mode::greedy, Query::Mode::sampled, Query::Mode::best, Query::Mode::scores}) {
        submit(batch, request(bytes("Do: "), {{kRead}, {kSend}, {kMail}}, mode));
    }
    for (const auto & [ticket, answer] : take_all(*batch)) {
        EXPECT_EQ(answer.info.status, TOKEN_TRIE_OK);
        EXPECT_EQ(answer.info.n_evaluated, 0U);
    }
}

TEST_F(BatchTest, WhatCannotBeAnsweredIsRefusedAloneAndAtOnce) {
    const std::shared_ptr<Batch> batch = open(256);
    const Ticket good = submit(batch, request(bytes("Do: "), kActions));
    const auto refusal = [&](Request asked) { return status_of([&] { submit(batch, asked); }); };
    EXPECT_EQ(refusal(request({}, kActions)), Status::argument);
    EXPECT_EQ(refusal(request({kTinyVocab}, kActions)), Status::vocab);
    EXPECT_EQ(refusal(request({-1}, kActions)), Status::vocab);
    EXPECT_EQ(refusal(request(Tokens(255, kRead), kActions)), Status::context);
    Request endless = request(bytes("Do: "), kActions);
    endless.cursor = shared_cursor_of(kActions, {OnComplete::restart, {kTinyEnd}, {}, 0});
    EXPECT_EQ(refusal(endless), Status::argument);
    Request cold = request(bytes("Do: "), kActions, Query::Mode::sampled);
    cold.sampling.temperature = -1;
    EXPECT_EQ(refusal(cold), Status::argument);
    Request none = request(bytes("Do: "), kActions, Query::Mode::best);
    none.search.n_best = 0;
    EXPECT_EQ(refusal(none), Status::argument);
    EXPECT_EQ(take(*batch, good).info.status, TOKEN_TRIE_OK);
    EXPECT_EQ(take(*batch).info.ticket, 0);
}

TEST_P(BatchOn, APromptThatFillsTheContextIsAnswered) {
    const std::shared_ptr<Batch> batch = open(256);
    for (int i = 0; i < 3; ++i) {
        submit(batch, request(bytes(std::string(253, static_cast<char>('a' + i))), kActions, Query::Mode::best));
        submit(batch, request(bytes("Do: "), kActions));
    }
    for (const auto & [ticket, answer] : take_all(*batch)) {
        EXPECT_EQ(answer.info.status, TOKEN_TRIE_OK) << answer.message;
    }
}

TEST_P(BatchOn, ACancelledPromptSaysSoAndTheOthersAreAnswered) {
    Alone alone(GetParam());
    std::mt19937 rng(2);
    const std::shared_ptr<Batch> batch = open(512, {8, 32});
    std::map<Ticket, Request> asked;
    std::set<Ticket> cancelled;
    std::map<Ticket, Answer> answers;
    for (int i = 0; i < 60; ++i) {
        const Request each = random_request(rng);
        const Ticket ticket = submit(batch, each);
        asked.emplace(ticket, each);
        if (rng() % 3 == 0) {
            cancelled.insert(ticket);
        }
        for (const Ticket other : cancelled) {
            if (rng() % 4 == 0) {
                batch->cancel(other);
            }
        }
        Answer taken;
        if (batch->next(Batch::kAny, 0, taken) == Batch::Found::answer) {
            answers.emplace(taken.info.ticket, taken);
        }
    }
    for (const Ticket ticket : cancelled) {
        batch->cancel(ticket);
    }
    for (auto & [ticket, answer] : take_all(*batch)) {
        answers.emplace(ticket, answer);
    }
    ASSERT_EQ(answers.size(), asked.size());
    for (const auto & [ticket, answer] : answers) {
        if (answer.info.status == TOKEN_TRIE_ERROR_CANCELLED) {
            EXPECT_EQ(cancelled.count(ticket), 1U);
        } else {
            expect_same(answer, alone.decide(asked.at(ticket)), has_same_bounds(asked.at(ticket)));
        }
    }
    batch->cancel(1);  // a ticket that has ended
    EXPECT_EQ(take(*batch).info.ticket, 0);
}

TEST_P(BatchOn, EachOfManyThreadsTakesItsOwnAnswers) {
    constexpr std::size_t n_threads = 6;
    constexpr std::size_t n_each = 8;
    std::mt19937 rng(3);
    Alone alone(GetParam());
    std::vector<Request> asked;
    std::vector<Answer> expected;
    for (std::size_t i = 0; i < n_threads * n_each; ++i) {
        asked.push_back(random_request(rng));
        expected.push_back(alone.decide(asked.back()));
    }
    const std::shared_ptr<Batch> batch = open(512, {8, 64});
    std::vector<Answer> answers(asked.size());
    std::vector<std::thread> threads;
    threads.reserve(n_threads);
    for (std::size_t t = 0; t < n_threads; ++t) {
        threads.emplace_back([&, t] {
            for (std::size_t i = t * n_each; i < (t + 1) * n_each; ++i) {
                answers[i] = take(*batch, submit(batch, asked[i]));
            }
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    for (std::size_t i = 0; i < asked.size(); ++i) {
        expect_same(answers[i], expected[i], has_same_bounds(asked[i]));
    }
}

TEST_P(BatchOn, ClosingEndsWhoWaitsAndWhoSubmits) {
    for (int round = 0; round < 20; ++round) {
        const std::shared_ptr<Batch> batch = open(512, {4, 16});
        std::vector<std::thread> threads;
        threads.reserve(3);
        for (unsigned t = 0; t < 3; ++t) {
            threads.emplace_back([&, t] {
                std::mt19937 rng(t);
                for (;;) {
                    const Status status = status_of([&] { take(*batch, submit(batch, random_request(rng))); });
                    if (status != Status::ok) {
                        EXPECT_TRUE(status == Status::cancelled || status == Status::argument);
                        return;
                    }
                }
            });
        }
        threads.emplace_back([&] {
            for (Ticket ticket = 1; ticket < 50; ++ticket) {
                batch->cancel(ticket);
                std::this_thread::yield();
            }
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(round));
        std::thread other([&] { batch->close(); });
        batch->close();
        other.join();
        for (std::thread & thread : threads) {
            thread.join();
        }
        EXPECT_EQ(status_of([&] { submit(batch, request(bytes("Do: "), kActions)); }), Status::argument);
    }
}

TEST_F(BatchTest, AWindowThatSlidesIsShared) {
    const auto batch = std::make_shared<Batch>(maker_of(512, TinyKind::sliding_window), Scheduler::Options{});
    Stream alone(std::make_unique<Sequence>(maker_of(512, TinyKind::sliding_window)), {});
    std::map<Ticket, Request> asked;
    for (int i = 0; i < 20; ++i) {
        const Request each = request(bytes(std::string(30, 'x') + std::to_string(i)), kActions, Query::Mode::scores);
        asked.emplace(submit(batch, each), each);
    }
    for (const auto & [ticket, answer] : take_all(*batch)) {
        alone.prefill(asked.at(ticket).prompt);
        const std::vector<double> expected = alone.answer(asked.at(ticket)).logprobs;
        for (std::size_t i = 0; i < kActions.size(); ++i) {
            EXPECT_NEAR(answer.logprobs[i], expected[i], 1e-3);
        }
    }
}

// Cells come to lie elsewhere, so that llama.cpp adds in another order.
TEST_P(BatchOn, AContextThatGrowsKeepsWhatPromptsBeginWithAndAnswersAsOneOfFullSize) {
    std::mt19937 rng(8);
    const auto large = open(4096);
    Scheduler::Options options;
    options.n_first = 256;
    const auto growing = open(4096, options);
    for (int round = 0; round < 6; ++round) {
        std::map<Ticket, Request> asked;
        for (int i = 0; i < 12; ++i) {
            const Request each = random_request(rng);
            const Ticket ticket = submit(large, each);
            ASSERT_EQ(submit(growing, each), ticket);
            asked.emplace(ticket, each);
        }
        const std::map<Ticket, Answer> expected = take_all(*large);
        for (const auto & [ticket, answer] : take_all(*growing)) {
            SCOPED_TRACE(ticket);
            EXPECT_EQ(answer.tokens, expected.at(ticket).tokens);
            expect_same(answer, expected.at(ticket));
            EXPECT_EQ(answer.info.n_shared, expected.at(ticket).info.n_shared);
            EXPECT_EQ(answer.info.n_evaluated, expected.at(ticket).info.n_evaluated);
        }
    }
}

TEST_P(BatchOn, AContextGrowsUnderManyThreads) {
    Scheduler::Options options;
    options.n_first = 256;
    const auto batch = open(2048, options);
    std::vector<std::vector<std::pair<Request, Answer>>> answered(4);
    std::vector<std::thread> threads;
    threads.reserve(answered.size());
    for (auto & of_thread : answered) {
        threads.emplace_back([&batch, &of_thread, seed = static_cast<unsigned>(threads.size())] {
            std::mt19937 rng(seed);
            for (int i = 0; i < 8; ++i) {
                const Request each = random_request(rng);
                of_thread.emplace_back(each, take(*batch, submit(batch, each)));
            }
        });
    }
    for (std::thread & each : threads) {
        each.join();
    }
    Alone alone(GetParam());
    for (const auto & of_thread : answered) {
        for (const auto & [each, answer] : of_thread) {
            expect_same(answer, alone.decide(each), has_same_bounds(each));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Memory, BatchOn, kinds_of_memory(), name_of_kind);

}  // namespace
}  // namespace token_trie::test
