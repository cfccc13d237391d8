#include "batch/job.h"
#include "search/tree_paths.h"

#include "batch_fixture.h"
#include "plain_answer.h"

#include <numeric>

namespace token_trie::test {
namespace {

// Tasks whose rows nobody evaluates: the logits behind each are scripted.
class TaskTest : public WithTinyModel {
   protected:
    static constexpr std::size_t kPaths = 3;

    Answer decide(const Request & asked, std::size_t max_nodes = 100) {
        const Task::Origin origin{llama_get_model(context_.get()), memory_, 0, asked.prompt.size()};
        const std::unique_ptr<Task> task = make_task(asked, tiny_vocab(), origin, kPaths);
        for (llama_seq_id id = 0; id < static_cast<llama_seq_id>(kPaths); ++id) {
            task->lend(id);
        }
        Tokens text;
        if (!task->is_done() && task->wants_root()) {
            task->observe(kRoot, scripted_logits({}).data());
            task->advance();
        }
        while (!task->is_done()) {
            const std::vector<Row> rows = task->next_rows(max_nodes, 100);
            EXPECT_FALSE(rows.empty());
            for (const Row & row : rows) {
                text.push_back(row.token);
                Tokens path = text;
                if (row.node != kRoot) {
                    path.clear();
                    for (const NodeId node : path_to(asked.cursor->trie(), row.node)) {
                        path.push_back(asked.cursor->trie().token(node));
                    }
                }
                EXPECT_EQ(row.position, static_cast<llama_pos>(asked.prompt.size() + path.size()) - 1);
                if (row.wanted) {
                    task->observe(row.node, scripted_logits(path).data());
                }
            }
            task->advance();
        }
        Answer out;
        task->write(out);
        task->clear();
        return out;
    }

    static double logprob(const Tokens & member) {
        std::set<Token> all;
        for (Token token = 0; token < kTinyVocab; ++token) {
            all.insert(token);
        }
        double sum = 0;
        Tokens prefix;
        for (const Token token : member) {
            sum += log_share(scripted_logits(prefix), all, token);
            prefix.push_back(token);
        }
        return sum;
    }

