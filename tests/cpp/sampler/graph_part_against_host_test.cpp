#include "graph_part_fixture.h"

// The trie in llama.cpp's compute graph, against the same chain on the host.
namespace token_trie::test {
namespace {

struct Kind {
    const char * name;
    Mode mode;
    Behind (*behind)(std::uint32_t seed);
};

const Kind kKinds[] = {
    {"greedy", Mode::greedy, [](std::uint32_t) { return Behind{}; }},
    {"greedy_greedy", Mode::greedy, [](std::uint32_t) { return Behind{llama_sampler_init_greedy()}; }},
    {"greedy_dist", Mode::greedy,
     [](std::uint32_t seed) { return Behind{llama_sampler_init_temp(0.7F), llama_sampler_init_dist(seed)}; }},
    {"sampled", Mode::sampled, [](std::uint32_t) { return Behind{}; }},
    {"sampled_greedy", Mode::sampled, [](std::uint32_t) { return Behind{llama_sampler_init_greedy()}; }},
    {"sampled_dist", Mode::sampled, [](std::uint32_t seed) { return Behind{llama_sampler_init_dist(seed)}; }},
    {"sampled_temp_dist", Mode::sampled,
     [](std::uint32_t seed) { return Behind{llama_sampler_init_temp(3), llama_sampler_init_dist(seed)}; }},
    {"sampled_top_p", Mode::sampled,
     [](std::uint32_t seed) {
         return Behind{llama_sampler_init_temp(3), llama_sampler_init_top_p(0.8F, 1), llama_sampler_init_dist(seed)};
     }},
    {"sampled_min_p", Mode::sampled,
     [](std::uint32_t seed) {
         return Behind{llama_sampler_init_min_p(0.2F, 1), llama_sampler_init_temp(2), llama_sampler_init_dist(seed)};
     }},
};

void PrintTo(const Kind & kind, std::ostream * out) { *out << kind.name; }

class GraphPartOf : public ::testing::TestWithParam<Kind> {
   protected:
    static Sampler chain(const std::shared_ptr<const Trie> & trie, const FollowSet::Options & options, unsigned seed) {
        return chain_of(trie_sampler(trie, GetParam().mode, options), GetParam().behind(seed));
    }

   private:
    CapturedLog quiet_;
};

TEST_P(GraphPartOf, TokensAreThoseOfTheHost) {
    for (unsigned seed = 1; seed <= rounds(50); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const auto trie = random_trie(rng);
        Decoder device(chain(trie, kEnd, seed), true);
        Decoder host(chain(trie, kEnd, seed), false);
        for (int decision = 0; decision < 20; ++decision) {
            const Tokens prompt = random_prompt(rng);
            device.prefill(prompt);
            host.prefill(prompt);
            ASSERT_EQ(device.decide(), host.decide());
        }
        EXPECT_EQ(state_of(device.trie()).n_applied, 0U);
        EXPECT_GT(state_of(device.trie()).n_in_graph, 0U);
        EXPECT_EQ(state_of(host.trie()).n_in_graph, 0U);
        EXPECT_EQ(state_of(device.trie()).n_escaped, 0U);
    }
}

TEST_P(GraphPartOf, FreeTextAndListsAreThoseOfTheHost) {
    const auto trie = trie_of({{"READ", {kRead}}, {"READ_FILE", {kRead, kFile}}, {"SEND", {kSend, kMail}}});
    const FollowSet::Options list = {OnComplete::restart, {kTinyEnd}, bytes(","), 4, 2};
    FollowSet::Options no_repeats = {OnComplete::restart, {kTinyEnd}, {}, 0};
    no_repeats.unique = true;
    FollowSet::Options some = kEnd;
    some.exclude = {"READ"};
    const FollowSet::Options all[] = {{OnComplete::release, {}, {}, 0}, kEnd, list, no_repeats, some};
    for (std::size_t which = 0; which < std::size(all); ++which) {
        SCOPED_TRACE("options " + std::to_string(which));
        Decoder device(chain(trie, all[which], 7), true);
        Decoder host(chain(trie, all[which], 7), false);
        std::mt19937 rng(5);
        for (unsigned round = 0; round < rounds(10); ++round) {
            const Tokens prompt = random_prompt(rng);
            device.prefill(prompt);
            host.prefill(prompt);
            ASSERT_EQ(device.next(24), host.next(24));
        }
        EXPECT_EQ(state_of(device.trie()).n_applied, 0U);
    }
}

INSTANTIATE_TEST_SUITE_P(With, GraphPartOf, ::testing::ValuesIn(kKinds), [](const auto & info) {
    return std::string(info.param.name);
});

}  // namespace
}  // namespace token_trie::test
