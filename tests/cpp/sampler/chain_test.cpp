#include "support.h"

#include <limits>

// In a chain with llama.cpp's own samplers behind it: whatever they are, what is selected is allowed.
namespace token_trie::test {
namespace {

constexpr std::int32_t kVocabSize = 49152;
constexpr std::uint32_t kSeed = 42;

struct Next {
    const char * name;
    llama_sampler * (*make)();
    bool selects;
};

const Next kNext[] = {
    {"top_k", [] { return llama_sampler_init_top_k(5); }, false},
    {"top_p", [] { return llama_sampler_init_top_p(0.5F, 1); }, false},
    {"min_p", [] { return llama_sampler_init_min_p(0.3F, 1); }, false},
    {"typical", [] { return llama_sampler_init_typical(0.5F, 1); }, false},
    {"temp", [] { return llama_sampler_init_temp(0.7F); }, false},
    {"temp_0", [] { return llama_sampler_init_temp(0.0F); }, false},
    {"xtc", [] { return llama_sampler_init_xtc(1.0F, 0.05F, 1, kSeed); }, false},
    {"top_n_sigma", [] { return llama_sampler_init_top_n_sigma(1.0F); }, false},
    {"mirostat", [] { return llama_sampler_init_mirostat(kVocabSize, kSeed, 5.0F, 0.1F, 100); }, true},
    {"mirostat_v2", [] { return llama_sampler_init_mirostat_v2(kSeed, 5.0F, 0.1F); }, true},
    {"dist", [] { return llama_sampler_init_dist(kSeed); }, true},
    {"greedy", [] { return llama_sampler_init_greedy(); }, true},
};

void PrintTo(const Next & next, std::ostream * out) { *out << next.name; }

class Chain : public ::testing::TestWithParam<Next> {
   protected:
    // [trie, the parameter, a selector where that is none]
    static Sampler chain_of(std::shared_ptr<const Trie> trie, Mode mode) {
        Sampler chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
        llama_sampler_chain_add(chain.get(), sampler_of(std::move(trie), mode).release());
        llama_sampler_chain_add(chain.get(), GetParam().make());
        if (!GetParam().selects) {
            llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(kSeed));
        }
        return chain;
    }
};

TEST_P(Chain, SelectsAnAllowedTokenAtEveryStep) {
    const CapturedLog quiet;
    for (unsigned seed = 1; seed <= 6; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const auto trie = unnamed_trie_of(random_members(rng, seed == 1 ? 1 : std::size_t{seed} * 20, 3, kVocabSize));
        const Mode mode = seed % 2 == 0 ? Mode::greedy : Mode::sampled;
        const Sampler chain = chain_of(trie, mode);
        std::vector<float> logits = random_logits(rng, kVocabSize);
        if (seed >= 5) {  // upstream took everything away
            std::fill(logits.begin(), logits.end(), -std::numeric_limits<float>::infinity());
        }
        const llama_sampler * sampler = llama_sampler_chain_get(chain.get(), 0);
        for (int step = 0; step < 4; ++step) {
            const AllowedSet allowed = view(sampler).cursor->allowed();
            if (allowed.everything) {
                break;
            }
            Candidates candidates = Candidates::at_own_index(logits);
            llama_sampler_apply(chain.get(), candidates.get());
            ASSERT_GE(candidates->selected, 0);
            ASSERT_TRUE(allowed.contains(candidates.selected()));
            llama_sampler_accept(chain.get(), candidates.selected());
        }
        EXPECT_EQ(state_of(sampler).n_escaped, 0U);
        EXPECT_EQ(state_of(sampler).state, TOKEN_TRIE_COMPLETE);
    }
}

INSTANTIATE_TEST_SUITE_P(Then, Chain, ::testing::ValuesIn(kNext), [](const auto & info) {
    return std::string(info.param.name);
});

TEST(Chain, AClonedChainGoesOnFromTheSamePlace) {
    const Sampler chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    llama_sampler_chain_add(chain.get(),
                            sampler_of(trie_of({{"THINK", {100, 101}}, {"EXECUTE", {200}}}), Mode::greedy).release());
    llama_sampler_accept(chain.get(), 100);
    const Sampler clone(llama_sampler_clone(chain.get()));
    llama_sampler_reset(chain.get());
    for (const auto & [sampler, expected] : {std::pair(chain.get(), 200), std::pair(clone.get(), 101)}) {
        Candidates candidates(Candidates::Pairs{{7, 9.0F}, {101, 3.0F}, {200, 2.0F}});
        llama_sampler_apply(sampler, candidates.get());
        EXPECT_EQ(candidates.ids(), Tokens({expected}));
    }
}

}  // namespace
}  // namespace token_trie::test
