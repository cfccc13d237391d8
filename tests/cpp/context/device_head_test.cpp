#include "bytes_fetched.h"
#include "context_kind.h"
#include "search/tree_evaluator.h"
#include "stream_fixture.h"

#include <algorithm>
#include <array>

// A stream that chooses inside the compute graph, against one that does not: on the CPU backend unless a device is
// visible.
namespace token_trie::test {
namespace {

using Device = Sequence::Device;

class DeviceHeadTest : public StreamTest {
   protected:
    static std::unique_ptr<Stream> open(Device device,
                                        Sampling sampling = {},
                                        TinyKind kind = TinyKind::attention,
                                        bool jump_forward = true) {
        return std::make_unique<Stream>(std::make_unique<Sequence>(maker_of(1024, kind)),
                                        Stream::Options{sampling, jump_forward, device});
    }
    static std::uint64_t n_on_device(const Stream & stream) { return stream.state().n_on_device; }

    static void expect_same(const Output & device, const Output & host) {
        ASSERT_EQ(device.tokens(), host.tokens());
        for (std::size_t i = 0; i < host.steps.size(); ++i) {
            ASSERT_EQ(device.steps[i].forced, host.steps[i].forced);
            if (!std::isnan(host.steps[i].logprob)) {
                ASSERT_NEAR(device.steps[i].logprob, host.steps[i].logprob, 1e-4);
            }
        }
    }

