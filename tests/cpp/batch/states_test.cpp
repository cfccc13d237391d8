#include "batch_fixture.h"

// Prompts on a model with states, which begin alike: where they part, a copy of the state is kept.
namespace token_trie::test {
namespace {

class States : public BatchOn {
   protected:
    static Tokens text(char of, std::size_t n) { return bytes(std::string(n, of)); }
    static Tokens joined(Tokens a, const Tokens & b) {
        a.insert(a.end(), b.begin(), b.end());
        return a;
    }
    static std::size_t n_evaluated(const std::map<Ticket, Answer> & answers, std::size_t n_prompt) {
        std::size_t n = 0;
        for (const auto & [ticket, answer] : answers) {
            EXPECT_EQ(answer.info.status, TOKEN_TRIE_OK) << answer.message;
            n += n_prompt - answer.info.n_shared;
        }
        return n;
    }
    // Five questions about a state, of ten tokens each.
    static void ask_five(const std::shared_ptr<Batch> & batch, const Tokens & state) {
        for (char question = 'a'; question < 'f'; ++question) {
            submit(batch, request(joined(state, text(question, 10)), kActions, Query::Mode::best));
        }
    }
};

TEST_P(States, WhatQuestionsShareIsEvaluatedOnce) {
    const std::shared_ptr<Batch> batch = open(2048);
    ask_five(batch, text('x', 100));
    EXPECT_EQ(n_evaluated(take_all(*batch), 110), 100U + 5 * 10);
}

TEST_P(States, QuestionsAboutAnotherStateBeginWhereItPartsOnceThatIsKnown) {
    const std::shared_ptr<Batch> batch = open(2048);
    const Tokens same = text('x', 200);
    ask_five(batch, joined(same, text('1', 20)));
    take_all(*batch);
    ask_five(batch, joined(same, text('2', 20)));
    EXPECT_EQ(n_evaluated(take_all(*batch), 230), 220U + 5 * 10) << "a state ago, nobody knew where they would part";
    ask_five(batch, joined(same, text('3', 20)));
    EXPECT_EQ(n_evaluated(take_all(*batch), 230), 20U + 5 * 10);
}

TEST_P(States, OfALongStateMostIsThereForOneThatPartsNearItsEnd) {
    const std::shared_ptr<Batch> batch = open(4096);
    const Tokens same = text('x', 400);
    ask_five(batch, joined(same, text('1', 20)));
    take_all(*batch);
    ask_five(batch, joined(same, text('2', 20)));
    EXPECT_EQ(n_evaluated(take_all(*batch), 430), Policy::kTail + 50);
}

TEST_P(States, APromptAskedAgainHasAllButItsLastToken) {
    const std::shared_ptr<Batch> batch = open(2048);
    const Request asked = request(text('x', 100), kActions);
    for (const std::size_t n_shared : {0U, 0U, 99U, 99U}) {  // the second says that there are such prompts
        submit(batch, asked);
        EXPECT_EQ(take(*batch).info.n_shared, n_shared);
    }
}

TEST_P(States, PromptsAllAlikeAreEvaluatedOnce) {
    const std::shared_ptr<Batch> batch = open(2048);
    for (int i = 0; i < 8; ++i) {
        submit(batch, request(text('x', 100), kActions));
    }
    EXPECT_EQ(n_evaluated(take_all(*batch), 100), 99U + 8);
}

TEST_P(States, WhatPromptsShareStaysWhileOthersWaitForIds) {
    std::set<Tokens> many;  // answers whose trees take all ids that they are lent
    for (Token i = 0; i < 64; ++i) {
        many.insert({'a' + i / 16, 'a' + i / 4 % 4, 'a' + i % 4, 'z'});
    }
    for (std::uint32_t n_ids = 6; n_ids < 40; ++n_ids) {
        SCOPED_TRACE(n_ids);
        llama_context_params params = tiny_context_params(4096);
        params.n_batch = params.n_ubatch = n_ids;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO;  // without it, the cache is emptied now and then
        const auto batch = std::make_shared<Batch>(maker_of(params, GetParam()), Scheduler::Options{});
        const auto ask = [&](char last) {
            submit(batch, request(joined(text('x', 100), text(last, 10)), many, Query::Mode::scores));
        };
        for (const char first : {'a', 'b'}) {  // the second says where prompts part
            ask(first);
            take(*batch);
        }
        for (char last = 'A'; last <= 'Z'; ++last) {
            ask(last);
        }
        EXPECT_EQ(n_evaluated(take_all(*batch), 110), 26U * 10);
    }
}

TEST_P(States, WhatGoesOnBeginsAfterWhatWasWritten) {
    const std::shared_ptr<Batch> batch = open(2048);
    Tokens prompt = text('x', 100);
    for (int field = 0; field < 5; ++field) {
        Request next = request(prompt, {{kRead, kFile, kFile},
                                        {kRead, kFile, kMail},
                                        {kRead, kMail, kFile},
                                        {kRead, kMail, kMail},
                                        {kSend, kFile, kFile},
                                        {kSend, kFile, kMail},
                                        {kSend, kMail, kFile},
                                        {kSend, kMail, kMail}});
        next.goes_on = true;
        submit(batch, next);
        const Answer answer = take(*batch);
        EXPECT_EQ(answer.info.n_shared + (field == 0 ? 100 : 5), prompt.size()) << field;
        prompt = joined(joined(prompt, answer.tokens), bytes(" ok:"));
    }
}

TEST_P(States, HoweverFewIdsThereAreEachPromptIsAnsweredAsAlone) {
    std::mt19937 rng(4);
    Alone alone(GetParam());
    for (const std::size_t n_ids : {2U, 3U, 4U, 6U, 10U}) {
        SCOPED_TRACE(n_ids);
        const auto batch = std::make_shared<Batch>(maker_of(512, GetParam(), static_cast<std::uint32_t>(n_ids)),
                                                   Scheduler::Options{0, 32});
        std::map<Ticket, Request> asked;
        for (int i = 0; i < 40; ++i) {
            Request each = random_request(rng);
            each.goes_on = rng() % 4 == 0;
            asked.emplace(submit(batch, each), each);
        }
        const std::map<Ticket, Answer> answers = take_all(*batch);
        ASSERT_EQ(answers.size(), asked.size());
        for (const auto & [ticket, each] : asked) {
            SCOPED_TRACE(ticket);
            expect_same(answers.at(ticket), alone.decide(each), has_same_bounds(each));
        }
    }
}

TEST_P(States, TheHiddenStateOfAPromptIsItsOwnWhoeverIsBesideIt) {
    Request asked = request(text('x', 30), kActions);
    asked.with_hidden_state = true;
    const std::shared_ptr<Batch> alone = open();
    submit(alone, asked);
    const std::vector<float> expected = take(*alone).hidden_state;
    const std::shared_ptr<Batch> batch = open();
    std::mt19937 rng(6);
    for (int i = 0; i < 10; ++i) {
        submit(batch, random_request(rng));
    }
    const std::vector<float> found = take(*batch, submit(batch, asked)).hidden_state;
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], expected[i], kNear);
    }
}

