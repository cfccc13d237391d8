#include "stream_fixture.h"

#include <algorithm>

// Lists without repeats, drawn by a sampler and by a stream: 1,000 random sets, up to the whole of each.
namespace token_trie::test {
namespace {

const Token kComma = bytes(",")[0];

struct RandomList {
    explicit RandomList(unsigned seed, const std::set<Tokens> & all) {
        std::mt19937 rng(seed);
        for (const Tokens & member : all) {
            (rng() % 4 == 0 && out.size() + 1 < all.size() ? out : left).insert(member);
        }
        std::vector<Leaf> leaves;
        for (const Tokens & member : all) {
            leaves.push_back({std::to_string(leaves.size()), member});
            if (out.count(member) > 0) {
                options.exclude.push_back(leaves.back().name);
            }
        }
        trie = trie_of(leaves);
        options.on_complete = OnComplete::restart;
        options.end_tokens = {kTinyEnd};
        options.separator = {kComma};
        options.unique = true;
        options.min_items = static_cast<std::int32_t>(1 + rng() % left.size());
    }

    void expect_holds(const Tokens & text) const {
        std::set<Tokens> seen;
        Tokens item;
        for (Tokens rest = text; !rest.empty(); rest.erase(rest.begin())) {
            if (rest.front() != kComma) {
                item.push_back(rest.front());
                if (rest.size() > 1) {
                    continue;
                }
            }
            EXPECT_TRUE(left.count(item) > 0) << "excluded, or no member";
            EXPECT_TRUE(seen.insert(item).second) << "a repeat";
            item.clear();
        }
        EXPECT_GE(seen.size(), static_cast<std::size_t>(options.min_items));
    }

    std::set<Tokens> left, out;
    std::shared_ptr<const Trie> trie;
    FollowSet::Options options;
};

class List : public StreamTest {};

TEST_F(List, OfAStreamHasNoRepeatAndNothingExcluded) {
    const Opened opened = open();
    for (unsigned seed = 1; seed <= 1000; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const RandomList list(seed, random_byte_members(rng));
        opened->prefill(kPrompt);
        opened->set_sampling(seeded(seed));
        set(*opened, list.trie, Mode::sampled, list.options);
        const StreamOutput out = run(opened, 240, 3);
        ASSERT_EQ(stop_of(opened), Stop::complete);
        list.expect_holds(out.tokens());
    }
}

TEST_F(List, OfASamplerHasNoRepeatAndNothingExcluded) {
    for (unsigned seed = 1; seed <= 1000; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const RandomList list(seed, random_byte_members(rng));
        Cursor cursor(list.trie, std::make_shared<const FollowSet>(*list.trie, list.options));
        const Sampler sampler(make_sampler(std::move(cursor), Mode::sampled));
        Tokens text;
        for (;;) {
            std::vector<llama_token_data> data;
            data.reserve(kTinyVocab);
            for (Token token = 0; token < kTinyVocab; ++token) {
                data.push_back({token, 1, 0});
            }
            llama_token_data_array candidates = {data.data(), data.size(), -1, false};
            llama_sampler_apply(sampler.get(), &candidates);
            ASSERT_GT(candidates.size, 0U);
            ASSERT_LT(candidates.size, data.size()) << "a dead end";
            const Token token = candidates.data[rng() % candidates.size].id;
            llama_sampler_accept(sampler.get(), token);
            if (token == kTinyEnd) {
                break;
            }
            text.push_back(token);
        }
        EXPECT_EQ(view(sampler.get()).counts.n_escaped, 0U);
        EXPECT_EQ(view(sampler.get()).counts.n_restored, 0U);
        list.expect_holds(text);
    }
}

TEST_F(List, OfASamplerThatWasForgottenOpenEnds) {
    const auto trie = trie_of({{"a", bytes("ab")}});
    FollowSet::Options options{OnComplete::restart, {kTinyEnd}, {kComma}, 0};
    options.max_span = 10;
    const CapturedLog log;
    const Sampler sampler(make_sampler(Cursor(trie, std::make_shared<const FollowSet>(*trie, options)), Mode::sampled));
    for (int round = 0; round < 2; ++round) {
        llama_sampler_reset(sampler.get());
        for (const Token token : bytes("ab,ab,ab,ab")) {
            llama_sampler_accept(sampler.get(), token);
        }
        EXPECT_EQ(view(sampler.get()).counts.n_closed, static_cast<std::uint64_t>(round) + 1);
        EXPECT_EQ(view(sampler.get()).cursor->allowed().only(), kTinyEnd);
        EXPECT_EQ(view(sampler.get()).cursor->ending(), Ending::max_span);
    }
}

TEST_F(List, WithoutEndTokensIsNotEndedByItsLength) {
    const auto trie = trie_of({{"a", bytes("a")}, {"b", bytes("b")}, {"c", bytes("c")}});
    FollowSet::Options options{OnComplete::restart, {}, {kComma}, 0};
    options.unique = true;
    options.max_span = 1;
    const Sampler sampler(make_sampler(Cursor(trie, std::make_shared<const FollowSet>(*trie, options)), Mode::sampled));
    for (const Token token : bytes("a,b")) {
        llama_sampler_accept(sampler.get(), token);
    }
    EXPECT_EQ(view(sampler.get()).counts.n_closed, 0U);
    EXPECT_EQ(view(sampler.get()).cursor->allowed().only(), kComma);
    for (const Token token : bytes(",c")) {
        llama_sampler_accept(sampler.get(), token);
    }
    EXPECT_EQ(view(sampler.get()).counts.n_escaped, 0U);
    EXPECT_EQ(view(sampler.get()).cursor->ending(), Ending::none_left);
}

}  // namespace
}  // namespace token_trie::test
