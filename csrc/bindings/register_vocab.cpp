#include "bindings/bindings.h"
#include "llama/version.h"
#include "llama/vocab.h"

#include <chrono>

namespace token_trie {
namespace {

// Lets Python hear an interrupt from the keyboard during a long call that runs without the GIL.
class SignalCheck {
   public:
    void operator()() {
        const auto now = std::chrono::steady_clock::now();
        if (now < next_) {
            return;
        }
        next_ = now + std::chrono::milliseconds(100);
        const py::gil_scoped_acquire locked;
        if (PyErr_CheckSignals() != 0) {
            throw py::error_already_set();
        }
    }

   private:
    std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
};

}  // namespace

void register_vocab(py::module_ & module) {
    using namespace pybind11::literals;
    using Unlocked = py::call_guard<py::gil_scoped_release>;
    py::class_<Vocab>(module, "Vocab")
        // llama-cpp-python hands out addresses as integers.
        .def(py::init([](std::uintptr_t address) {
                 const auto * vocab =
                     reinterpret_cast<const llama_vocab *>(address);  // NOLINT(performance-no-int-to-ptr)
                 return std::make_unique<Vocab>(vocab);
             }),
             "address"_a)
        .def_property_readonly("address",
                               [](const Vocab & vocab) { return reinterpret_cast<std::uintptr_t>(vocab.get()); })
        .def("__len__", &Vocab::size)
        .def("fingerprint", &Vocab::fingerprint, Unlocked())
        .def("is_control", &Vocab::is_control, "token"_a)
        .def("end_of_generation", &Vocab::end_of_generation, Unlocked())
        .def("control_texts",
             [](const Vocab & vocab) {
                 std::vector<std::pair<Token, py::bytes>> out;
                 for (auto & [token, text] : vocab.control_texts()) {
                     out.emplace_back(token, text);
                 }
                 return out;
             })
        .def(
            "check", [](const Vocab & vocab, const Trie & trie) { check_vocab(trie, vocab); }, "trie"_a, Unlocked())
        .def(
            "tokenize",
            [](const Vocab & vocab, const std::vector<py::bytes> & texts, const std::string & what, bool special) {
                const std::vector<std::string> copies(texts.begin(), texts.end());
                LeafList leaves;
                {
                    const py::gil_scoped_release unlocked;
                    leaves = tokenize(vocab.get(), copies, what, special, SignalCheck());
                }
                const std::vector<std::int64_t> offsets(leaves.offsets.begin(), leaves.offsets.end());
                return py::make_tuple(to_array(leaves.tokens.data(), leaves.tokens.size()),
                                      to_array(offsets.data(), offsets.size()));
            },
            "texts"_a, "what"_a, "special"_a = false)
        .def(
            "detokenize",
            [](const Vocab & vocab, const std::vector<Token> & tokens, bool special) {
                return py::bytes(detokenize(vocab.get(), tokens, special));
            },
            "tokens"_a, "special"_a = false);
    module.def("llama_compiled", &llama_compiled);
    module.def("llama_loaded", &llama_loaded);
    module.def("require_same_llama", &require_same_llama);
}

}  // namespace token_trie
