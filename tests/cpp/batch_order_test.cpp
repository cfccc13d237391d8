#include "batch_fixture.h"

// Who waits for whom.
namespace token_trie::test {
namespace {

class BatchOrder : public BatchTest {
   protected:
    static Tokens behind(const Tokens & prompt, const Tokens & more) {
        Tokens out = prompt;
        out.insert(out.end(), more.begin(), more.end());
        return out;
    }
    // How many of another's, who asks again as soon as there is an answer, are answered before this one.
    static int n_answered_before(const std::shared_ptr<Batch> & batch,
                                 const Question & asked,
                                 const std::function<Question(int)> & another) {
        constexpr int n_most = 2000;
        int n = 0;
        for (; n < 8; ++n) {
            submit(batch, another(n));
        }
        const Ticket ticket = submit(batch, asked);
        for (int n_before = 0; n_before < n_most; ++n_before) {
            if (take(*batch).ticket == ticket) {
                return n_before;
            }
            submit(batch, another(n++));
        }
        return n_most;
    }

    const Tokens prompt_ = bytes(std::string(100, 'p'));
    const Question long_one_ = question(bytes(std::string(230, 'x')), kActions);
};

TEST_F(BatchOrder, ATextAskedAgainWaitsItsTurn) {
    const std::shared_ptr<Batch> batch = open(1024, {4, 0});
    const auto text = [&](int i) {
        Question out = text_behind(prompt_, 10);
        out.temperature = 1;
        out.seed = static_cast<std::uint32_t>(i);
        return out;
    };
    submit(batch, text(0));
    take(*batch);
    EXPECT_LE(n_answered_before(batch, long_one_, text), 16);
}

TEST_F(BatchOrder, WhoAsksBehindTextsDoesNotKeepOthersWaiting) {
    const std::shared_ptr<Batch> batch = open(1024, {4, 0});
    submit(batch, text_behind(prompt_, 30));
    for (int i = 0; i < 3; ++i) {
        submit(batch, question(behind(prompt_, bytes(std::to_string(i))), kActions));
    }
    std::map<Ticket, Answer> answers = take_all(*batch);
    const Tokens written = behind(prompt_, answers.at(1).tokens);
    const auto follow_up = [&](int i) {
        return question(behind(written, bytes(std::string(20, 'z') + std::to_string(i))), kActions);
    };
    EXPECT_LE(n_answered_before(batch, long_one_, follow_up), 64 + 16);
}

TEST_F(BatchOrder, WhoAsksBehindATextComesFirst) {
    const std::shared_ptr<Batch> batch = open(1024, {2, 0});
    submit(batch, text_behind(prompt_, 30));
    const Tokens written = behind(prompt_, take(*batch).answer.tokens);
    for (int i = 0; i < 10; ++i) {
        submit(batch, question(bytes(std::to_string(i) + std::string(100, 'x')), kActions));
    }
    const Ticket last = submit(batch, question(written, kActions));
    EXPECT_EQ(take(*batch).ticket, last);
    take_all(*batch);
}

TEST_F(BatchOrder, ManyMayBeCancelledOftenAndInAnyOrder) {
    const std::shared_ptr<Batch> batch = open();
    constexpr Ticket n = 20000;
    const Question each = question(bytes("Do: "), kActions);
    for (Ticket ticket = 1; ticket <= n; ++ticket) {
        ASSERT_EQ(submit(batch, each), ticket);
    }
    for (int round = 0; round < 20; ++round) {
        for (Ticket ticket = n; ticket > 1; --ticket) {
            batch->cancel(ticket);
        }
    }
    for (Ticket ticket = n; ticket > 1; --ticket) {
        ASSERT_EQ(take(*batch, ticket).answer.status, Status::cancelled);
    }
    EXPECT_EQ(take(*batch).answer.status, Status::ok);
    EXPECT_EQ(take(*batch).ticket, 0);
}

}  // namespace
}  // namespace token_trie::test
