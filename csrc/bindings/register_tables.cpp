#include "bindings/bindings.h"
#include "walk/tables.h"

namespace token_trie {
namespace {

using Rows = py::array_t<std::int64_t, py::array::c_style>;

// Addresses are those of tensors that the caller holds and has looked at: of numbers that numpy has no type for, too.
Tables::Matrix matrix(std::uintptr_t address,
                      std::int64_t n_columns,
                      std::int64_t stride,
                      std::uint32_t n_bytes,
                      std::uint64_t minus_infinity) {
    return {reinterpret_cast<void *>(address), n_columns, stride, n_bytes, minus_infinity};
}

Tables::Tokens tokens_of(const py::array & given) {
    const bool is_narrow = given.dtype().equal(py::dtype::of<std::int16_t>());
    if (!is_narrow && !given.dtype().equal(py::dtype::of<std::int32_t>())) {
        throw Error(Status::argument, "tokens: neither int16 nor int32");
    }
    return {given.data(), is_narrow};
}

// Tables with the arrays that they are views of.
struct HeldTables {
    HeldTables(std::int32_t vocab_size,
               py::array_t<std::int32_t> first,
               py::array_t<std::uint8_t> kinds,
               py::array tokens,
               py::array_t<std::int32_t> targets,
               py::array tails,
               py::array_t<std::int32_t> tail_begins,
               py::array_t<std::int32_t> completes) {
        tables.vocab_size = vocab_size;
        tables.n_rows = kinds.size();
        tables.n_in_tails = tails.size();
        tables.n_sets = completes.size();
        tables.first = first.data();
        tables.kinds = kinds.data();
        tables.tokens = tokens_of(tokens);
        tables.targets = targets.data();
        tables.tails = tokens_of(tails);
        tables.tail_begins = tail_begins.data();
        tables.completes = completes.data();
        held = py::make_tuple(std::move(first), std::move(kinds), std::move(tokens), std::move(targets),
                              std::move(tails), std::move(tail_begins), std::move(completes));
    }

    Tables tables;
    py::tuple held;
};

}  // namespace

// NOLINTNEXTLINE(misc-const-correctness): every register_* takes the module alike
void register_tables(py::module_ & module) {
    using namespace pybind11::literals;
    py::class_<HeldTables>(module, "Tables")
        .def(py::init<std::int32_t, py::array_t<std::int32_t>, py::array_t<std::uint8_t>, py::array,
                      py::array_t<std::int32_t>, py::array, py::array_t<std::int32_t>, py::array_t<std::int32_t>>(),
             "vocab_size"_a, "first"_a, "kinds"_a, "tokens"_a, "targets"_a, "tails"_a, "tail_begins"_a, "completes"_a)
        .def(
            "mask",
            [](const HeldTables & self, std::uintptr_t logits, std::int64_t n_columns, std::int64_t stride,
               std::uint32_t n_bytes, std::uint64_t minus_infinity, const Rows & nodes) {
                const Tables::Matrix rows = matrix(logits, n_columns, stride, n_bytes, minus_infinity);
                const py::gil_scoped_release unlocked;
                return self.tables.mask(rows, nodes.data(), nodes.size());
            },
            "logits"_a, "n_columns"_a, "stride"_a, "n_bytes"_a, "minus_infinity"_a, "nodes"_a)
        .def(
            "step",
            [](const HeldTables & self, const Rows & nodes, const Rows & tokens, Rows & out) {
                std::int64_t * to = out.mutable_data();
                const py::gil_scoped_release unlocked;
                self.tables.step(nodes.data(), tokens.data(), nodes.size(), to);
            },
            "nodes"_a, "tokens"_a, "out"_a)
        .def(
            "width",
            [](const HeldTables & self, const Rows & nodes) {
                const py::gil_scoped_release unlocked;
                return self.tables.width(nodes.data(), nodes.size());
            },
            "nodes"_a)
        .def(
            "candidates",
            [](const HeldTables & self, std::uintptr_t logprobs, std::int64_t n_columns, std::int64_t stride,
               std::uint32_t n_bytes, std::uint64_t minus_infinity, const Rows & nodes, std::uintptr_t values,
               Rows & tokens, Rows & targets) {
                const Tables::Matrix rows = matrix(logprobs, n_columns, stride, n_bytes, minus_infinity);
                std::int64_t * to_tokens = tokens.mutable_data();
                std::int64_t * to_targets = targets.mutable_data();
                const std::int64_t width = tokens.shape(1);
                const py::gil_scoped_release unlocked;
                self.tables.candidates(rows, nodes.data(), nodes.size(), width, reinterpret_cast<void *>(values),
                                       to_tokens, to_targets);
            },
            "logprobs"_a, "n_columns"_a, "stride"_a, "n_bytes"_a, "minus_infinity"_a, "nodes"_a, "values"_a, "tokens"_a,
            "targets"_a);
}

}  // namespace token_trie
