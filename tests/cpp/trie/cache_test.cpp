#include "trie/cache.h"

#include "support.h"

namespace token_trie::test {
namespace {

std::string payload_number(std::size_t i) { return payload_of({{"leaf", {static_cast<Token>(i)}}}); }

std::shared_ptr<const Trie> get(Cache & cache, std::string_view json) { return cache.get(json, std::nullopt, 0); }

TEST(Cache, TheSamePayloadIsTheSameTrie) {
    Cache cache;
    const auto first = get(cache, payload_number(1));
    const auto other = get(cache, payload_number(2));
    EXPECT_EQ(get(cache, payload_number(1)), first);
    EXPECT_NE(other, first);
    const Cache::Stats stats = cache.stats();
    EXPECT_EQ(stats.misses, 2U);
    EXPECT_EQ(stats.hits, 1U);
    EXPECT_EQ(stats.evictions, 0U);
    EXPECT_EQ(stats.entries, 2U);
    EXPECT_EQ(stats.bytes, first->total_bytes() + other->total_bytes());
}

TEST(Cache, ThePathBelongsToTheKey) {
    Cache cache;
    const std::string json = R"({"descriptors": [{"path": "p", "leaves": [{"name": "a", "tokens": [1]}]},
                                                 {"path": "q", "leaves": [{"name": "b", "tokens": [2]}]}]})";
    const auto all = get(cache, json);
    const auto p = cache.get(json, "p", 0);
    const auto q = cache.get(json, "q", 0);
    EXPECT_EQ(all->n_leaves(), 2U);
    EXPECT_EQ(p->name(0), "a");
    EXPECT_EQ(q->name(0), "b");
    EXPECT_EQ(cache.get(json, "p", 0), p);
    EXPECT_EQ(cache.stats().entries, 3U);
}

TEST(Cache, The129thEvictsTheOneUsedLongestAgo) {
    Cache cache;
    const auto oldest = get(cache, payload_number(0));
    const auto second = get(cache, payload_number(1));
    for (std::size_t i = 2; i < Cache::kCapacity; ++i) {
        get(cache, payload_number(i));
    }
    EXPECT_EQ(cache.stats().entries, 128U);
    EXPECT_EQ(cache.stats().evictions, 0U);

    EXPECT_EQ(get(cache, payload_number(0)), oldest);  // now the second is the one used longest ago
    get(cache, payload_number(Cache::kCapacity));
    EXPECT_EQ(cache.stats().entries, 128U);
    EXPECT_EQ(cache.stats().evictions, 1U);
    EXPECT_EQ(get(cache, payload_number(0)), oldest);
    EXPECT_NE(get(cache, payload_number(1)), second);
    EXPECT_EQ(second->n_leaves(), 1U) << "who holds an evicted trie keeps it";
}

TEST(Cache, ClearEmptiesItAndKeepsTheCounts) {
    Cache cache;
    const auto before = get(cache, payload_number(1));
    get(cache, payload_number(1));
    cache.clear();
    EXPECT_EQ(cache.stats().entries, 0U);
    EXPECT_EQ(cache.stats().bytes, 0U);
    EXPECT_EQ(cache.stats().hits, 1U);
    EXPECT_NE(get(cache, payload_number(1)), before);
}

TEST(Cache, ARefusedPayloadIsNotKept) {
    Cache cache;
    const std::string broken = payload_number(1).substr(1);
    EXPECT_THROW(get(cache, broken), Error);
    EXPECT_THROW(get(cache, broken), Error);
    EXPECT_EQ(cache.stats().entries, 0U);
    EXPECT_EQ(cache.stats().misses, 2U);
}

TEST(Cache, AHitIsStillRefusedByASmallerVocabularyNamingThePlace) {
    Cache cache;
    const auto trie = cache.get(payload_number(300), std::nullopt, 1000);
    EXPECT_EQ(message_of([&] { cache.get(payload_number(300), std::nullopt, 300); }),
              "descriptors[0].leaves[0].tokens[0]: 300 is outside the vocabulary (300 tokens)");
    EXPECT_EQ(cache.get(payload_number(300), std::nullopt, 301), trie);
}

TEST(Cache, APayloadByPathIsReadOnceAndRefusedByASmallerVocabulary) {
    Cache cache;
    const std::string json = R"({"descriptors": [{"path": "p", "leaves": [{"name": "a", "tokens": [1]}]},
                                                 {"path": "q", "leaves": [{"name": "b", "tokens": [0]}]}]})";
    const auto get = [&](std::int32_t n_vocab) { return cache.get_paths(json, n_vocab); };
    const TrieSets first = get(0);
    EXPECT_EQ(cache.stats().hits, 0U);
    EXPECT_EQ(get(2), first);
    EXPECT_EQ(cache.stats().hits, 2U);
    EXPECT_EQ(message_of([&] { get(1); }),
              "descriptors[0].leaves[0].tokens[0]: 1 is outside the vocabulary (1 tokens)");
    EXPECT_EQ(get(0), first);
    cache.clear();
    EXPECT_NE(get(0), first);
}

}  // namespace
}  // namespace token_trie::test
