#include "abi/guard.h"
#include "llama/vocab.h"
#include "support.h"
#include "trie/cache.h"

#include <cstddef>
#include <cstring>

namespace token_trie::test {
namespace {

// Layouts that programs compiled earlier rely on; they may grow at the end and never move.
static_assert(sizeof(void *) == 8, "the layouts below are those of 64-bit systems");
static_assert(sizeof(token_trie_params) == 112 && offsetof(token_trie_params, size) == 0 &&
              offsetof(token_trie_params, mode) == 8 && offsetof(token_trie_params, on_complete) == 12 &&
              offsetof(token_trie_params, path) == 16 && offsetof(token_trie_params, end_tokens) == 24 &&
              offsetof(token_trie_params, n_end_tokens) == 32 && offsetof(token_trie_params, separator) == 40 &&
              offsetof(token_trie_params, n_separator) == 48 && offsetof(token_trie_params, max_items) == 56 &&
              offsetof(token_trie_params, min_items) == 60 && offsetof(token_trie_params, max_span) == 64 &&
              offsetof(token_trie_params, unique) == 68 && offsetof(token_trie_params, exclude) == 72 &&
              offsetof(token_trie_params, n_exclude) == 80 && offsetof(token_trie_params, start_after) == 88 &&
              offsetof(token_trie_params, n_start_after) == 96 && offsetof(token_trie_params, max_before) == 104);
static_assert(sizeof(token_trie_sampler_state) == 64 && offsetof(token_trie_sampler_state, size) == 0 &&
              offsetof(token_trie_sampler_state, state) == 8 && offsetof(token_trie_sampler_state, n_items) == 12 &&
              offsetof(token_trie_sampler_state, leaf_name) == 16 && offsetof(token_trie_sampler_state, leaf) == 24 &&
              offsetof(token_trie_sampler_state, n_escaped) == 32 &&
              offsetof(token_trie_sampler_state, n_restored) == 40 &&
              offsetof(token_trie_sampler_state, n_closed) == 48 && offsetof(token_trie_sampler_state, ending) == 56);
static_assert(sizeof(token_trie_cache_stats) == 56 && offsetof(token_trie_cache_stats, size) == 0 &&
              offsetof(token_trie_cache_stats, hits) == 8 && offsetof(token_trie_cache_stats, misses) == 16 &&
              offsetof(token_trie_cache_stats, evictions) == 24 && offsetof(token_trie_cache_stats, entries) == 32 &&
              offsetof(token_trie_cache_stats, capacity) == 40 && offsetof(token_trie_cache_stats, bytes) == 48);

// The part of llama_sampler_i that is the same in every llama.cpp we support.
static_assert(offsetof(llama_sampler_i, name) == 0 * sizeof(void *) &&
              offsetof(llama_sampler_i, accept) == 1 * sizeof(void *) &&
              offsetof(llama_sampler_i, apply) == 2 * sizeof(void *) &&
              offsetof(llama_sampler_i, reset) == 3 * sizeof(void *) &&
              offsetof(llama_sampler_i, clone) == 4 * sizeof(void *) &&
              offsetof(llama_sampler_i, free) == 5 * sizeof(void *));
static_assert(sizeof(llama_token_data) == 12 && offsetof(llama_token_data_array, size) == 8 &&
              offsetof(llama_token_data_array, selected) == 16 && offsetof(llama_token_data_array, sorted) == 24);

const std::string kPayload = payload_of({{"READ", {7}}, {"READ_FILE", {7, 8}}});

Sampler init(const char * json, int mode = TOKEN_TRIE_GREEDY, const llama_vocab * vocab = nullptr) {
    return Sampler(llama_sampler_init_token_trie(vocab, json, mode));
}

const token_trie_set * payload_set() {
    static const SetHandle set = set_of(kPayload);
    return set.get();
}

Sampler init_ext(const token_trie_params & params, const llama_vocab * vocab = nullptr) {
    return Sampler(llama_sampler_init_token_trie_set(vocab, payload_set(), &params));
}

// The message of a refused call; what was cached before stands as it stood.
std::string refusal(const std::function<Sampler()> & make) {
    payload_set();  // which is not of the call
    const std::uint64_t entries = Cache::shared().stats().entries;
    EXPECT_EQ(make(), nullptr);
    EXPECT_EQ(Cache::shared().stats().entries, entries);
    return token_trie_last_error();
}

TEST(Abi, APayloadBecomesASamplerThatTellsWhereItStands) {
    const Sampler sampler = init(kPayload.c_str());
    ASSERT_NE(sampler, nullptr) << token_trie_last_error();
    token_trie_sampler_state state = state_of(sampler.get());
    EXPECT_EQ(state.state, TOKEN_TRIE_CONSTRAINED);
    EXPECT_EQ(state.n_items, 0);
    EXPECT_EQ(state.leaf, -1);
    EXPECT_EQ(state.leaf_name, nullptr);

    llama_sampler_accept(sampler.get(), 7);
    llama_sampler_accept(sampler.get(), 8);
    state = state_of(sampler.get());
    EXPECT_EQ(state.state, TOKEN_TRIE_COMPLETE);
    EXPECT_EQ(state.n_items, 1);
    EXPECT_EQ(state.leaf, 1);
    EXPECT_STREQ(state.leaf_name, "READ_FILE");
}

TEST(Abi, APayloadWithNoLeafIsNull) {
    EXPECT_EQ(refusal([] { return init(R"({"descriptors": []})"); }),
              "payload: no leaf with tokens: a set needs at least one");
}

TEST(Abi, BrokenJsonIsNull) {
    EXPECT_EQ(refusal([] { return init("{\"descriptors\""); }).rfind("descriptors: broken JSON at byte 15", 0), 0U)
        << token_trie_last_error();
}

TEST(Abi, AnUnknownModeIsNull) {
    for (const int mode : {-1, 2, 1 << 30}) {
        EXPECT_EQ(refusal([mode] { return init(kPayload.c_str(), mode); }),
                  "mode: " + std::to_string(mode) + " is not in [0, 1]");
    }
}

class AbiVocab : public WithVocab {};

TEST_F(AbiVocab, AnIdOutsideTheVocabularyIsNull) {
    const std::string n = std::to_string(llama_vocab_n_tokens(vocab));
    const std::string json = payload_of({{"a", {1}}, {"b", {2}}, {"c", {3}}, {"d", {4, 300000}}});
    EXPECT_EQ(refusal([&] { return init(json.c_str(), TOKEN_TRIE_GREEDY, vocab); }),
              "descriptors[0].leaves[3].tokens[1]: 300000 is outside the vocabulary (" + n + " tokens)");
    EXPECT_NE(init(json.c_str()), nullptr) << "null vocab, no range";
    EXPECT_EQ(refusal([&] { return init(json.c_str(), TOKEN_TRIE_GREEDY, vocab); }),
              "descriptors[0].leaves[3].tokens[1]: 300000 is outside the vocabulary (" + n + " tokens)")
        << "also when cached";
}

TEST_F(AbiVocab, EndTokensAreTheVocabulariesUnlessGiven) {
    auto params = sized<token_trie_params>();
    params.on_complete = TOKEN_TRIE_END;
    const Sampler sampler = init_ext(params, vocab);
    ASSERT_NE(sampler, nullptr) << token_trie_last_error();
    llama_sampler_accept(sampler.get(), 7);
    llama_sampler_accept(sampler.get(), llama_vocab_eos(vocab));
    EXPECT_EQ(state_of(sampler.get()).state, TOKEN_TRIE_COMPLETE);

    const llama_token outside = llama_vocab_n_tokens(vocab);
    params.end_tokens = &outside;
    params.n_end_tokens = 1;
    EXPECT_EQ(refusal([&] { return init_ext(params, vocab); }).rfind("end_tokens[0]: ", 0), 0U);
}

TEST_F(AbiVocab, APayloadMadeForAnotherVocabularyIsNull) {
    const std::string other = "sha256:" + std::string(64, '0');
    const std::string json =
        R"({"vocab": ")" + other + R"(", "descriptors": [{"leaves": [{"name": "a", "tokens": [1]}]}]})";
    EXPECT_EQ(init(json.c_str(), TOKEN_TRIE_GREEDY, vocab), nullptr);
    EXPECT_EQ(
        std::string(token_trie_last_error()).rfind("vocab: the set was made for another vocabulary (" + other + ")", 0),
        0U);
}

TEST(Abi, OptionsReachTheCursor) {
    const llama_token end = 2;
    const llama_token separator[] = {3, 4};
    auto params = sized<token_trie_params>();
    params.mode = TOKEN_TRIE_SAMPLED;
    params.on_complete = TOKEN_TRIE_RESTART;
    params.end_tokens = &end;
    params.n_end_tokens = 1;
    params.separator = separator;
    params.n_separator = 2;
    params.max_items = 2;
    const Sampler sampler = init_ext(params);
    ASSERT_NE(sampler, nullptr) << token_trie_last_error();
    for (const Token token : {7, 3, 4, 7, 8, 2}) {
        llama_sampler_accept(sampler.get(), token);
    }
    const token_trie_sampler_state state = state_of(sampler.get());
    EXPECT_EQ(state.state, TOKEN_TRIE_COMPLETE);
    EXPECT_EQ(state.n_items, 2);
    EXPECT_STREQ(state.leaf_name, "READ_FILE");
    EXPECT_EQ(state.n_escaped, 0U);
}

TEST(Abi, OptionsOfAListReachTheCursor) {
    const llama_token end = 2;
    const llama_token separator = 3;
    const char * const names[] = {"READ_FILE"};
    auto params = sized<token_trie_params>();
    params.on_complete = TOKEN_TRIE_RESTART;
    params.end_tokens = &end;
    params.n_end_tokens = 1;
    params.separator = &separator;
    params.n_separator = 1;
    const auto n_escaped_after = [&](const Tokens & tokens) {
        const Sampler sampler = init_ext(params);
        EXPECT_NE(sampler, nullptr) << token_trie_last_error();
        for (const Token token : tokens) {
            llama_sampler_accept(sampler.get(), token);
        }
        return state_of(sampler.get()).n_escaped;
    };
    EXPECT_EQ(n_escaped_after({7, 3, 7, 8, 2}), 0U);
    params.min_items = 3;
    EXPECT_EQ(n_escaped_after({7, 3, 7, 8, 2}), 1U);
    params.min_items = 0;
    params.unique = 1;
    EXPECT_EQ(n_escaped_after({7, 3, 7, 8, 2}), 0U);
    EXPECT_EQ(n_escaped_after({7, 3, 7, 3}), 1U);
    params.exclude = names;
    params.n_exclude = 1;
    EXPECT_EQ(n_escaped_after({7, 2}), 0U);
    EXPECT_EQ(n_escaped_after({7, 3}), 1U) << "no other member is left";
}

TEST(Abi, BadArgumentsAreRefusedNamingThem) {
    EXPECT_EQ(refusal([] { return init(nullptr); }), "trie_descriptor_json: null");
    EXPECT_EQ(refusal([] { return Sampler(llama_sampler_init_token_trie_set(nullptr, payload_set(), nullptr)); }),
              "params: null");
    const auto with = [](const std::function<void(token_trie_params &)> & change) {
        return refusal([&] {
            auto params = sized<token_trie_params>();
            change(params);
            return init_ext(params);
        });
    };
    EXPECT_EQ(refusal([] {
                  const auto params = sized<token_trie_params>();
                  return Sampler(llama_sampler_init_token_trie_set(nullptr, nullptr, &params));
              }),
              "set: null");
    EXPECT_EQ(with([](auto & p) { p.size = 0; }), "params.size: 0 is not sizeof(*params)");
    EXPECT_EQ(with([](auto & p) { p.size = SIZE_MAX; }), "params.size: 18446744073709551615 is not sizeof(*params)");
    EXPECT_EQ(with([](auto & p) { p.mode = 7; }), "mode: 7 is not in [0, 1]");
    EXPECT_EQ(with([](auto & p) { p.on_complete = 3; }), "on_complete: 3 is not in [0, 2]");
    EXPECT_EQ(with([](auto & p) { p.n_end_tokens = 2; }), "end_tokens: null, with n_end_tokens = 2");
    EXPECT_EQ(with([](auto & p) { p.n_separator = 1; }), "separator: null, with n_separator = 1");
    const llama_token token = 1;
    EXPECT_EQ(with([&](auto & p) {
                  p.end_tokens = &token;
                  p.n_end_tokens = SIZE_MAX;
              }),
              "n_end_tokens: 18446744073709551615; at most 65535");
    EXPECT_EQ(with([](auto & p) { p.on_complete = TOKEN_TRIE_END; }),
              "on_complete end needs end_tokens or a vocabulary that has some");
    EXPECT_EQ(with([](auto & p) { p.n_exclude = 1; }), "exclude: null, with n_exclude = 1");
    EXPECT_EQ(with([](auto & p) {
                  static const char * const names[] = {"READ", nullptr};
                  p.exclude = names;
                  p.n_exclude = 2;
              }),
              "exclude[1]: null");
    EXPECT_EQ(with([](auto & p) { p.unique = 1; }), "min_items and unique go with on_complete restart alone");
    EXPECT_EQ(with([](auto & p) { p.min_items = 1; }), "min_items and unique go with on_complete restart alone");
    EXPECT_EQ(with([](auto & p) { p.path = "nowhere"; }), R"(path: no descriptor has the path "nowhere"; there is "")");
}

TEST(Abi, StateAndStatsAreRefusedWithoutASizeOrASamplerOfOurs) {
    const Sampler sampler = init(kPayload.c_str());
    token_trie_sampler_state state{};
    EXPECT_EQ(token_trie_sampler_get_state(sampler.get(), nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "state: null");
    EXPECT_EQ(token_trie_sampler_get_state(sampler.get(), &state), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "state.size: 0 is not sizeof(*state)");
    state.size = sizeof state;
    EXPECT_EQ(token_trie_sampler_get_state(nullptr, &state), TOKEN_TRIE_ERROR_ARGUMENT);
    const Sampler chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    EXPECT_EQ(token_trie_sampler_get_state(chain.get(), &state), TOKEN_TRIE_ERROR_ARGUMENT);
    EXPECT_STREQ(token_trie_last_error(), "sampler: not one that token-trie made (a chain is not; pass its member)");
    EXPECT_EQ(token_trie_cache_get_stats(nullptr), TOKEN_TRIE_ERROR_ARGUMENT);
}

// A caller compiled with a shorter or longer struct than ours.
TEST(Abi, StructsMayBeOfAnotherSize) {
    struct Longer {
        token_trie_params params;
        std::uint64_t later[4];
    } longer{sized<token_trie_params>(), {}};
    longer.params.size = sizeof longer;
    EXPECT_NE(init_ext(longer.params), nullptr);
    longer.later[2] = 7;
    EXPECT_EQ(init_ext(longer.params), nullptr);
    EXPECT_EQ(std::string(token_trie_last_error()).find("params: sets a member that version "), 0U);
    auto shorter = sized<token_trie_params>();
    shorter.size = offsetof(token_trie_params, on_complete);
    shorter.on_complete = 77;  // beyond its size, so not ours to read
    EXPECT_NE(init_ext(shorter), nullptr);
    auto earlier = sized<token_trie_params>();
    std::memset(&earlier.min_items, 0xff, sizeof earlier - offsetof(token_trie_params, min_items));
    earlier.size = offsetof(token_trie_params, min_items);
    EXPECT_NE(init_ext(earlier), nullptr);

    struct LongerState {
        token_trie_sampler_state state;
        std::uint64_t later;
    } filled{};
    const Sampler sampler = init(kPayload.c_str());
    std::memset(&filled, 0xff, sizeof filled);
    filled.state.size = sizeof filled;
    ASSERT_EQ(token_trie_sampler_get_state(sampler.get(), &filled.state), TOKEN_TRIE_OK);
    EXPECT_EQ(filled.state.size, sizeof filled);
    EXPECT_EQ(filled.state.n_restored, 0U);
    EXPECT_EQ(filled.later, 0U) << "what this library does not know is zero";
    std::memset(&filled, 0xff, sizeof filled);
    filled.state.size = offsetof(token_trie_sampler_state, leaf_name);
    ASSERT_EQ(token_trie_sampler_get_state(sampler.get(), &filled.state), TOKEN_TRIE_OK);
    EXPECT_EQ(filled.state.n_items, 0);
    EXPECT_EQ(filled.state.leaf, -1) << "0xff...: beyond the size given, untouched";
    EXPECT_EQ(filled.state.n_escaped, UINT64_MAX);
}

TEST(Abi, TheCacheTellsAndForgets) {
    token_trie_cache_clear();
    auto before = sized<token_trie_cache_stats>();
    ASSERT_EQ(token_trie_cache_get_stats(&before), TOKEN_TRIE_OK);
    EXPECT_EQ(before.entries, 0U);
    EXPECT_EQ(before.capacity, 128U);

    const Sampler first = init(kPayload.c_str());
    const Sampler second = init(kPayload.c_str());
    EXPECT_EQ(&view(first.get()).cursor->trie(), &view(second.get()).cursor->trie());
    token_trie_cache_stats after = before;
    ASSERT_EQ(token_trie_cache_get_stats(&after), TOKEN_TRIE_OK);
    EXPECT_EQ(after.misses - before.misses, 1U);
    EXPECT_EQ(after.hits - before.hits, 1U);
    EXPECT_EQ(after.entries, 1U);
    EXPECT_GT(after.bytes, 0U);
}

TEST(Abi, ALongMessageIsCutBetweenCharacters) {
    // Two bytes a character, so the limit falls inside one of them in one of the two messages.
    std::string characters;
    for (int i = 0; i < 1000; ++i) {
        characters += "\u00e9";
    }
    for (const std::string shift : {"", "x"}) {
        set_last_error(Status::argument, (shift + characters).c_str());
        const std::string message = last_error();
        EXPECT_GE(message.size(), 1022U);
        EXPECT_LE(message.size(), 1023U);
        EXPECT_EQ(message.substr(message.size() - 2), "\u00e9");
        EXPECT_EQ(last_status(), Status::argument);
    }
}

TEST(Abi, TheLlamaLoadedIsTheOneCompiledAgainst) {
    EXPECT_EQ(token_trie_check_llama(), TOKEN_TRIE_OK) << token_trie_last_error();
}

TEST(Abi, TellsItsVersion) { EXPECT_STREQ(token_trie_version(), TOKEN_TRIE_TEST_VERSION); }

}  // namespace
}  // namespace token_trie::test
