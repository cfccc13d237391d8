#include "llama/model.h"

#include "trie/error.h"

#include <llama.h>

#include <array>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

// The kind of a model that is no decoder, with why not; nullptr for a decoder.
const char * other_kind(const llama_model * model, const std::string & architecture) {
    const auto has = [&](const char * part) { return architecture.find(part) != std::string::npos; };
    if (architecture == "eagle3" || architecture == "dflash" || has("assistant")) {
        return "a draft of another model, which does not run alone";
    }
    if (llama_model_is_diffusion(model)) {
        return "a diffusion model, which writes all tokens at once";
    }
    if (!llama_model_has_decoder(model) || of_architecture(model, ".attention.causal") == "false" || has("bert") ||
        architecture == "gemma-embedding" || architecture == "llama-embed") {
        return "an encoder, which makes embeddings";
    }
    return llama_model_has_encoder(model) ? "an encoder-decoder, which reads a whole text first" : nullptr;
}

}  // namespace

std::string metadata(const llama_model * model, const std::string & key) {
    std::array<char, 64> value{};
    return llama_model_meta_val_str(model, key.c_str(), value.data(), value.size()) < 0 ? "" : value.data();
}

std::string of_architecture(const llama_model * model, const std::string & key) {
    return metadata(model, metadata(model, "general.architecture") + key);
}

void check_model(const llama_model * model) {
    const std::string architecture = metadata(model, "general.architecture");
    const char * kind = other_kind(model, architecture);
    throw_if(kind != nullptr, Status::argument, "model: ", architecture, ", ", kind,
             "; take a model that writes one token after another");
    const llama_vocab * vocab = llama_model_get_vocab(model);
    throw_if(llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE || llama_vocab_n_tokens(vocab) == 0, Status::argument,
             "model: it has no tokenizer");
}

}  // namespace token_trie
