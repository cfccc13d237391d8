#pragma once

#include "context/contexts.h"

#include "support.h"

#include <string_view>

// A whole model of 300 kB, so that the tests of the stream need no download and take milliseconds.
namespace token_trie::test {

using Model = std::unique_ptr<llama_model, FreeModel>;
using Context = OwnedContext;

// Two layers of 32 dimensions with random F32 weights, over the vocabulary
//
//     0 <unk>   1 <s>   2 </s>   3 .. 258 the bytes   259 "READ"   260 "_FILE"   261 "_MAIL"   262 "SEND"
//
// in which only </s> ends a generation.
constexpr Token kTinyEnd = 2;
constexpr Token kRead = 259;
constexpr Token kFile = 260;
constexpr Token kMail = 261;
constexpr Token kSend = 262;
constexpr Token kTinyVocab = 263;
constexpr Token kWideVocab = 210000;

// One byte token for each byte of text.
Tokens bytes(std::string_view text);

enum class TinyKind {
    attention,       // llama
    sliding_window,  // gemma 3: six layers, all but the last with a window of 8 tokens
    window_of_16,    // the same with a window of 16
    window_of_32,    // and of 32
    recurrent,       // mamba
    hybrid,          // lfm2: a layer of convolution, and one of attention with one head
    quantized,       // llama with one head, and its output matrix in Q8_0
    diffusion,       // dream
    capped,          // gemma 3 whose logits are squeezed behind the output matrix
    no_tokenizer,    // llama with a vocabulary of numbers alone
    wide,            // the same with kWideVocab of them
    other_end,       // llama in which "SEND" ends a generation too, and nothing else differs
    long_word        // llama in which "SEND" is a word that is too long to stand in a string itself
};

// The window of sliding attention; 0: none.
std::uint32_t tiny_window(TinyKind kind);

// A GGUF file of such a model, removed when the process ends.
const std::string & tiny_model_path(TinyKind kind = TinyKind::attention);

// A model that is loaded once a process. One thread, as idle ones of llama.cpp's spin.
llama_model * tiny_model(TinyKind kind = TinyKind::attention);
const llama_vocab * tiny_vocab();
// The sequence ids share one cache.
Context tiny_context(std::uint32_t n_ctx = 256,
                     TinyKind kind = TinyKind::attention,
                     std::uint32_t n_seq_max = 1,
                     std::uint32_t n_batch = 64);
llama_context_params tiny_context_params(std::uint32_t n_ctx = 256);
Context tiny_context_of(const llama_context_params & params, TinyKind kind = TinyKind::attention);
// Makes the contexts of a stream or batch, with at most n_ids sequence ids.
ContextMaker maker_of(std::uint32_t n_ctx = 256, TinyKind kind = TinyKind::attention, std::uint32_t n_ids = 64);
ContextMaker maker_of(const llama_context_params & params, TinyKind kind = TinyKind::attention);

// In double, by definition.
std::vector<double> log_probabilities(const float * logits);

// A LoRA adapter with random weights for output.weight, or for a square matrix of the model's.
struct FreeAdapter {
    void operator()(llama_adapter_lora * adapter) const { llama_adapter_lora_free(adapter); }
};
using Adapter = std::unique_ptr<llama_adapter_lora, FreeAdapter>;
Adapter tiny_adapter(TinyKind kind, const std::string & matrix);
// On the context from here on; nullptr: none.
void set_adapter(llama_context * context, llama_adapter_lora * adapter);

// Tests that load the model, with llama.cpp's log kept off the terminal.
class WithTinyModel : public ::testing::Test {
    CapturedLog quiet_;
};

}  // namespace token_trie::test
