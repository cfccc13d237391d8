#include "llama/library.h"
#include "llama/model.h"
#include "llama/vocab.h"

// Without a llama.cpp, the bindings are linked with this in place of csrc/llama, whose signatures it has. A vocabulary
// has no known size, as the null one, and functions that need a model refuse.
// NOLINTBEGIN(readability-convert-member-functions-to-static, performance-unnecessary-value-param)

namespace [[gnu::visibility("default")]] token_trie {
namespace {

[[noreturn]] void refuse() {
    throw Error(Status::llama, "no llama.cpp: this part of token-trie was built to work without one");
}

}  // namespace

std::int32_t Vocab::size() const { return 0; }

const std::string & Vocab::fingerprint() const {
    return fingerprint_.get([] { return std::string(); });
}

bool Vocab::is_control(Token /*token*/) const { return false; }

const std::vector<Token> & Vocab::end_of_generation() const {
    return end_of_generation_.get([] { return std::vector<Token>(); });
}

std::vector<std::pair<Token, std::string>> Vocab::control_texts() const { return {}; }

LeafList tokenize(const llama_vocab * /*vocab*/,
                  const std::vector<std::string> & /*texts*/,
                  const std::string & /*name*/,
                  bool /*special*/,
                  const std::function<void()> & /*check*/) {
    refuse();
}

std::string detokenize(const llama_vocab * /*vocab*/, const Token * /*tokens*/, std::size_t /*n*/, bool /*special*/) {
    refuse();
}

std::vector<Device> devices() { return {}; }

bool samples_in_graph() { return false; }

std::string llama_compiled() { return ""; }

std::string llama_loaded() { return ""; }

std::uintptr_t llama_constant() { return 0; }

void require_same_llama() {}

void check_model(const llama_model * /*model*/) { refuse(); }

std::vector<std::pair<std::string, std::size_t>> llama_layout() { return {}; }

}  // namespace token_trie
// NOLINTEND(readability-convert-member-functions-to-static, performance-unnecessary-value-param)
