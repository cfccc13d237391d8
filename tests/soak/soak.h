#pragma once

#include "oracle.h"
#include "tiny_model.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

// A million random calls of the public C ABI, each checked against the oracle of the tests and a plain llama.cpp loop:
// for the answer that is wrong once in a million, and for memory that is lost a little at a time.
namespace token_trie::soak {

using namespace token_trie::test;

// Says that something is not as it has to be.
using Wrong = std::function<void(const std::string &)>;

// The failures. Any thread may add to it; the first are printed.
class Findings {
   public:
    void add(const std::string & what);
    std::uint64_t count() const { return count_; }

   private:
    std::mutex mutex_;
    std::atomic<std::uint64_t> count_{0};
};

// The same for the same seed and index, and unlike that of every other.
std::mt19937 generator(std::uint32_t seed, std::uint64_t index);
std::size_t below(std::mt19937 & rng, std::size_t n);
inline bool one_in(std::mt19937 & rng, std::size_t n) { return below(rng, n) == 0; }

// "7 8 9", which is also what leaves are called.
std::string name_of(const Tokens & tokens);
std::string payload_of(const std::set<Tokens> & members);
// Borrows the lists of options. An empty list of end tokens is that of the vocabulary where there is one.
token_trie_params params_of(const FollowSet::Options & options, Mode mode);

// Walks a random set with a chain of samplers over random logits.
void decide_in_chain(std::mt19937 & rng, const Wrong & wrong);

// Streams on tiny models of several kinds.
class Streams {
   public:
    Streams();
    ~Streams();
    Streams(const Streams &) = delete;
    Streams & operator=(const Streams &) = delete;

    // Generates under a random set of tokens or texts, behind a random prompt.
    void decide(std::mt19937 & rng, const Wrong & wrong);
    // Scores a random set and searches it.
    void score(std::mt19937 & rng, const Wrong & wrong);

   private:
    struct Place;
    std::vector<std::unique_ptr<Place>> places_;
};

// Things done on many threads at once; each calls tick when it is done.
using Tick = std::function<void()>;

// Opens streams, on contexts of their thread's own or on a file, sets a trie, generates what one thread alone
// generated, and closes.
class Rounds {
   public:
    explicit Rounds(unsigned n_threads);
    void run(std::uint32_t seed, std::uint64_t n, Findings & findings, const Tick & tick) const;

   private:
    struct Case {
        std::string payload;
        FollowSet::Options options;
        Mode mode;
        std::uint32_t seed;
        Tokens prompt;
        Tokens expected[2];  // on a context, on a file
    };
    static Tokens answer(const Case & given, token_trie_stream * stream);

    unsigned n_threads_;
    std::vector<Case> cases_;
};

// Makes samplers of more payloads than the cache holds.
void run_cache(unsigned n_threads, std::uint32_t seed, std::uint64_t n, Findings & findings, const Tick & tick);

}  // namespace token_trie::soak
