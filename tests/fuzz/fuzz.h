#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// Shared by the fuzzers. Each has one LLVMFuzzerTestOneInput, which libFuzzer calls (`make fuzz`), or replay.cpp with
// the files of the corpus, as a test of every build.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t * data, std::size_t size);

namespace token_trie::fuzz {

// Decisions drawn from an input, a byte each; zeros behind its end.
class Input {
   public:
    Input(const std::uint8_t * data, std::size_t size) : at_(data), end_(data + size) {}

    bool empty() const noexcept { return at_ == end_; }
    std::uint8_t byte() noexcept { return empty() ? std::uint8_t{0} : *at_++; }
    std::uint32_t below(std::uint32_t n) noexcept { return byte() % n; }
    template <typename Items>
    const auto & one_of(const Items & items) noexcept {
        return items[byte() % items.size()];
    }
    bool one_in(std::uint32_t n) noexcept { return below(n) == n - 1; }

   private:
    const std::uint8_t * at_;
    const std::uint8_t * end_;
};

// A fuzzer that draws decisions from its input; run.cpp is its LLVMFuzzerTestOneInput.
void run(Input & in);

// A finding, where it does not hold.
inline void require(bool holds, const char * what) {
    if (!holds) {
        std::fprintf(stderr, "does not hold: %s\n", what);
        std::abort();
    }
}

}  // namespace token_trie::fuzz
