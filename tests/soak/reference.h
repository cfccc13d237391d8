#pragma once

#include "soak.h"

#include <map>

namespace token_trie::soak {

// Logits behind every prompt and up to max_depth tokens of an alphabet, each sequence evaluated beforehand, whole and
// alone, by a plain llama.cpp loop.
class Reference {
   public:
    Reference(llama_context * context,
              const std::vector<Tokens> & prompts,
              const Tokens & alphabet,
              std::size_t max_depth);

    // By token; null where tokens are more than max_depth or not of the alphabet.
    const std::vector<float> * logits(std::size_t prompt, const Tokens & tokens) const;
    // Natural logarithm of the probability that token comes next, and that one of tokens does. Throws std::out_of_range
    // where there are no logits.
    double logprob(std::size_t prompt, const Tokens & behind, Token token) const;
    double logprob(std::size_t prompt, const Tokens & behind, const std::set<Token> & tokens) const;

   private:
    std::map<std::pair<std::size_t, Tokens>, std::vector<float>> logits_;
};

// Natural logarithm of the sum of the exponentials of the logits of tokens; nullopt: of all.
double log_sum(const std::vector<float> & logits, const std::optional<std::set<Token>> & tokens);

}  // namespace token_trie::soak
