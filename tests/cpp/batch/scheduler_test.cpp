#include "batch/scheduler.h"

#include "batch_fixture.h"

namespace token_trie::test {
namespace {

class SchedulerTest : public WithTinyModel {
   protected:
    SchedulerTest() : scheduler_(maker_of(512), {4, 16}) {}

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
            scheduler_.pass(on_answer_);
        }
    }

    Scheduler scheduler_;
    std::map<Ticket, Answer> answers_;
    const Scheduler::OnAnswer on_answer_ = [this](Ticket ticket, Answer answer) {
        EXPECT_TRUE(answers_.emplace(ticket, std::move(answer)).second) << ticket << " has two answers";
    };
};

TEST_F(SchedulerTest, EachRequestHasTheAnswerThatPlainSequencesGive) {
    std::mt19937 rng(12);
    PlainModel plain;
    std::map<Ticket, Request> asked;
    for (Ticket ticket = 1; ticket <= 12; ++ticket) {
        Request each = request(bytes(std::string(ticket % 3 == 0 ? 40 : 5, 'x') + std::to_string(ticket)),
                               random_texts(rng, 1 + rng() % 10, 3, 6), Way::scores);
        each.search.leaf_end = LeafEnd::any;
        asked[ticket] = each;
        add(ticket, each);
    }
    pass_until(asked.size());
    for (const auto & [ticket, each] : asked) {
        const Answer & answer = answers_.at(ticket);
        ASSERT_EQ(answer.status, Status::ok) << answer.message;
        const Trie & trie = each.cursor->trie();
        for (LeafId leaf = 0; leaf < trie.n_leaves(); ++leaf) {
            EXPECT_NEAR(answer.scores[leaf], plain.logprob(each.prompt, trie.sequence(leaf)), kNear);
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
        return each.second.n_shared + 16 > beginning.size();  // nobody waits for fewer
    });
    EXPECT_EQ(n_like_it, 4);
    add(6, request(bytes(beginning + "6"), kActions));  // which was evaluated long ago
    pass_until(6);
    EXPECT_EQ(answers_.at(6).n_shared, beginning.size());
}

TEST_F(SchedulerTest, WhoIsCancelledIsToldSoAndNobodyElse) {
    for (Ticket ticket = 1; ticket <= 6; ++ticket) {
        add(ticket, request(bytes("Do it " + std::to_string(ticket)), kActions));
    }
    scheduler_.cancel(6, on_answer_);  // which waits
    scheduler_.pass(on_answer_);
    scheduler_.cancel(1, on_answer_);
    scheduler_.cancel(7, on_answer_);  // which nobody knows
    pass_until(6);
    for (const auto & [ticket, answer] : answers_) {
        EXPECT_EQ(answer.status, ticket == 1 || ticket == 6 ? Status::cancelled : Status::ok) << ticket;
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
    EXPECT_EQ(answers_.at(2).n_shared, prompt.size() - 2);  // the text's last token was not evaluated
}

TEST_F(SchedulerTest, WithNothingToDoAPassIsNone) {
    scheduler_.pass(on_answer_);
    EXPECT_TRUE(answers_.empty());
}

}  // namespace
}  // namespace token_trie::test
