#include "bindings/bindings.h"
#include "sampler/llama_version.h"
#include "sampler/vocab.h"

namespace token_trie {

void register_vocab(py::module_ & module) {
    using namespace pybind11::literals;
    using Unlocked = py::call_guard<py::gil_scoped_release>;
    module.def(
        "vocab_fingerprint", [](std::uintptr_t vocab) { return vocab_fingerprint(to_vocab(vocab)); }, "vocab"_a,
        Unlocked());
    module.def(
        "vocab_end_of_generation", [](std::uintptr_t vocab) { return vocab_end_of_generation(to_vocab(vocab)); },
        "vocab"_a, Unlocked());
    module.def(
        "check_vocab", [](const Trie & trie, std::uintptr_t vocab) { check_vocab(trie, to_vocab(vocab)); }, "trie"_a,
        "vocab"_a, Unlocked());
    module.def(
        "tokenize",
        [](std::uintptr_t vocab, const std::vector<py::bytes> & texts, const std::string & what) {
            const std::vector<std::string> copies(texts.begin(), texts.end());
            LeafList leaves;
            {
                const py::gil_scoped_release unlocked;
                leaves = tokenize(to_vocab(vocab), copies, what);
            }
            const std::vector<std::int64_t> offsets(leaves.offsets.begin(), leaves.offsets.end());
            return py::make_tuple(to_array(leaves.tokens.data(), leaves.tokens.size()),
                                  to_array(offsets.data(), offsets.size()));
        },
        "vocab"_a, "texts"_a, "what"_a);
    module.def(
        "detokenize",
        [](std::uintptr_t vocab, const std::vector<Token> & tokens) {
            return py::bytes(detokenize(to_vocab(vocab), tokens));
        },
        "vocab"_a, "tokens"_a);
    module.def("llama_compiled", &llama_compiled);
    module.def("llama_loaded", &llama_loaded);
    module.def("require_same_llama", &require_same_llama);
}

}  // namespace token_trie
