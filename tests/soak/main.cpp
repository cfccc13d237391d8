#include "soak.h"

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <unistd.h>

namespace token_trie::soak {
namespace {

struct Options {
    std::uint64_t decisions = 1000000;
    std::uint64_t first = 0;  // the decision to begin with
    std::uint64_t rounds = 10000;
    std::uint64_t cache_calls = 200000;
    std::uint64_t threads = 64;
    std::uint64_t seed = 1;
};

// Growth of the memory resident after a tenth of everything; what is lost each time shows up nine times in the rest.
constexpr double kFlatMiB = 4;

double resident_mib() {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
    std::ifstream file("/proc/self/statm");
    long pages = 0;
    file >> pages >> pages;
    return static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1U << 20U);
}

// A line on the terminal that tells how far it is.
class Progress {
   public:
    Progress(const char * what, std::uint64_t n) : what_(what), n_(n) {}
    ~Progress() { erase(); }
    Progress(const Progress &) = delete;
    Progress & operator=(const Progress &) = delete;

    void tick() {
        const std::uint64_t done = ++done_;
        if (terminal_ && done % 256 == 0) {
            std::fprintf(stderr, "\r%s %" PRIu64 " of %" PRIu64, what_, done, n_);
        }
    }

   private:
    void erase() const {
        if (terminal_) {
            std::fprintf(stderr, "\r%60s\r", "");
        }
    }

    const char * what_;
    std::uint64_t n_;
    std::atomic<std::uint64_t> done_{0};
    bool terminal_ = isatty(STDERR_FILENO) != 0;
};

class Soak {
   public:
    explicit Soak(const Options & options) : options_(options) {}

    int run() {
        std::printf("seed %" PRIu64 "\n", options_.seed);
        const auto started = std::chrono::steady_clock::now();
        // Caches, arenas and pools fill up.
        everything(10, /* warming_up = */ true);
        const double before = resident_mib();
        std::printf("%-34s %10s %8s %8s\n", "", "count", "invalid", "seconds");
        everything(1, /* warming_up = */ false);
        const double after = resident_mib();
        const bool flat = after - before <= kFlatMiB;
        std::printf(
            "resident memory: %.1f MiB after a tenth of it as warm-up, %.1f MiB at the end: %+.1f MiB, %s %.0f\n",
            before, after, after - before, flat ? "within" : "OVER", kFlatMiB);
        std::printf("%s, %.0f s in all\n", findings_.count() == 0 && flat ? "nothing found" : "FOUND",
                    seconds_since(started));
        return findings_.count() == 0 && flat ? 0 : 1;
    }

   private:
    using Clock = std::chrono::steady_clock;

    static double seconds_since(Clock::time_point start) {
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

    void room(const char * name, std::uint64_t n, bool warming_up, const std::function<void(const Tick &)> & work) {
        const auto started = Clock::now();
        const std::uint64_t before = findings_.count();
        {
            Progress progress(name, n);
            work([&] { progress.tick(); });
        }
        if (!warming_up) {
            std::printf("%-34s %10" PRIu64 " %8" PRIu64 " %8.0f\n", name, n, findings_.count() - before,
                        seconds_since(started));
            std::fflush(stdout);
        }
    }

    // Seven of ten decisions are a chain's, two a stream's, and one is a score.
    void everything(std::uint64_t divisor, bool warming_up) {
        // Other numbers than those that count.
        const std::uint32_t seed = static_cast<std::uint32_t>(options_.seed) ^ (warming_up ? 0x55555555U : 0U);
        const auto decide = [&](const char * name, std::uint64_t from, std::uint64_t to, const auto & work) {
            const auto n_of = [&](std::uint64_t index) { return index / 10 * (to - from); };
            const std::uint64_t n = n_of(options_.decisions) / divisor;
            room(name, n, warming_up, [&](const Tick & tick) {
                for (std::uint64_t i = options_.first; i < options_.first + n; ++i) {
                    // NOLINTNEXTLINE(misc-const-correctness): work is a template, and draws from it
                    std::mt19937 rng = generator(seed + static_cast<std::uint32_t>(from), i);
                    work(rng, [&](const std::string & what) {
                        findings_.add(std::string(name) + ", number " + std::to_string(i) + ": " + what);
                    });
                    tick();
                }
            });
        };
        decide("decisions of a sampler chain", 0, 7, decide_in_chain);
        decide("decisions of a stream", 7, 9,
               [&](std::mt19937 & rng, const Wrong & wrong) { streams_.decide(rng, wrong); });
        decide("scores and searches", 9, 10,
               [&](std::mt19937 & rng, const Wrong & wrong) { streams_.score(rng, wrong); });
        const auto n_threads = static_cast<unsigned>(options_.threads);
        room("rounds on threads", options_.rounds / divisor, warming_up,
             [&](const Tick & tick) { rounds_.run(seed, options_.rounds / divisor, findings_, tick); });
        room("samplers of one cache on threads", options_.cache_calls / divisor, warming_up,
             [&](const Tick & tick) { run_cache(n_threads, seed, options_.cache_calls / divisor, findings_, tick); });
    }

    Options options_;
    Findings findings_;
    Streams streams_;
    Rounds rounds_{static_cast<unsigned>(options_.threads)};
};

int usage(const char * program) {
    std::fprintf(stderr,
                 "usage: %s [--decisions N] [--first N] [--rounds N] [--cache-calls N] [--threads N] [--seed N]\n",
                 program);
    return 2;
}

}  // namespace
}  // namespace token_trie::soak

int main(int argc, char ** argv) {
    using namespace token_trie::soak;
    Options options;
    const struct {
        const char * name;
        std::uint64_t * value;
    } known[] = {{"--decisions", &options.decisions}, {"--first", &options.first},
                 {"--rounds", &options.rounds},       {"--cache-calls", &options.cache_calls},
                 {"--threads", &options.threads},     {"--seed", &options.seed}};
    for (int i = 1; i < argc; i += 2) {
        bool found = false;
        for (const auto & option : known) {
            if (i + 1 < argc && std::strcmp(argv[i], option.name) == 0) {
                char * end = nullptr;
                *option.value = std::strtoull(argv[i + 1], &end, 10);
                found = *end == '\0' && end != argv[i + 1];
            }
        }
        if (!found) {
            return usage(argv[0]);
        }
    }
#if defined(__GLIBC__)
    mallopt(M_ARENA_MAX, 1);  // memory resident is then memory held, and not what a pool for each thread keeps
#endif
    // That samplers upstream cut everything away is said once a sampler.
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    return Soak(options).run();
}
