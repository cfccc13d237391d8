#pragma once

#include "token_trie.h"

#include <cstdint>
#include <string>
#include <vector>

// The answer of a query: a search or a decoder writes what it has found, a stream or a batch what that took, and the C
// ABI hands it out as it is.
struct [[gnu::visibility("default")]] token_trie_answer {
    token_trie_answer() {
        info.leaf = -1;
        info.stop_string = -1;
    }
    // One more member: those of a search come best first, those of a list in order.
    void add(std::int64_t leaf, double logprob) {
        if (leaves.empty()) {
            info.leaf = leaf;
            info.logprob = logprob;
        }
        leaves.push_back(leaf);
        logprobs.push_back(logprob);
    }

    token_trie_answer_info info{};  // the numbers; its pointers are set where it is handed out
    std::string message;
    std::vector<std::int64_t> leaves;
    std::vector<double> logprobs;  // the leaves'; with none, those of all leaves of the set
    std::vector<llama_token> tokens;
    std::vector<std::uint64_t> ranges;  // a list: each member's beginning and end among the tokens
    std::vector<float> hidden_state;
};

namespace token_trie {
using Answer = ::token_trie_answer;
}  // namespace token_trie