    Context context_ = tiny_context(256, TinyKind::attention, kPaths);
    llama_memory_t memory_ = llama_get_memory(context_.get());
};

TEST_F(TaskTest, AChoiceIsDecidedAsALoopOverPlainSetsDecidesIt) {
    std::mt19937 rng(7);
    for (int round = 0; round < 100; ++round) {
        const std::set<Tokens> members = random_texts(rng, 1 + rng() % 20, 1 + rng() % 5, 8);
        const PlainAnswer plain(members, [](const Tokens & tokens) { return scripted_logits(tokens); });
        const Answer answer = decide(request(bytes("Do: "), members));
        EXPECT_EQ(answer.tokens, plain.tokens);
        EXPECT_EQ(answer.info.stop, TOKEN_TRIE_STOP_COMPLETE);
        EXPECT_NEAR(answer.logprobs.front(), plain.logprob, 1e-4);
        EXPECT_EQ(answer.info.n_forced, plain.n_forced);
        EXPECT_EQ(answer.info.n_branches, plain.n_branches);
    }
}

TEST_F(TaskTest, ATreesAnswersAreThoseOfEveryMemberScoredAlone) {
    std::mt19937 rng(8);
    for (int round = 0; round < 50; ++round) {
        const std::set<Tokens> members = random_texts(rng, 1 + rng() % 20, 1 + rng() % 5, 8);
        Request asked = request(bytes("Do: "), members, Query::Mode::scores);
        asked.search.leaf_end = LeafEnd::any;
        for (const std::size_t max_nodes : {1U, 2U, 100U}) {
            asked.mode = Query::Mode::scores;
            const Answer all = decide(asked, max_nodes);
            const Trie & trie = asked.cursor->trie();
            ASSERT_EQ(all.logprobs.size(), members.size());
            for (LeafId leaf = 0; leaf < trie.n_leaves(); ++leaf) {
                EXPECT_NEAR(all.logprobs[leaf], logprob(trie.sequence(leaf)), kNear);
            }
            asked.mode = Query::Mode::best;
            const Answer best = decide(asked, max_nodes);
            EXPECT_NEAR(best.logprobs.front(), *std::max_element(all.logprobs.begin(), all.logprobs.end()), kNear);
            EXPECT_EQ(best.info.gap, 0);
            EXPECT_LE(best.info.n_evaluated, trie.n_nodes() * (max_nodes < 100 ? 5 : 3));
        }
    }
}

TEST_F(TaskTest, FreeTextIsTheBestTokenEachTime) {
    Tokens plain;
    while (plain.size() < 9) {
        const std::vector<float> logits = scripted_logits(plain);
        plain.push_back(static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    const Answer answer = decide(text_behind(bytes("Do: "), 9));
    EXPECT_EQ(answer.tokens, plain);
    EXPECT_EQ(answer.info.stop, TOKEN_TRIE_STOP_MAX_TOKENS);
    EXPECT_EQ(answer.info.n_free, 9U);
}

class JobTest : public TaskTest {
   protected:
    static std::vector<float> no_state(std::size_t /*row*/) {
        ADD_FAILURE() << "a state, where none is wanted";
        return {};
    }
    static BatchRows::Indices indices_of(const BatchRows & rows) {
        BatchRows::Indices out(rows.size());
        std::iota(out.begin(), out.end(), 0);
        return out;
    }
    Job job_of(Request asked, std::size_t n_shared) {
        const Task::Origin origin{llama_get_model(context_.get()), memory_, 0, asked.prompt.size()};
        return {1, std::move(asked), tiny_vocab(), origin, -1, n_shared, kPaths};
    }
};

TEST_F(JobTest, APromptComesInPartsAndWantsLogitsBehindItsLastTokenAlone) {
    Job job = job_of(request(bytes("0123456789"), kActions), 3);
    const std::vector<float> logits = scripted_logits({});
    Tokens seen;
    for (int pass = 0; job.n_prompt_left() > 0; ++pass) {
        ASSERT_LT(pass, 10);
        BatchRows rows;
        rows.clear(8, 1);
        job.plan(rows, 3);
        const llama_batch batch = rows.batch();
        for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
            EXPECT_EQ(batch.pos[i], static_cast<llama_pos>(3 + seen.size()));
            seen.push_back(batch.token[i]);
            EXPECT_EQ(batch.logits[i] != 0, seen.size() == 7);
        }
        EXPECT_EQ(job.wants_few(), true);
        EXPECT_EQ(rows.n_wanted(), seen.size() == 7 ? 1U : 0U);
        job.observe(
            indices_of(rows), [&](std::size_t /*row*/, const Task & /*task*/) { return logits.data(); }, no_state);
        job.advance();
    }
    EXPECT_EQ(seen, bytes("3456789"));
}

TEST_F(JobTest, AStateAloneWantsTheLastRowOfThePromptAndNothingBehindIt) {
    Request asked;
    asked.prompt = bytes("0123456789");
    asked.mode = Query::Mode::text;
    asked.with_hidden_state = true;
    Job job = job_of(std::move(asked), 3);
    BatchRows rows;
    rows.clear(100, 1);
    job.plan(rows, 100);
    EXPECT_EQ(rows.size(), 7U);
    EXPECT_EQ(rows.n_wanted(), 1U);
    EXPECT_TRUE(job.wants_few());
    std::size_t n_logits = 0;
    job.observe(
        indices_of(rows),
        [&](std::size_t /*row*/, const Task & /*task*/) {
            ++n_logits;
            return nullptr;
        },
        [](std::size_t row) { return std::vector<float>(2, static_cast<float>(row)); });
    job.advance();
    EXPECT_EQ(n_logits, 0U);
    ASSERT_TRUE(job.is_done());
    EXPECT_EQ(job.answer().hidden_state, std::vector<float>({6, 6}));
}

TEST_F(JobTest, WhatIsForcedFollowsThePromptInTheSamePass) {
    Job job = job_of(request(bytes("Do: "), {{kRead, kFile, kSend}, {kRead, kFile, kMail}}), 0);
    BatchRows rows;
    rows.clear(100, 1);
    job.plan(rows, 100);
    EXPECT_EQ(rows.size(), 6U);
    EXPECT_EQ(rows.n_wanted(), 1U);
    const std::vector<float> logits = scripted_logits({kRead, kFile});
    job.observe(
        indices_of(rows),
        [&](std::size_t row, const Task & task) {
            EXPECT_EQ(row, 5);
            EXPECT_EQ(task.wanted().max_size(), 2U);
            return logits.data();
        },
        no_state);
    job.advance();
    EXPECT_TRUE(job.is_done());
    EXPECT_EQ(job.answer().info.n_passes, 1U);
    EXPECT_EQ(job.answer().tokens.size(), 3U);
}

}  // namespace
}  // namespace token_trie::test
