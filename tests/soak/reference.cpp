#include "reference.h"

#include <cmath>
#include <stdexcept>

namespace token_trie::soak {
namespace {

std::vector<float> evaluate(llama_context * context, Tokens tokens) {
    llama_memory_clear(llama_get_memory(context), true);
    const llama_batch batch = llama_batch_get_one(tokens.data(), static_cast<std::int32_t>(tokens.size()));
    if (llama_decode(context, batch) != 0) {
        throw std::runtime_error("llama_decode failed");
    }
    const float * logits = llama_get_logits_ith(context, -1);
    return {logits, logits + kTinyVocab};
}

}  // namespace

Reference::Reference(llama_context * context,
                     const std::vector<Tokens> & prompts,
                     const Tokens & alphabet,
                     std::size_t max_depth) {
    std::vector<Tokens> level = {{}};
    for (std::size_t depth = 0; depth <= max_depth; ++depth) {
        std::vector<Tokens> next;
        for (const Tokens & behind : level) {
            for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt) {
                Tokens whole = prompts[prompt];
                whole.insert(whole.end(), behind.begin(), behind.end());
                logits_[{prompt, behind}] = evaluate(context, whole);
            }
            for (const Token token : alphabet) {
                next.push_back(behind);
                next.back().push_back(token);
            }
        }
        level = std::move(next);
    }
}

const std::vector<float> * Reference::logits(std::size_t prompt, const Tokens & tokens) const {
    const auto found = logits_.find({prompt, tokens});
    return found == logits_.end() ? nullptr : &found->second;
}

double Reference::logprob(std::size_t prompt, const Tokens & behind, Token token) const {
    return logprob(prompt, behind, std::set<Token>{token});
}

double Reference::logprob(std::size_t prompt, const Tokens & behind, const std::set<Token> & tokens) const {
    const std::vector<float> & row = logits_.at({prompt, behind});
    return log_sum(row, tokens) - log_sum(row, std::nullopt);
}

double log_sum(const std::vector<float> & logits, const std::optional<std::set<Token>> & tokens) {
    double sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (!tokens || tokens->count(static_cast<Token>(i)) > 0) {
            sum += std::exp(static_cast<double>(logits[i]));
        }
    }
    return std::log(sum);
}

}  // namespace token_trie::soak
