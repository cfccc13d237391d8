#pragma once

#include "batch/batch.h"
#include "scorer_fixture.h"
#include "stream/stream.h"

namespace token_trie::test {

inline Ticket submit(const std::shared_ptr<Batch> & batch, Request request) {
    return Batch::Call(batch).submit(std::move(request));
}

// The answer of a ticket, or the next that there is; none: ticket 0.
inline Answer take(Batch & batch, Ticket wanted = Batch::kAny) {
    Answer out;
    const Batch::Found found = batch.next(wanted, -1, out);
    EXPECT_NE(found, Batch::Found::not_yet);
    return out;
}

inline std::map<Ticket, Answer> take_all(Batch & batch) {
    std::map<Ticket, Answer> out;
    for (Answer taken = take(batch); taken.info.ticket != 0; taken = take(batch)) {
        EXPECT_TRUE(out.emplace(taken.info.ticket, taken).second);
    }
    return out;
}

inline std::shared_ptr<const Cursor> shared_cursor_of(const std::set<Tokens> & members,
                                                      FollowSet::Options options = {
                                                          OnComplete::end, {kTinyEnd}, {}, 0}) {
    return std::make_shared<const Cursor>(cursor_of(unnamed_trie_of(members), std::move(options)));
}

inline Request request(Tokens prompt, const std::set<Tokens> & members, Query::Mode mode = Query::Mode::greedy) {
    Request out;
    out.prompt = std::move(prompt);
    out.cursor = shared_cursor_of(members);
    out.mode = mode;
    out.sampling.temperature = 1;
    return out;
}

// The same, but begun behind "->", which is forced when max_before tokens are out.
inline std::shared_ptr<const Cursor> thinking(const std::set<Tokens> & members, std::int64_t max_before) {
    FollowSet::Options options = {OnComplete::end, {kTinyEnd}, {}, 0};
    options.start_after = bytes("->");
    options.max_before = max_before;
    options.not_before = {kTinyEnd};
    return shared_cursor_of(members, options);
}

// Free text, from nothing to go on from but the prompt.
inline Request text_behind(Tokens prompt, std::size_t max_tokens) {
    Request out;
    out.prompt = std::move(prompt);
    out.mode = Query::Mode::text;
    out.text.max_tokens = max_tokens;
    return out;
}

inline const std::set<Tokens> kActions = {{kRead}, {kRead, kFile}, {kSend, kMail}, {kSend, kFile, kFile}};

class BatchTest : public WithTinyModel {
   protected:
    static std::shared_ptr<Batch> open(std::uint32_t n_ctx = 512,
                                       Scheduler::Options options = {},
                                       TinyKind kind = TinyKind::attention) {
        return std::make_shared<Batch>(maker_of(n_ctx, kind), options);
    }
};

// A batch on each kind of memory: cells, states, and both.
class BatchOn : public BatchTest, public ::testing::WithParamInterface<TinyKind> {
   protected:
    static std::shared_ptr<Batch> open(std::uint32_t n_ctx = 512, Scheduler::Options options = {}) {
        return BatchTest::open(n_ctx, options, GetParam());
    }
    // Searches on states look at as many nodes together as there are ids for.
    static bool has_same_bounds(const Request & asked) {
        return asked.mode != Query::Mode::best || !has_states(tiny_model(GetParam()));
    }
};

inline std::string name_of_kind(const ::testing::TestParamInfo<TinyKind> & info) {
    return info.param == TinyKind::attention ? "Attention" : info.param == TinyKind::recurrent ? "Recurrent" : "Hybrid";
}
inline auto kinds_of_memory() { return ::testing::Values(TinyKind::attention, TinyKind::recurrent, TinyKind::hybrid); }

// Prompts that begin alike, some of them more than others, and differ in length.
inline Request random_request(std::mt19937 & rng) {
    const auto below = [&rng](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(rng); };
    const auto text = [&](std::size_t seed, std::size_t n) {
        std::mt19937 same(static_cast<unsigned>(seed));
        std::string out;
        for (std::size_t i = 0; i < n; ++i) {
            out += static_cast<char>('a' + same() % 26);
        }
        return out;
    };
    std::string prompt;
    if (below(3) > 0) {
        prompt += text(1 + below(2), 40);
    }
    if (below(2) > 0) {
        prompt += text(10 + below(3), 30);
    }
    prompt += text(100 + below(1000), 1 + below(below(8) == 0 ? 300 : 20));
    const std::set<Tokens> members = random_texts(rng, 1 + below(30), 1 + below(5), 8);
    Request out = request(bytes(prompt), members, static_cast<Query::Mode>(below(4)));
    if (below(4) == 0) {
        out = text_behind(bytes(prompt), below(30));
        out.text.stop_strings = {"zz", std::string(1 + below(2), static_cast<char>('a' + below(26)))};
        if (below(2) == 0) {
            out.text.grammar = "root ::= [a-z]+ \".\" [A-Z]*";
        } else if (below(2) == 0) {
            out.cursor = thinking(members, static_cast<std::int64_t>(below(20)));
        }
        out.sampling.temperature = static_cast<float>(below(2));
    } else if (out.is_decoded() && below(3) == 0) {
        out.cursor = thinking(members, static_cast<std::int64_t>(below(20)));
        out.sampling.temperature = static_cast<float>(below(2));
    }
    out.sampling.seed = static_cast<std::uint32_t>(below(1000));
    out.search.leaf_end = static_cast<LeafEnd>(below(3));
    out.search.n_best = 1 + below(3);
    out.search.beam_width = below(4) == 0 ? 1 + below(4) : 0;
    return out;
}

// The answers of a stream that has nobody beside it, after an empty memory.
class Alone {
   public:
    explicit Alone(TinyKind kind = TinyKind::attention) : kind_(kind) {}

