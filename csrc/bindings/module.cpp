#include "bindings/bindings.h"

namespace token_trie {

void register_errors(py::module_ & /*module*/) {
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            std::rethrow_exception(std::move(pointer));
        } catch (const Error & error) {
            const py::object exception = py::module_::import("token_trie.errors")
                                             .attr("from_status")(static_cast<int>(error.status()), error.what());
            PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
        }
    });
}

}  // namespace token_trie

PYBIND11_MODULE(_core, module) {
    token_trie::register_errors(module);
    token_trie::register_trie(module);
    token_trie::register_llama(module);
    token_trie::register_matcher(module);
}
