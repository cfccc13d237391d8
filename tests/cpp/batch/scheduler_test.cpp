#include "batch/scheduler.h"

#include "batch_fixture.h"

namespace token_trie::test {
namespace {

class SchedulerTest : public WithTinyModel {
   protected:
    explicit SchedulerTest(const Scheduler::Options & options = {4, 16})
        : scheduler_(maker_of(512), options, [this](Ticket ticket, Answer answer) {
              EXPECT_TRUE(answers_.emplace(ticket, std::move(answer)).second) << ticket << " has two answers";
          }) {}

    void add(Ticket ticket, Request asked) {
        Scheduler::Requests some;
        some.emplace(ticket, std::move(asked));
        scheduler_.add(some);
        EXPECT_TRUE(some.empty());
    }
    // Until so many are answered.
    void pass_until(std::size_t n) {
        for (int i = 0; answers_.size() < n; ++i) {
            ASSERT_LT(i, 1000);
            scheduler_.pass();
        }
    }

    std::map<Ticket, Answer> answers_;
    Scheduler scheduler_;
};

class ManyIdsTest : public SchedulerTest {
   protected:
    ManyIdsTest() : SchedulerTest({16, 64}) {}
};

// Rows of a pass: 32. Of long prompts, which have more than 16 tokens: 8, and 2 beside others.
class ChunksTest : public SchedulerTest {
   protected:
    ChunksTest() : SchedulerTest({8, 32, 16}) {}