    Answer decide(const Request & asked) {
        Stream stream(std::make_unique<Sequence>(maker_of(1024, kind_)), {});
        stream.prefill(asked.prompt);
        return stream.answer(asked);
    }

   private:
    TinyKind kind_;
};

inline void expect_near(double a, double b) {
    if (a != b) {  // as infinite ones are
        EXPECT_NEAR(a, b, kNear);
    }
}

// has_same_bounds: of what a search has not looked at, which depends on how many nodes it may look at together.
inline void expect_same(const Answer & answer, const Answer & alone, bool has_same_bounds = true) {
    ASSERT_EQ(answer.info.status, TOKEN_TRIE_OK) << answer.message;
    EXPECT_EQ(answer.tokens, alone.tokens);
    EXPECT_EQ(answer.info.stop, alone.info.stop);
    EXPECT_EQ(answer.info.stop_string, alone.info.stop_string);
    EXPECT_EQ(answer.info.n_free, alone.info.n_free);
    ASSERT_EQ(answer.leaves.size(), alone.leaves.size());
    for (std::size_t i = 0; i < answer.leaves.size(); ++i) {
        EXPECT_EQ(answer.leaves[i], alone.leaves[i]);
        EXPECT_NEAR(answer.logprobs[i], alone.logprobs[i], kNear);
    }
    ASSERT_EQ(answer.logprobs.size(), alone.logprobs.size());
    for (std::size_t i = 0; i < answer.logprobs.size(); ++i) {
        EXPECT_NEAR(answer.logprobs[i], alone.logprobs[i], kNear);
    }
    if (has_same_bounds) {
        expect_near(answer.info.gap, alone.info.gap);
        expect_near(answer.info.rival_max, alone.info.rival_max);
        expect_near(answer.info.mass_max, alone.info.mass_max);
    }
    EXPECT_EQ(answer.info.n_branches, alone.info.n_branches);
    EXPECT_EQ(answer.info.n_forced, alone.info.n_forced);
}

}  // namespace token_trie::test
