#include "abi_calls.h"

#include <cstdlib>

// Sequences of calls of the C ABI on tiny models, each against a model of what must hold. The first byte of an input
// chooses two contexts; calls go to the stream of one or the other.
namespace token_trie::fuzz {
namespace {

constexpr int kLongest = 16;

struct Process {
    Process() {
        llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
        std::atexit([] {
            static constexpr std::array<const char *, Caller::kCalls> names = {
                "prefill",  "append", "set",      "set_ext",    "set_ext", "clear",  "grammar", "generate",
                "generate", "next",   "score",    "search",     "others",  "others", "close",   "beside another thread",
                "fork",     "until",  "read_set", "set_by_path"};
            for (std::size_t i = 0; i < names.size(); ++i) {
                std::fprintf(stderr, "%s: %llu calls\n", names[i], static_cast<unsigned long long>(Caller::counts[i]));
            }
        });
    }
};

}  // namespace

void run(Input & in) {
    static const Process process;
    const std::uint32_t contexts = in.byte();
    Caller one(contexts % kContexts);
    Caller other((contexts + 1 + contexts / kContexts) % kContexts == contexts % kContexts
                     ? (contexts + 1) % kContexts
                     : (contexts + 1 + contexts / kContexts) % kContexts);
    for (int n = 0; n < kLongest && !in.empty(); ++n) {
        (in.one_in(8) ? other : one).call(in);
    }
}

}  // namespace token_trie::fuzz
