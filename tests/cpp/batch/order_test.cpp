#include "batch_fixture.h"

#include <ggml.h>

#include <cstring>

// The order in which requests wait for each other.
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
                                 const Request & asked,
                                 const std::function<Request(int)> & another) {
        constexpr int n_most = 2000;
        int n = 0;
        for (; n < 8; ++n) {
            submit(batch, another(n));
        }
        const Ticket ticket = submit(batch, asked);
        for (int n_before = 0; n_before < n_most; ++n_before) {
            if (take(*batch).info.ticket == ticket) {
                return n_before;
            }
            submit(batch, another(n++));
        }
        return n_most;
    }

    const Tokens prompt_ = bytes(std::string(100, 'p'));
    const Request long_one_ = request(bytes(std::string(230, 'x')), kActions);
};

TEST_F(BatchOrder, ATextAskedAgainWaitsItsTurn) {
    const std::shared_ptr<Batch> batch = open(1024, {4, 0});
    const auto text = [&](int i) {
        Request out = text_behind(prompt_, 10);
        out.sampling.temperature = 1;
        out.sampling.seed = static_cast<std::uint32_t>(i);
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
        submit(batch, request(behind(prompt_, bytes(std::to_string(i))), kActions));
    }
    std::map<Ticket, Answer> answers = take_all(*batch);
    const Tokens written = behind(prompt_, answers.at(1).tokens);
    const auto follow_up = [&](int i) {
        return request(behind(written, bytes(std::string(20, 'z') + std::to_string(i))), kActions);
    };
    EXPECT_LE(n_answered_before(batch, long_one_, follow_up), 64 + 16);
}

TEST_F(BatchOrder, WhoAsksBehindATextComesFirst) {
    const std::shared_ptr<Batch> batch = open(1024, {2, 0});
    submit(batch, text_behind(prompt_, 30));
    const Tokens written = behind(prompt_, take(*batch).tokens);
    for (int i = 0; i < 10; ++i) {
        submit(batch, request(bytes(std::to_string(i) + std::string(100, 'x')), kActions));
    }
    const Ticket last = submit(batch, request(written, kActions));
    EXPECT_EQ(take(*batch).info.ticket, last);
    take_all(*batch);
}

// The logits that llama.cpp computes, a number for each of a batch's passes.
std::vector<std::size_t> outputs_of(const std::vector<Request> & requests, std::size_t n_ids) {
    std::vector<std::size_t> n_outputs;
    llama_context_params params = tiny_context_params(2048);
    params.cb_eval = [](ggml_tensor * node, bool ask, void * to) {
        if (ask && std::strcmp(node->name, "result_output") == 0) {
            static_cast<std::vector<std::size_t> *>(to)->push_back(static_cast<std::size_t>(node->ne[1]));
        }
        return !ask;
    };
    params.cb_eval_user_data = &n_outputs;
    ContextMaker maker(tiny_model(TinyKind::attention), params, {});
    const auto batch = std::make_shared<Batch>(std::move(maker), Scheduler::Options{n_ids, 0});
    for (const Request & each : requests) {
        submit(batch, each);
    }
    take_all(*batch);
    return n_outputs;
}

// Two texts behind each of so many tokens, which are asked about.
std::vector<Request> trees(const Tokens & beginning, std::size_t n, int n_nodes = 12) {
    std::set<Tokens> members;
    for (int i = 0; i < n_nodes; ++i) {
        const char first = static_cast<char>('a' + i);
        members.insert({bytes(std::string(1, first) + "1"), bytes(std::string(1, first) + "2")});
    }
    std::vector<Request> out;
    for (std::size_t i = 0; i < n; ++i) {
        Tokens prompt = beginning;
        const Tokens rest = bytes(std::to_string(i) + " ?");
        prompt.insert(prompt.end(), rest.begin(), rest.end());
        out.push_back(request(prompt, members, Query::Mode::scores));
    }
    return out;
}

TEST_F(BatchOrder, PassesAreFullAsLongAsTreesHaveNodesLeft) {
    constexpr std::size_t n_ids = 64;
    const std::vector<std::size_t> n_outputs = outputs_of(trees(prompt_, 40), n_ids);
    ASSERT_GT(n_outputs.size(), 4U);
    // The first two have the beginning, and the next one the rest of all prompts.
    for (std::size_t i = 3; i + 1 < n_outputs.size(); ++i) {
        EXPECT_GE(n_outputs[i], n_ids * 3 / 4) << "pass " << i << " of " << n_outputs.size();
    }
}

TEST_F(BatchOrder, AGroupOfLogitsIsFilledUpByTwoRowsAtMost) {
    for (int n_nodes = 1; n_nodes < 20; ++n_nodes) {
        const std::size_t n = outputs_of(trees(prompt_, 1, n_nodes), 32).back();
        const int n_left = n_nodes % 4;
        EXPECT_EQ(n, n_nodes <= 4 || n_left < 2 ? n_nodes : n_nodes + 4 - n_left) << n_nodes << " nodes";
    }
}

TEST_F(BatchOrder, AGroupOfLogitsIsFilledUpFromRowsThatHaveNone) {
    for (std::size_t n_prompts = 1; n_prompts < 16; ++n_prompts) {
        std::vector<Request> requests = trees(prompt_, n_prompts);
        for (Request & each : requests) {
            each.cursor = shared_cursor_of({{kRead}, {kSend}});
        }
        const std::size_t n = outputs_of(requests, 32).back();
        const std::size_t n_asked = n_prompts == 1 ? 1 : n_prompts - 1;  // the first one's beginning is the others'
        EXPECT_EQ(n, n_asked <= 4 ? n_asked : (n_asked + 3) / 4 * 4) << n_prompts << " prompts";
    }
}

TEST_F(BatchOrder, ManyMayBeCancelledOftenAndInAnyOrder) {
    const std::shared_ptr<Batch> batch = open();
    constexpr Ticket n = 20000;
    const Request each = request(bytes("Do: "), kActions);
    for (Ticket ticket = 1; ticket <= n; ++ticket) {
        ASSERT_EQ(submit(batch, each), ticket);
    }
    for (int round = 0; round < 20; ++round) {
        for (Ticket ticket = n; ticket > 1; --ticket) {
            batch->cancel(ticket);
        }
    }
    for (Ticket ticket = n; ticket > 1; --ticket) {
        ASSERT_EQ(take(*batch, ticket).info.status, TOKEN_TRIE_ERROR_CANCELLED);
    }
    EXPECT_EQ(take(*batch).info.status, TOKEN_TRIE_OK);
    EXPECT_EQ(take(*batch).info.ticket, 0);
}

}  // namespace
}  // namespace token_trie::test
