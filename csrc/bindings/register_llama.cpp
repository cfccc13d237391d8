#include "abi/constraint.h"
#include "bindings/bindings.h"
#include "llama/library.h"
#include "llama/model.h"
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

py::object allowed(const Cursor & cursor) {
    const AllowedSet set = cursor.allowed();
    if (set.everything) {
        return py::none();
    }
    if (set.is_children_alone()) {
        return to_array(set.children);
    }
    std::vector<Token> tokens;
    set.for_each([&](Token token) { tokens.push_back(token); });
    return to_array(tokens);
}

py::array_t<Token> forbidden(const Cursor & cursor) {
    const AllowedSet set = cursor.allowed();
    return to_array(set.everything ? set.except : TokenSpan{});
}

using namespace pybind11::literals;

void register_vocab(const py::module_ & module) {
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
                return py::make_tuple(to_array(leaves.tokens), to_array(offsets));
            },
            "texts"_a, "what"_a, "special"_a = false)
        .def(
            "detokenize",
            [](const Vocab & vocab, const std::vector<Token> & tokens, bool special) {
                return py::bytes(detokenize(vocab.get(), tokens, special));
            },
            "tokens"_a, "special"_a = false);
}

void register_library(py::module_ & module) {
    module.def("llama_compiled", &llama_compiled);
    module.def("llama_loaded", &llama_loaded);
    module.def("llama_constant", &llama_constant);
    module.def("llama_layout", &llama_layout);
    module.def("require_same_llama", &require_same_llama);
    module.def("devices", [] {
        py::list out;
        for (const Device & device : devices()) {
            out.append(py::make_tuple(device.backend, device.name, device.description, device.kind, device.free_bytes,
                                      device.total_bytes));
        }
        return out;
    });
    module.def("samples_in_graph", samples_in_graph);
    module.def(
        "check_model",
        [](std::uintptr_t address) {
            check_model(reinterpret_cast<const llama_model *>(address));  // NOLINT(performance-no-int-to-ptr)
        },
        "address"_a);
}

void register_cursor(const py::module_ & module) {
    py::class_<FollowSet, std::shared_ptr<FollowSet>>(module, "FollowSet")
        .def(py::init([](const Trie & trie, const Vocab & vocab, std::uintptr_t params) {
                 const auto * given =
                     reinterpret_cast<const token_trie_params *>(params);  // NOLINT(performance-no-int-to-ptr)
                 return std::const_pointer_cast<FollowSet>(make_follow(trie, vocab, *given));
             }),
             "trie"_a, "vocab"_a, "params"_a);
    py::class_<Cursor>(module, "Cursor")
        .def(py::init([](std::shared_ptr<Trie> trie, std::shared_ptr<FollowSet> follow) {
                 return Cursor(std::move(trie), std::move(follow));
             }),
             "trie"_a.none(false), "follow"_a.none(false))
        .def("__copy__", [](const Cursor & cursor) { return Cursor(cursor); })
        .def("allowed", &allowed)
        .def("forbidden", &forbidden)
        .def("accept", &Cursor::accept, "token"_a)
        .def("reset", &Cursor::reset)
        .def_property_readonly("state", [](const Cursor & cursor) { return static_cast<int>(cursor.state()); })
        .def_property_readonly("ending", [](const Cursor & cursor) { return static_cast<int>(cursor.ending()); })
        .def_property_readonly("node", &Cursor::node)
        .def_property_readonly("n_items", &Cursor::n_items)
        .def_property_readonly("leaf", [](const Cursor & cursor) -> py::object {
            return cursor.leaf() == kNoLeaf ? py::object(py::none()) : py::object(py::int_(cursor.leaf()));
        });
}

}  // namespace

void register_llama(py::module_ & module) {
    register_vocab(module);
    register_library(module);
    register_cursor(module);
}

}  // namespace token_trie
