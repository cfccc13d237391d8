#include "soak.h"

#include <cstdio>

namespace token_trie::soak {

void Findings::add(const std::string & what) {
    constexpr std::uint64_t n_printed = 20;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (++count_ <= n_printed) {
        std::fprintf(stderr, "\nfinding %llu: %s\n", static_cast<unsigned long long>(count_), what.c_str());
    }
}

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
std::mt19937 generator(std::uint32_t seed, std::uint64_t index) {
    std::uint64_t z = (std::uint64_t{seed} << 40U) + (index + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return std::mt19937(static_cast<std::uint32_t>(z >> 32U));
}

std::size_t below(std::mt19937 & rng, std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(rng);
}

std::string name_of(const Tokens & tokens) {
    std::string out;
    for (const Token token : tokens) {
        out += (out.empty() ? "" : " ") + std::to_string(token);
    }
    return out;
}

std::string payload_of(const std::set<Tokens> & members) {
    std::vector<Leaf> leaves;
    leaves.reserve(members.size());
    for (const Tokens & member : members) {
        leaves.push_back({name_of(member), member});
    }
    return test::payload_of(leaves);
}

token_trie_params params_of(const FollowSet::Options & options, Mode mode) {
    auto params = sized<token_trie_params>();
    params.mode = static_cast<std::int32_t>(mode);
    params.on_complete = static_cast<std::int32_t>(options.on_complete);
    params.end_tokens = options.end_tokens.empty() ? nullptr : options.end_tokens.data();
    params.n_end_tokens = options.end_tokens.size();
    params.separator = options.separator.data();
    params.n_separator = options.separator.size();
    params.max_items = options.max_items;
    params.min_items = options.min_items;
    params.unique = options.unique ? 1 : 0;
    return params;
}

}  // namespace token_trie::soak
