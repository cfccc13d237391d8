#pragma once

#include "trie/trie.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

// The Python face's own needs beside the C ABI: tries, cursors and vocabularies over numpy arrays. Each
// register_*.cpp binds one folder of csrc; types and docstrings are in python/token_trie/_core.pyi.

namespace token_trie {

namespace py = pybind11;

using TokenArray = py::array_t<Token, py::array::c_style>;
using OffsetArray = py::array_t<std::int64_t, py::array::c_style>;

void register_errors(py::module_ & module);
void register_trie(py::module_ & module);
void register_llama(py::module_ & module);
void register_matcher(py::module_ & module);

template <typename T>
py::array_t<T> to_array(const T * data, std::size_t n) {
    return py::array_t<T>(static_cast<py::ssize_t>(n), data);
}
inline py::array_t<Token> to_array(const TokenSpan & tokens) { return to_array(tokens.data, tokens.size); }
template <typename T>
py::array_t<T> to_array(const std::vector<T> & values) {
    return to_array(values.data(), values.size());
}

}  // namespace token_trie
