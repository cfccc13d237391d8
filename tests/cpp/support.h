#pragma once

#include "cursor/cursor.h"
#include "sampler/sampler.h"
#include "token_trie.h"
#include "trie/trie.h"

#include <gtest/gtest.h>
#include <llama.h>

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Helpers that the tests of several folders share.
namespace token_trie::test {

using Tokens = std::vector<Token>;

// Whether the tests run under a sanitizer, which keeps what was freed and reserves addresses without limit.
constexpr bool kSanitized = TOKEN_TRIE_SANITIZED;

struct Leaf {
    std::string name;
    Tokens tokens;
};

LeafList leaf_list(const std::vector<Leaf> & leaves);
std::shared_ptr<const Trie> trie_of(const std::vector<Leaf> & leaves);
// {"descriptors": [{"leaves": [...]}]}
std::string payload_of(const std::vector<Leaf> & leaves);

// A struct of the ABI, empty but for its size.
template <typename Struct>
Struct sized() {
    Struct out{};
    out.size = sizeof out;
    return out;
}

struct CloseStream {
    void operator()(token_trie_stream * stream) const { token_trie_stream_close(stream); }
};
using Handle = std::unique_ptr<token_trie_stream, CloseStream>;

// The message of the Error that work throws, "" if it throws none.
std::string message_of(const std::function<void()> & work);
// The status of the Error that work throws, ok if it throws none.
Status status_of(const std::function<void()> & work);

// That of a stream or of what decodes, which has one.
inline const Cursor & cursor_in(const std::optional<Cursor> & cursor) {
    if (!cursor) {
        throw std::logic_error("no trie is set");
    }
    return *cursor;
}

// Sequences over few tokens, so that prefixes and repeats abound.
std::set<Tokens> random_members(std::mt19937 & rng, std::size_t n, std::size_t max_length, Token n_tokens);
std::shared_ptr<const Trie> unnamed_trie_of(const std::set<Tokens> & members);

struct FreeSampler {
    void operator()(llama_sampler * sampler) const { llama_sampler_free(sampler); }
};
using Sampler = std::unique_ptr<llama_sampler, FreeSampler>;

struct FreeSet {
    void operator()(token_trie_set * set) const { token_trie_set_free(set); }
};
using SetHandle = std::unique_ptr<token_trie_set, FreeSet>;
// Null on failure.
SetHandle set_of(std::string_view payload, std::int32_t n_vocab = 0, const llama_vocab * vocab = nullptr);

Sampler sampler_of(std::shared_ptr<const Trie> trie, Mode mode, FollowSet::Options options = {});
token_trie_sampler_state state_of(const llama_sampler * sampler);

// Candidates and the array that llama.cpp's samplers work on.
class Candidates {
   public:
    using Pairs = std::vector<std::pair<Token, float>>;

    explicit Candidates(const Pairs & pairs);
    // Tokens 0 .. n, each at its own index, as llama_sampler_sample lays them out.
    static Candidates at_own_index(const std::vector<float> & logits);

    Candidates(Candidates &&) = default;
    Candidates & operator=(Candidates &&) = default;
    Candidates(const Candidates &) = delete;
    Candidates & operator=(const Candidates &) = delete;
    ~Candidates() = default;

    llama_token_data_array * operator->() { return &array_; }
    llama_token_data_array * get() { return &array_; }
    // The candidates that survived, in order.
    Pairs pairs() const;
    Tokens ids() const;
    Token selected() const { return array_.data[array_.selected].id; }

   private:
    std::vector<llama_token_data> data_;
    llama_token_data_array array_{};
};

std::vector<float> random_logits(std::mt19937 & rng, std::size_t n);

// n, or n / 32 on Mesa's driver for the processor, where a pass of a tiny model takes some 16 ms.
unsigned rounds(unsigned n);

// A model of which only the vocabulary is loaded, once a process; see tests/cpp/CMakeLists.txt for where it comes from.
std::string model_path();
const llama_vocab * model_vocab();

// Tests that need the vocabulary; skipped, saying why, where there is none.
class WithVocab : public ::testing::Test {
   protected:
    void SetUp() override;
    const llama_vocab * vocab = nullptr;
};

// While it lives, llama.cpp's log goes here and nowhere else.
class CapturedLog {
   public:
    CapturedLog();
    ~CapturedLog();
    CapturedLog(const CapturedLog &) = delete;
    CapturedLog & operator=(const CapturedLog &) = delete;

    const std::vector<std::string> & lines() const { return lines_; }

   private:
    static void append(ggml_log_level level, const char * text, void * user_data);

    std::vector<std::string> lines_;
    ggml_log_callback before_ = nullptr;
    void * before_data_ = nullptr;
};

}  // namespace token_trie::test