    // None begins as another does.
    void add_long(Ticket ticket, std::size_t n) {
        add(ticket, request(bytes(prompt(ticket) + std::string(n, 'x')), kActions));
    }
    void add_short(Ticket ticket) { add(ticket, request(bytes(prompt(ticket)), kActions)); }
    static std::string prompt(Ticket ticket) { return static_cast<char>('0' + ticket % 70) + std::to_string(ticket); }
    // Passes until a request is answered.
    int passes_until(Ticket ticket) {
        int n = 0;
        for (; answers_.count(ticket) == 0 && n < 1000; ++n) {
            scheduler_.pass();
        }
        return n;
    }
};

TEST_F(SchedulerTest, EachRequestHasTheAnswerThatPlainSequencesGive) {
    std::mt19937 rng(12);
    PlainModel plain;
    std::map<Ticket, Request> asked;
    for (Ticket ticket = 1; ticket <= 12; ++ticket) {
        Request each = request(bytes(std::string(ticket % 3 == 0 ? 40 : 5, 'x') + std::to_string(ticket)),
                               random_texts(rng, 1 + rng() % 10, 3, 6), Query::Mode::scores);
        each.search.leaf_end = LeafEnd::any;
        asked[ticket] = each;
        add(ticket, each);
    }
    pass_until(asked.size());
    for (const auto & [ticket, each] : asked) {
        const Answer & answer = answers_.at(ticket);
        ASSERT_EQ(answer.info.status, TOKEN_TRIE_OK) << answer.message;
        const Trie & trie = each.cursor->trie();
        for (LeafId leaf = 0; leaf < trie.n_leaves(); ++leaf) {
            EXPECT_NEAR(answer.logprobs[leaf], plain.logprob(each.prompt, trie.sequence(leaf)), kNear);
        }
    }
}

TEST_F(SchedulerTest, WhatPromptsBeginWithAlikeIsEvaluatedOnce) {
    const std::string beginning(40, 'x');
    for (Ticket ticket = 1; ticket <= 5; ++ticket) {
        add(ticket, request(bytes(beginning + std::to_string(ticket)), kActions));
    }
    pass_until(5);
    const auto n_like_it = std::count_if(answers_.begin(), answers_.end(), [&](const auto & each) {
        return each.second.info.n_shared + 16 > beginning.size();  // nobody waits for fewer
    });
    EXPECT_EQ(n_like_it, 4);
    add(6, request(bytes(beginning + "6"), kActions));  // which was evaluated long ago
    pass_until(6);
    EXPECT_EQ(answers_.at(6).info.n_shared, beginning.size());
}

TEST_F(ManyIdsTest, WhatIsRetainedGoesWhenOthersHaveHadManyRows) {
    const Tokens prompt = bytes(std::string(60, 'x'));
    Ticket ticket = 0;
    const auto ask = [&](const Tokens & tokens) {
        add(++ticket, request(tokens, kActions));
        pass_until(static_cast<std::size_t>(ticket));
        return answers_.at(ticket).info.n_shared;
    };
    const auto ask_others = [&](int n) {
        for (int i = 0; i < n; ++i) {
            ask(bytes(std::to_string(ticket) + std::string(40, 'o')));
        }
    };
    ask(prompt);
    EXPECT_EQ(ask(prompt), prompt.size() - 1);
    ask_others(3);
    EXPECT_EQ(ask(prompt), prompt.size() - 1);
    ask_others(40);
    EXPECT_EQ(ask(prompt), 0U);
}

TEST_F(ManyIdsTest, APromptAfterManyCellsThatNothingUsesIsEvaluatedAnewOnce) {
    const Tokens prompt = bytes(std::string(60, 'x'));
    Ticket ticket = 0;
    while (ticket < 8) {
        ++ticket;
        add(ticket, request(bytes(std::to_string(ticket) + std::string(50, 'o')), kActions));
    }
    add(++ticket, request(prompt, kActions));
    pass_until(static_cast<std::size_t>(ticket));
    std::size_t n_anew = 0;
    for (int i = 0; i < 200; ++i) {
        add(++ticket, request(prompt, kActions));
        pass_until(static_cast<std::size_t>(ticket));
        n_anew += answers_.at(ticket).info.n_shared == 0 ? 1 : 0;
    }
    EXPECT_EQ(n_anew, 1U);
}

TEST_F(SchedulerTest, WhoIsCancelledIsToldSoAndNobodyElse) {
    for (Ticket ticket = 1; ticket <= 6; ++ticket) {
        add(ticket, request(bytes("Do it " + std::to_string(ticket)), kActions));
    }
    scheduler_.cancel(6);  // which waits
    scheduler_.pass();
    scheduler_.cancel(1);
    scheduler_.cancel(7);  // which nobody knows
    pass_until(6);
    for (const auto & [ticket, answer] : answers_) {
        EXPECT_EQ(answer.info.status, ticket == 1 || ticket == 6 ? TOKEN_TRIE_ERROR_CANCELLED : TOKEN_TRIE_OK)
            << ticket;
    }
}

TEST_F(SchedulerTest, WhoGoesOnBehindATextFindsItInTheCache) {
    add(1, text_behind(bytes("Do: "), 5));
    pass_until(1);
    Tokens prompt = bytes("Do: ");
    prompt.insert(prompt.end(), answers_.at(1).tokens.begin(), answers_.at(1).tokens.end());
    prompt.push_back(kSend);
    add(2, request(prompt, kActions));
    pass_until(2);
    EXPECT_EQ(answers_.at(2).info.n_shared, prompt.size() - 2);  // the text's last token was not evaluated
}

TEST_F(ManyIdsTest, ATextWaitsForOthersBeforeItTakesTheCellsOfOneThatGoesOn) {
    const auto prompt = [](Ticket ticket, const std::string & end) {
        return bytes(std::string(80, static_cast<char>('a' + ticket)) + end);
    };
    for (Ticket ticket = 1; ticket <= 3; ++ticket) {
        Request each = request(prompt(ticket, ""), kActions);
        each.goes_on = true;
        add(ticket, each);
    }
    pass_until(3);
    add(4, text_behind(prompt(1, "!"), 150));
    add(5, text_behind(prompt(2, "!"), 150));  // for both there are not cells enough beside the third
    add(6, request(prompt(3, "!"), kActions));
    pass_until(6);
    EXPECT_EQ(answers_.at(6).info.n_shared, 80U);
    EXPECT_EQ(answers_.at(5).info.status, TOKEN_TRIE_OK);
}

TEST_F(SchedulerTest, WithNothingToDoAPassIsNone) {
    scheduler_.pass();
    EXPECT_TRUE(answers_.empty());
}

TEST_F(ChunksTest, AShortPromptTakesAsManyPassesBesideLongOnesAsAlone) {
    add_short(1);
    const int n_alone = passes_until(1);
    for (Ticket ticket = 2; ticket < 6; ++ticket) {
        add_long(ticket, 80);
    }
    scheduler_.pass();
    add_short(6);
    EXPECT_EQ(passes_until(6), n_alone);
    EXPECT_EQ(answers_.size(), 2);
}

TEST_F(ChunksTest, LongPromptsThatWaitForCellsLetShortOnesPass) {
    for (Ticket ticket = 1; ticket < 6; ++ticket) {
        add_long(ticket, 200);  // two of them have room
    }
    for (int i = 0; i < 10; ++i) {
        scheduler_.pass();
    }
    add_short(6);
    EXPECT_LT(passes_until(6), 10);
    EXPECT_EQ(answers_.size(), 1);
    pass_until(6);
    for (const auto & [ticket, answer] : answers_) {
        EXPECT_EQ(answer.info.status, TOKEN_TRIE_OK) << ticket << ": " << answer.message;
    }
}

TEST_F(ChunksTest, LongPromptsComeToTheirEndHoweverManyShortOnesThereAre) {
    constexpr Ticket kLong = 4;
    for (Ticket ticket = 1; ticket <= kLong; ++ticket) {
        add_long(ticket, 200);
    }
    const auto n_done = [&] {
        return std::count_if(answers_.begin(), answers_.end(), [](const auto & each) { return each.first <= kLong; });
    };
    Ticket next = kLong;
    for (int i = 0; n_done() < kLong; ++i) {
        ASSERT_LT(i, 600) << "2 rows of them a pass, at least";
        add_short(++next);
        scheduler_.pass();
    }
}

TEST_F(ChunksTest, NoPromptTakesWhatIsReservedForShortOnes) {
    EXPECT_EQ(scheduler_.n_ctx_max(), 448);
    add_long(1, 440);
    scheduler_.pass();
    add_short(2);
    EXPECT_LT(passes_until(2), 10);
    EXPECT_EQ(answers_.count(1), 0);
}

}  // namespace
}  // namespace token_trie::test