TEST_P(States, NothingIsLostByCancelsAndErrorsOnTheWay) {
    std::mt19937 rng(5);
    Alone alone(GetParam());
    const std::shared_ptr<Batch> batch = open(512, {5, 16});
    for (int round = 0; round < 8; ++round) {
        std::map<Ticket, Request> asked;
        for (int i = 0; i < 30; ++i) {
            Request each = random_request(rng);
            if (each.is_text() && rng() % 2 == 0) {
                each.text.on_token = [](const Decoder::Step &) -> bool { throw Error(Status::context, "no more"); };
            }
            asked.emplace(submit(batch, each), each);
            Answer taken;
            if (rng() % 3 == 0 && batch->next(Batch::kAny, 0, taken) == Batch::Found::answer) {
                asked.erase(taken.info.ticket);
            }
            if (rng() % 4 == 0) {
                batch->cancel(std::next(asked.begin(), static_cast<std::ptrdiff_t>(rng() % asked.size()))->first);
            }
        }
        for (const auto & [ticket, answer] : take_all(*batch)) {
            const Request & each = asked.at(ticket);
            if (answer.info.status == TOKEN_TRIE_OK && each.text.on_token == nullptr) {
                expect_same(answer, alone.decide(each), has_same_bounds(each));
            }
        }
    }
    submit(batch, request(Tokens(508, kRead), kActions));
    EXPECT_EQ(take(*batch).info.status, TOKEN_TRIE_OK) << "no cell is lost";
}

INSTANTIATE_TEST_SUITE_P(Of, States, ::testing::Values(TinyKind::recurrent, TinyKind::hybrid), name_of_kind);

// Stops of a prompt, ascending and not too near each other.
TEST(StopsTest, AreWherePromptsPartOrShortlyBefore) {
    Stops stops(50);
    EXPECT_EQ(stops.add(60, 50, true), 0U) << "hardly more than is there";
    EXPECT_EQ(stops.add(100, 50, true), 100U);
    EXPECT_EQ(stops.add(110, 50, true), 100U);
    EXPECT_EQ(stops.add(95, 50, true), 95U) << "which serves both";
    EXPECT_EQ(stops.add(200, 50, false), 200U);
    EXPECT_EQ(stops.last(), 200U);
    EXPECT_EQ(stops.next()->n, 95U);
    EXPECT_EQ(stops.add(150, 50, true), 150U);
}

TEST(StopsTest, AreNotWhereThePromptIsPast) {
    Stops stops(0);
    EXPECT_EQ(stops.add(40, 0, true), 40U);
    EXPECT_EQ(stops.add(90, 0, true), 90U);
    EXPECT_EQ(stops.pass().n, 40U);
    EXPECT_EQ(stops.add(70, 80, true), 0U);
    EXPECT_EQ(stops.pass().n, 90U);
    EXPECT_EQ(stops.next(), nullptr);
    EXPECT_EQ(stops.last(), 90U);
    EXPECT_EQ(stops.add(100, 90, true), 0U);
}

TEST(StopsTest, AreFew) {
    Stops stops(0);
    for (std::size_t i = 1; i <= Policy::kMaxStops; ++i) {
        EXPECT_EQ(stops.add(100 * i, 0, true), 100 * i);
    }
    EXPECT_EQ(stops.add(250, 0, true), 200U);
    EXPECT_EQ(stops.add(50, 0, true), 0U);
}

}  // namespace
}  // namespace token_trie::test
