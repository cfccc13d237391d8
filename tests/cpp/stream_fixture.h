#pragma once

#include "stream/stream.h"

#include "tiny_model.h"

#include <stdexcept>

namespace token_trie::test {

// Whole answers after the stream's sequence.
inline Answer answer_of(Stream & stream, const Cursor & cursor, Query::Mode mode) {
    Query query;
    query.cursor = std::make_shared<const Cursor>(cursor);
    query.mode = mode;
    return stream.answer(query);
}

// The steps that one generate passed on.
struct StreamOutput {
    std::vector<Stream::Step> steps;

    Tokens tokens() const {
        Tokens out;
        for (const Stream::Step & step : steps) {
            out.push_back(step.token);
        }
        return out;
    }
    std::string text() const {
        std::string out;
        for (const Stream::Step & step : steps) {
            out += step.text;
        }
        return out;
    }
};

// A stream on a tiny model that has read kPrompt.
class StreamTest : public WithTinyModel {
   protected:
    using Output = StreamOutput;

    static inline const Tokens kPrompt = bytes("Do: ");
    static inline const FollowSet::Options kUntilTheEnd = {OnComplete::end, {kTinyEnd}, {}, 0};

    struct Opened {
        std::unique_ptr<Stream> stream;
        Stream * operator->() const { return stream.get(); }
        Stream & operator*() const { return *stream; }
    };

    static Opened open(const Stream::Options & options = {}) {
        Opened out{std::make_unique<Stream>(std::make_unique<Sequence>(maker_of()), options)};
        out->prefill(kPrompt);
        return out;
    }

    static Sampling seeded(std::int64_t seed, float temperature = 0) {
        Sampling out{};
        out.seed = seed;
        out.temperature = temperature;
        return out;
    }
    static Stream::Options drawing_from(std::uint32_t seed) {
        Stream::Options options;
        options.sampling.seed = seed;
        return options;
    }

    static void set(Stream & stream,
                    std::shared_ptr<const Trie> trie,
                    Mode mode = Mode::greedy,
                    FollowSet::Options options = kUntilTheEnd) {
        auto follow = std::make_shared<const FollowSet>(*trie, std::move(options));
        stream.set_trie(Cursor(std::move(trie), std::move(follow)), mode);
    }

    // By the temperature given, or as the stream draws.
    static StreamOutput run(Stream & stream, std::int32_t max_tokens = 32, std::optional<float> temperature = {}) {
        StreamOutput out;
        if (temperature) {
            stream.set_sampling(seeded(TOKEN_TRIE_SEED_KEEP, *temperature));
        }
        stream.generate(max_tokens, [&](const Stream::Step & step) {
            out.steps.push_back(step);
            return true;
        });
        return out;
    }
    static StreamOutput run(const Opened & opened,
                            std::int32_t max_tokens = 32,
                            std::optional<float> temperature = {}) {
        return run(*opened.stream, max_tokens, temperature);
    }

    static Stop stop_of(const Opened & opened) { return static_cast<Stop>(opened->state().stop); }
    static Cursor cursor_of(const Opened & opened) { return cursor_in(opened->cursor()); }
    static std::string leaf_of(const Opened & opened) {
        const Cursor cursor = cursor_of(opened);
        return cursor.leaf() == kNoLeaf ? "none" : cursor.trie().name(cursor.leaf());
    }

    // Sets over bytes, so that no member holds the end token.
    static std::set<Tokens> random_byte_members(std::mt19937 & rng) {
        std::set<Tokens> out;
        for (const Tokens & member : random_members(rng, 1 + rng() % 12, 6, 4)) {
            Tokens shifted;
            for (const Token token : member) {
                shifted.push_back(bytes("a")[0] + token);
            }
            out.insert(shifted);
        }
        return out;
    }
};

}  // namespace token_trie::test