    static inline const auto kActions =
        trie_of({{"READ_FILE", {kRead, kFile}}, {"READ_MAIL", {kRead, kMail}}, {"SEND", {kSend}}});
};

struct Drawn {
    const char * name = "";
    Mode mode = Mode::greedy;
    Sampling sampling{};
};

const Drawn kDrawn[] = {
    {"greedy", Mode::greedy, {0, 0, 0.9F, 0, 0, 0, 0, 0, 0, 0}},
    {"at_temperature_0", Mode::sampled, {}},
    {"sampled", Mode::sampled, {0, 0, 2, 0, 0, 0, 0, 0, 0, 0}},
    {"sampled_top_k_min_p", Mode::sampled, {0, 7, 3, 1, 4, 0.05F, 0, 0, 0, 0}},
    {"greedy_with_penalties", Mode::greedy, {0, 0, 0, 1, 0, 0, 16, 1.5F, 0, 0}},
};

TEST_F(DeviceHeadTest, AnswersAreThoseOfTheHost) {
    for (const Drawn & drawn : kDrawn) {
        SCOPED_TRACE(drawn.name);
        for (const bool jump_forward : {true, false}) {
            const auto device = open(Device::on, drawn.sampling, TinyKind::attention, jump_forward);
            const auto host = open(Device::off, drawn.sampling, TinyKind::attention, jump_forward);
            std::mt19937 rng(1);
            for (unsigned decision = 0; decision < rounds(500); ++decision) {
                const auto trie = unnamed_trie_of(random_byte_members(rng));
                Tokens prompt = bytes("Do: ");
                prompt.push_back(3 + static_cast<Token>(rng() % 256));
                std::array<Output, 2> out;
                for (std::size_t i = 0; i < 2; ++i) {
                    Stream & stream = i == 0 ? *device : *host;
                    stream.prefill(prompt);
                    set(stream, trie, drawn.mode);
                    out[i] = run(stream, 32);
                }
                expect_same(out[0], out[1]);
            }
            EXPECT_GT(n_on_device(*device), rounds(500) / 5);
            EXPECT_EQ(n_on_device(*host), 0U);
        }
    }
}

TEST_F(DeviceHeadTest, SpansAndFreeTextMayAlternate) {
    const auto device = open(Device::on);
    const auto host = open(Device::off);
    FollowSet::Options list = {OnComplete::restart, {kTinyEnd}, bytes(","), 4, 2};
    list.unique = true;
    FollowSet::Options think = kUntilTheEnd;
    think.start_after = bytes("!");
    think.max_before = 3;
    think.not_before = {kTinyEnd};
    for (Stream * stream : {device.get(), host.get()}) {
        stream->prefill(kPrompt);
    }
    for (int turn = 0; turn < 12; ++turn) {
        SCOPED_TRACE("turn " + std::to_string(turn));
        std::array<std::array<Output, 2>, 2> out;
        std::array<std::vector<double>, 2> scores;
        for (std::size_t i = 0; i < 2; ++i) {
            Stream & stream = i == 0 ? *device : *host;
            set(stream, kActions, turn % 2 == 0 ? Mode::greedy : Mode::sampled,
                turn % 3 == 0   ? list
                : turn % 3 == 1 ? think
                                : kUntilTheEnd);
            out[i][0] = run(stream, 32, 1);
            stream.clear_trie();
            out[i][1] = run(stream, 3, 1);
            if (turn % 4 == 3) {
                auto follow = std::make_shared<const FollowSet>(*kActions, kUntilTheEnd);
                scores[i] = answer_of(stream, Cursor(kActions, std::move(follow)), Query::Mode::scores).logprobs;
            }
            stream.splice(stream.tokens().size() - 1, bytes(turn == 5 ? std::string(300, 'x') : "\nDo: "));
        }
        expect_same(out[0][0], out[1][0]);
        expect_same(out[0][1], out[1][1]);
        ASSERT_EQ(scores[0].size(), scores[1].size());
        for (std::size_t leaf = 0; leaf < scores[0].size(); ++leaf) {
            EXPECT_NEAR(scores[0][leaf], scores[1][leaf], 1e-4);
        }
    }
    EXPECT_GT(n_on_device(*device), 0U);
    EXPECT_EQ(device->state().n_cached, host->state().n_cached);
}

TEST_F(DeviceHeadTest, EightBytesOfTheBestTokenOrTheLogitsAskedForLeaveTheDevice) {
    const auto members = trie_of({{"x", {10, 11, 12}}, {"y", {10, 13}}, {"z", {14, 11}}, {"w", {14, 12}}});
    for (const bool greedy : {true, false}) {
        const auto stream = open(Device::on, seeded(0, 1));
        stream->prefill(kPrompt);
        set(*stream, members, greedy ? Mode::greedy : Mode::sampled);
        ASSERT_NE(stream->next().step, nullptr);  // by what the prefill has fetched
        const std::size_t before = bytes_fetched();
        const std::uint64_t n = n_on_device(*stream);
        ASSERT_NE(stream->next().step, nullptr);
        EXPECT_EQ(n_on_device(*stream) - n, 1U);
        EXPECT_EQ(bytes_fetched() - before, greedy ? 8U : 16 * sizeof(float));
    }
}

// The pass has a sequence id of the context to itself, which more and more branches at rest leave it, and then do not.
TEST_F(DeviceHeadTest, BranchesAtRestKeepWhatTheyHave) {
    const std::atomic<bool> cancelled{false};
    const Tokens some = {10, 20, 30, 40};
    const AllowedSet wanted{false, {some.data(), static_cast<std::uint32_t>(some.size())}, {}};
    std::array<Tokens, 2> best;
    for (std::size_t i = 0; i < 2; ++i) {
        Sequence sequence(maker_of(1024));
        sequence.set_device(i == 0 ? Device::on : Device::off);
        sequence.replace(kPrompt, cancelled);
        std::vector<Sequence::Branch> branches;
        for (Token round = 0; round < 40; ++round) {
            branches.push_back(sequence.fork());
            sequence.append(100 + round);
            const auto on_device = sequence.best(wanted, false, cancelled);
            EXPECT_LE(on_device.has_value(), i == 0);
            const float * logits = on_device ? nullptr : sequence.logits(wanted, false, cancelled);
            best[i].push_back(on_device ? on_device->token
                                        : *std::max_element(some.begin(), some.end(),
                                                            [&](Token a, Token b) { return logits[a] < logits[b]; }));
            sequence.switch_to(branches[static_cast<std::size_t>(round) / 2]);
            if (round % 2 == 1) {
                branches[static_cast<std::size_t>(round) / 2] = sequence.fork();
            }
        }
        EXPECT_EQ(sequence.n_on_device() > 3, i == 0);
    }
    EXPECT_EQ(best[0], best[1]);
}

TEST_F(DeviceHeadTest, ModelsOfEachKindAnswerTheSame) {
    for (const TinyKind kind :
         {TinyKind::sliding_window, TinyKind::capped, TinyKind::quantized, TinyKind::recurrent, TinyKind::hybrid}) {
        SCOPED_TRACE(static_cast<int>(kind));
        const auto device = open(Device::on, {}, kind);
        const auto host = open(Device::off, {}, kind);
        for (const char * prompt : {"Do: ", "Do what it says in a line that is longer than a window: ", "!"}) {
            std::array<Output, 2> out;
            for (std::size_t i = 0; i < 2; ++i) {
                Stream & stream = i == 0 ? *device : *host;
                stream.prefill(bytes(prompt));
                set(stream, kActions);
                out[i] = run(stream);
            }
            EXPECT_EQ(out[0].tokens(), out[1].tokens());
        }
        const bool can = kind != TinyKind::recurrent && kind != TinyKind::hybrid;
        EXPECT_EQ(n_on_device(*device) > 0, can);
    }
}

TEST_F(DeviceHeadTest, WhatIsAutomaticGoesWhereTheLogitsAre) {
    const auto stream = open(Device::automatic);
    stream->prefill(kPrompt);
    set(*stream, kActions);
    run(*stream);
    EXPECT_EQ(n_on_device(*stream) > 0, llama_supports_gpu_offload());
}

TEST_F(DeviceHeadTest, WhereTheLayersAreOnADeviceASmallSetIsDecidedInOneBatch) {
    const bool has_device = llama_supports_gpu_offload();
    const auto stream = open(Device::automatic);
    std::mt19937 rng(3);
    for (int round = 0; round < 20; ++round) {
        SCOPED_TRACE("round " + std::to_string(round));
        const auto trie = unnamed_trie_of(random_byte_members(rng));
        const Cursor cursor(trie, std::make_shared<const FollowSet>(*trie, kUntilTheEnd));
        stream->prefill(kPrompt);
        const Answer result = answer_of(*stream, cursor, Query::Mode::best);
        const std::vector<double> leaves = answer_of(*stream, cursor, Query::Mode::scores).logprobs;
        ASSERT_EQ(result.leaves.size(), 1U);
        EXPECT_EQ(result.info.gap, 0);
        EXPECT_NEAR(result.logprobs[0], *std::max_element(leaves.begin(), leaves.end()), has_device ? 0.05 : 1e-4);
        if (has_device && trie->n_nodes() <= TreeEvaluator::kMaxRows) {
            EXPECT_LE(result.info.n_passes, 1U);
        }
        const Answer again = answer_of(*stream, cursor, Query::Mode::best);
        EXPECT_EQ(again.info.n_evaluated, result.info.n_evaluated);
        EXPECT_EQ(again.logprobs[0], result.logprobs[0]);
    }
}

}  // namespace
}  // namespace token_trie::test
