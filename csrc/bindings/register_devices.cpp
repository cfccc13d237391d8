#include "bindings/bindings.h"
#include "llama/devices.h"
#include "llama/model_file.h"

namespace token_trie {

void register_devices(py::module_ & module) {
    module.def("devices", [] {
        py::list out;
        for (const Device & device : devices()) {
            out.append(py::make_tuple(device.backend, device.name, device.description, device.kind, device.free_bytes,
                                      device.total_bytes));
        }
        return out;
    });
    module.def("samples_in_graph", samples_in_graph);
    module.def("tensors_digest", tensors_digest, py::call_guard<py::gil_scoped_release>());
}

}  // namespace token_trie
