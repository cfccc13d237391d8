"""Native code by pybind11 (`core`) and by cffi (`ffi`), and the checks of what is passed to it."""
