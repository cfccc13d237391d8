#include "bindings/bindings.h"
#include "llama/devices.h"

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
}

}  // namespace token_trie
