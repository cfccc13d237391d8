#include "bindings/bindings.h"

namespace token_trie {
namespace {

// No garbage collection for that long, which could run Python of anyone's.
class WithoutCollection {
   public:
    WithoutCollection() : was_on_(PyGC_Disable() == 1) {}
    ~WithoutCollection() {
        if (was_on_) {
            PyGC_Enable();
        }
    }
    WithoutCollection(const WithoutCollection &) = delete;
    WithoutCollection & operator=(const WithoutCollection &) = delete;

   private:
    bool was_on_;
};

// Here and not in Python, where threads would take turns in the middle: a frame that another one has left meanwhile is
// no longer safe to go on from (seen with CPython 3.11).
bool is_thread_inside(const std::string & package, const std::vector<std::pair<py::object, py::tuple>> & owners) {
    const WithoutCollection guard;
    const py::dict frames = py::module_::import("sys").attr("_current_frames")();
    for (const auto & [thread, top] : frames) {
        for (auto frame = py::reinterpret_borrow<py::object>(top); !frame.is_none(); frame = frame.attr("f_back")) {
            const py::object module = frame.attr("f_globals").attr("get")("__name__", "");
            if (!py::isinstance<py::str>(module) || module.cast<std::string>().rfind(package, 0) != 0) {
                continue;
            }
            const py::object self = frame.attr("f_locals").attr("get")("self");
            for (const auto & [owner, names] : owners) {
                if (self.is(owner) && (names.empty() || names.contains(frame.attr("f_code").attr("co_name")))) {
                    return true;
                }
            }
        }
    }
    return false;
}

}  // namespace

// NOLINTNEXTLINE(misc-const-correctness): every register_* takes the module alike
void register_threads(py::module_ & module) {
    using namespace pybind11::literals;
    module.def("is_thread_inside", &is_thread_inside, "package"_a, "owners"_a);
}

}  // namespace token_trie
