#pragma once

#include <string>

struct llama_model;

namespace [[gnu::visibility("default")]] token_trie {

// A value of a model's file; "" if there is none under the key.
std::string metadata(const llama_model * model, const std::string & key);
// Likewise under a key that begins with the name of the model's architecture.
std::string of_architecture(const llama_model * model, const std::string & key);

// Throws Error (argument) for a model that has no tokenizer, or that writes no token after another: llama.cpp evaluates
// it otherwise than decoders, or ends the process.
void check_model(const llama_model * model);

}  // namespace token_trie
