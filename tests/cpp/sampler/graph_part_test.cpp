#include "bytes_fetched.h"
#include "graph_part_fixture.h"

#include <array>

// What a trie in llama.cpp's compute graph promises, and where it does not go there.
namespace token_trie::test {
namespace {

class GraphPartTest : public WithTinyModel {};

TEST_F(GraphPartTest, EachOf10000RandomDecisionsIsAMember) {
    for (unsigned seed = 1; seed <= rounds(200); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const auto trie = random_trie(rng);
        const Mode mode = seed % 2 == 0 ? Mode::greedy : Mode::sampled;
        Decoder device(
            chain_of(trie_sampler(trie, mode), {llama_sampler_init_temp(5), llama_sampler_init_top_k(7),
                                                llama_sampler_init_top_p(0.9F, 1), llama_sampler_init_dist(seed)}),
            true);
        for (int decision = 0; decision < 50; ++decision) {
            device.prefill(random_prompt(rng));
            Tokens answer = device.decide();
            ASSERT_EQ(answer.back(), kTinyEnd);
            answer.pop_back();
            const NodeId node = trie->descend(answer.data(), answer.size());
            ASSERT_NE(node, kNoNode);
            ASSERT_NE(trie->leaf(node), kNoLeaf);
        }
        ASSERT_EQ(state_of(device.trie()).n_applied, 0U);
    }
}

TEST_F(GraphPartTest, FourBytesAStepLeaveTheDevice) {
    const auto trie = trie_of({{"READ_FILE", {kRead, kFile}}, {"READ_MAIL", {kRead, kMail}}, {"SEND", {kSend}}});
    for (const Mode mode : {Mode::greedy, Mode::sampled}) {
        Decoder device(chain_of(trie_sampler(trie, mode), {llama_sampler_init_temp(1), llama_sampler_init_dist(1)}),
                       true);
        std::size_t before = bytes_fetched();
        device.prefill(bytes("Do: "));
        EXPECT_EQ(bytes_fetched() - before, sizeof(llama_token));
        for (int step = 0; step < 2; ++step) {
            before = bytes_fetched();
            device.next();
            EXPECT_EQ(bytes_fetched() - before, sizeof(llama_token));
        }
    }
    Decoder host(chain_of({trie_sampler(trie, Mode::greedy).release()}), false);
    const std::size_t before = bytes_fetched();
    host.prefill(bytes("Do: "));
    EXPECT_EQ(bytes_fetched() - before, kTinyVocab * sizeof(float));
}

TEST_F(GraphPartTest, NodesMayBeAsWideAsTheVocabulary) {
    for (const Token n_children : {2, 200000}) {
        SCOPED_TRACE(n_children);
        LeafList leaves;
        for (Token token = 0; token < n_children; ++token) {
            leaves.tokens.insert(leaves.tokens.end(), {5, kWideVocab - 1 - token, 7});
            leaves.end_leaf();
        }
        const auto trie = Trie::build(std::move(leaves));
        for (const Mode mode : {Mode::greedy, Mode::sampled}) {
            const FollowSet::Options release{};
            const auto chain = [&] {
                return chain_of(trie_sampler(trie, mode, release),
                                {llama_sampler_init_temp(0.5F), llama_sampler_init_dist(3)}, kWideVocab);
            };
            Decoder device(chain(), true, TinyKind::wide);
            Decoder host(chain(), false, TinyKind::wide);
            for (const Token prompt : {1, 2, 3}) {
                device.prefill({prompt});
                host.prefill({prompt});
                EXPECT_EQ(device.next(3), host.next(3));
                EXPECT_EQ(state_of(device.trie()).state, TOKEN_TRIE_COMPLETE);
            }
            EXPECT_EQ(state_of(device.trie()).n_applied, 0U);
        }
    }
}

TEST_F(GraphPartTest, AnyTokenizationWillDo) {
    const std::string payload =
        R"({"descriptors": [{"tokenization": "any", "leaves": [{"name": "a", "text": "READ_FILE"},)"
        R"({"name": "b", "text": "SEND"}, {"name": "c", "text": "READ"}]}]})";
    const auto chain = [&] {
        auto params = sized<token_trie_params>();
        params.on_complete = TOKEN_TRIE_END;
        const SetHandle set = set_of(payload, 0, tiny_vocab());
        llama_sampler * trie = llama_sampler_init_token_trie_set(tiny_vocab(), set.get(), &params);
        return chain_of({trie, llama_sampler_init_token_trie_tail(trie, tiny_vocab())});
    };
    Decoder device(chain(), true);
    Decoder host(chain(), false);
    std::mt19937 rng(1);
    for (int decision = 0; decision < 50; ++decision) {
        const Tokens prompt = random_prompt(rng);
        device.prefill(prompt);
        host.prefill(prompt);
        ASSERT_EQ(device.decide(), host.decide());
    }
    EXPECT_EQ(state_of(device.trie()).n_applied, 0U);
}

// As llama.cpp's draw does, in one of some ten million, where rounding leaves it no token: it takes the last.
TEST_F(GraphPartTest, WhereTheSelectorTakesATokenOutsideTheSetTheAnswerIsAMember) {
    static llama_sampler_i last = [] {
        llama_sampler_i out{};
        out.name = [](const llama_sampler *) { return "last"; };
        out.apply = [](llama_sampler *, llama_token_data_array *) {};
        out.backend_init = [](llama_sampler *, ggml_backend_buffer_type_t, std::uint32_t) { return true; };
        out.backend_apply = [](llama_sampler *, ggml_context * graph, ggml_cgraph *, llama_sampler_data * data) {
            ggml_tensor * all = ggml_arange(graph, 0, static_cast<float>(ggml_nelements(data->logits)), 1);
            data->sampled = ggml_argmax(graph, all);
        };
        return out;
    }();
    const auto trie = trie_of({{"READ", {kRead}}, {"SEND", {kSend, kFile}}});
    for (const Mode mode : {Mode::greedy, Mode::sampled}) {
        Decoder device(chain_of(trie_sampler(trie, mode), {llama_sampler_init(&last, nullptr)}), true);
        device.prefill(bytes("Do: "));
        // The last token of the vocabulary is one of the first two allowed, and then not.
        EXPECT_EQ(device.decide(), Tokens({kSend, kFile, kTinyEnd}));
        EXPECT_EQ(state_of(device.trie()).n_escaped, 0U);
    }
}

// What samplers before it do to the logits, to nearly all of them or to their order, is no reason for another answer.
TEST_F(GraphPartTest, WhatSamplersBeforeItCutIsPutBack) {
    const auto trie = trie_of({{"A", {10, 11}}, {"B", {12}}});
    std::vector<llama_logit_bias> all;
    all.reserve(kTinyVocab);
    for (Token token = 0; token < kTinyVocab; ++token) {
        all.push_back({token, -std::numeric_limits<float>::infinity()});
    }
    const std::vector<llama_sampler * (*)(const std::vector<llama_logit_bias> &)> before = {
        [](const auto &) { return llama_sampler_init_top_k(1); },
        [](const auto &) { return llama_sampler_init_top_p(0.01F, 1); },
        [](const auto &) { return llama_sampler_init_min_p(0.9F, 1); },
        [](const auto & bias) {
            return llama_sampler_init_logit_bias(kTinyVocab, static_cast<std::int32_t>(bias.size()), bias.data());
        }};
    for (const auto & make : before) {
        for (const Mode mode : {Mode::greedy, Mode::sampled}) {
            llama_sampler * member = trie_sampler(trie, mode).release();
            Decoder device(chain_of({make(all), member, llama_sampler_init_dist(1), make_tail(member, kTinyVocab)}),
                           true);
            for (const char * prompt : {"a", "b", "c"}) {
                device.prefill(bytes(prompt));
                const Tokens answer = device.decide();
                EXPECT_TRUE(answer == Tokens({10, 11, kTinyEnd}) || answer == Tokens({12, kTinyEnd}))
                    << ::testing::PrintToString(answer);
            }
            EXPECT_EQ(state_of(device.trie()).n_applied, 0U);
        }
    }
}

TEST_F(GraphPartTest, StaysOnTheHostWhereItCannotGo) {
    const auto trie = trie_of({{"READ", {kRead}}, {"SEND", {kSend}}});
    const auto behind_another = [&](llama_sampler * member) {
        return chain_of({llama_sampler_init_typical(0.9F, 1), member, make_tail(member, kTinyVocab)});
    };
    FollowSet::Options think = kEnd;
    think.start_after = bytes("!");
    Decoder decoders[] = {
        Decoder(chain_of(trie_sampler(trie, Mode::sampled, think), {}), true),
        Decoder(chain_of({trie_sampler(trie, Mode::sampled).release(), llama_sampler_init_dist(1)}), true),
        Decoder(chain_of(trie_sampler(trie, Mode::greedy), {}, 0), true),
        Decoder(behind_another(trie_sampler(trie, Mode::greedy).release()), true),
    };
    for (Decoder & decoder : decoders) {
        decoder.prefill(bytes("Do: "));
        decoder.next();
        EXPECT_EQ(state_of(decoder.trie()).n_applied, 1U);
        EXPECT_EQ(state_of(decoder.trie()).n_in_graph, 0U);
    }
}

TEST_F(GraphPartTest, ABatchOfSeveralOutputsIsRefusedOrStaysOnTheHost) {
    const auto trie = trie_of({{"READ", {kRead}}, {"SEND", {kSend}}});
    for (const std::uint32_t n_outputs : {1U, 4U}) {
        const Sampler chain = chain_of(trie_sampler(trie, Mode::greedy), {});
        llama_context_params params = tiny_context_params();
        params.n_outputs_max_per_seq = n_outputs;
        const Context context = tiny_context_of(params);
        ASSERT_TRUE(llama_set_sampler(context.get(), 0, chain.get()));
        llama_batch batch = llama_batch_init(2, 0, 1);
        batch.n_tokens = 2;
        for (std::int32_t i = 0; i < 2; ++i) {
            batch.token[i] = 5 + i;
            batch.pos[i] = i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        EXPECT_EQ(llama_decode(context.get(), batch), n_outputs == 1 ? -1 : 0);
        llama_batch_free(batch);
        const llama_sampler * member = llama_sampler_chain_get(chain.get(), 0);
        if (n_outputs > 1) {
            const Token token = llama_sampler_sample(chain.get(), context.get(), 0);
            EXPECT_TRUE(token == kRead || token == kSend);
            EXPECT_EQ(state_of(member).n_applied, 1U);
        }
        EXPECT_EQ(state_of(member).n_in_graph, 0U);
    }
}

TEST_F(GraphPartTest, SequencesHaveTriesOfTheirOwn) {
    const std::array<Token, 2> only = {kRead, kSend};
    std::array<Sampler, 2> chains;
    const Context context = tiny_context(256, TinyKind::attention, 2);
    for (std::size_t i = 0; i < 2; ++i) {
        chains[i] = chain_of(trie_sampler(trie_of({{"x", {only[i], kFile}}}), Mode::greedy), {});
        ASSERT_TRUE(llama_set_sampler(context.get(), static_cast<llama_seq_id>(i), chains[i].get()));
    }
    llama_batch batch = llama_batch_init(2, 0, 1);
    // Together, and then the second one alone.
    for (const std::size_t first : {0U, 1U}) {
        batch.n_tokens = 0;
        for (std::size_t i = first; i < 2; ++i, ++batch.n_tokens) {
            const auto at = batch.n_tokens;
            batch.token[at] = first == 0 ? 5 : only[i];
            batch.pos[at] = static_cast<llama_pos>(first);
            batch.n_seq_id[at] = 1;
            batch.seq_id[at][0] = static_cast<llama_seq_id>(i);
            batch.logits[at] = 1;
        }
        ASSERT_EQ(llama_decode(context.get(), batch), 0);
        for (std::size_t i = first; i < 2; ++i) {
            EXPECT_EQ(llama_sampler_sample(chains[i].get(), context.get(), static_cast<std::int32_t>(i - first)),
                      first == 0 ? only[i] : kFile);
        }
    }
    llama_batch_free(batch);
}

TEST_F(GraphPartTest, ATrieThatMovesToAnotherChainStaysOnTheHostThere) {
    const auto trie = trie_of({{"READ", {kRead}}, {"SEND", {kSend}}});
    llama_sampler * member = trie_sampler(trie, Mode::greedy).release();
    const Sampler first = chain_of({member, make_tail(member, kTinyVocab)});
    {
        const Context context = tiny_context();
        ASSERT_TRUE(llama_set_sampler(context.get(), 0, first.get()));
    }
    ASSERT_EQ(llama_sampler_chain_remove(first.get(), 0), member);
    Decoder second(chain_of({member}), true);
    second.prefill(bytes("Do: "));
    EXPECT_EQ(second.decide().size(), 2U);
    EXPECT_GT(state_of(member).n_applied, 0U);
}

TEST_F(GraphPartTest, ACloneAndACopyStandWhereTheOriginalStands) {
    const auto trie = trie_of({{"READ_FILE", {kRead, kFile}}, {"READ_MAIL", {kRead, kMail}}, {"SEND", {kSend}}});
    Decoder device(chain_of(trie_sampler(trie, Mode::greedy), {}), true);
    device.prefill(bytes("Do: "));
    const Sampler clone(llama_sampler_clone(device.trie()));
    llama_sampler_accept(clone.get(), kRead);
    EXPECT_EQ(view(device.trie()).cursor->node(), kRoot);
    llama_sampler_copy(clone.get(), device.trie());
    EXPECT_EQ(view(device.trie()).cursor->node(), view(clone.get()).cursor->node());
    device.next();  // of the batch before the copy
    EXPECT_EQ(state_of(device.trie()).n_applied, 0U);
}

// The graph is llama.cpp's to use again for as long as it is not built anew.
TEST_F(GraphPartTest, ManyRoundsOnOneContextTakeNoMoreThanTheFirst) {
    const Context context = tiny_context();
    std::mt19937 rng(1);
    for (int round = 0; round < 200; ++round) {
        const auto trie = random_trie(rng);
        const Sampler chain = chain_of(trie_sampler(trie, Mode::greedy), {});
        ASSERT_TRUE(llama_set_sampler(context.get(), 0, chain.get()));
        Token token = 5;
        llama_memory_clear(llama_get_memory(context.get()), true);
        for (int step = 0; step < 3; ++step) {
            ASSERT_EQ(llama_decode(context.get(), llama_batch_get_one(&token, 1)), 0);
            const AllowedSet allowed = view(llama_sampler_chain_get(chain.get(), 0)).cursor->allowed();
            token = llama_sampler_sample(chain.get(), context.get(), -1);
            ASSERT_TRUE(allowed.contains(token));
        }
        ASSERT_TRUE(llama_set_sampler(context.get(), 0, nullptr));
    }
}

}  // namespace
}  // namespace token_trie::test
