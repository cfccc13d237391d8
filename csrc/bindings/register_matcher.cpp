#include "bindings/bindings.h"
#include "cursor/matcher.h"
#include "cursor/tables.h"

#include <mutex>

namespace token_trie {
namespace {

// A matcher that threads may call at once: masks are filled without the interpreter's lock.
struct SharedMatcher {
    explicit SharedMatcher(Matcher made) : matcher(std::move(made)) {}

    std::mutex mutex;
    Matcher matcher;
};
using MatcherPtr = std::shared_ptr<SharedMatcher>;

// Calls work(matcher) alone. A waiting thread holds the interpreter's lock, which the working one never waits for.
template <typename Work>
auto alone(SharedMatcher & shared, Work && work) {
    const std::lock_guard<std::mutex> lock(shared.mutex);
    return work(shared.matcher);
}

// A method of the matcher's, called alone.
template <typename Result, typename Of, typename... Arguments>
auto alone(Result (Of::*method)(Arguments...)) {
    return [method](SharedMatcher & shared, Arguments... given) {
        return alone(shared, [&](Matcher & matcher) { return (matcher.*method)(given...); });
    };
}
template <typename Result, typename Of, typename... Arguments>
auto alone(Result (Of::*method)(Arguments...) const) {
    return [method](SharedMatcher & shared, Arguments... given) {
        return alone(shared, [&](const Matcher & matcher) { return (matcher.*method)(given...); });
    };
}

struct Rows {
    std::int32_t * data;
    std::size_t n;
    std::ptrdiff_t stride;  // in words

    std::int32_t * at(std::size_t row) const { return data + static_cast<std::ptrdiff_t>(row) * stride; }
};

Rows rows_of(py::array & mask, std::size_t n_words) {
    if (!mask.dtype().equal(py::dtype::of<std::int32_t>())) {
        throw Error(Status::argument, "bitmask must be int32, not ", std::string(py::str(mask.dtype())));
    }
    if (mask.ndim() != 2 || static_cast<std::size_t>(mask.shape(1)) != n_words) {
        throw Error(Status::argument, "bitmask must have shape (rows, ", n_words, "), not ",
                    std::string(py::str(mask.attr("shape"))));
    }
    constexpr auto word = static_cast<py::ssize_t>(sizeof(std::int32_t));
    const bool are_rows_whole = mask.shape(0) == 0 || n_words == 1 || mask.strides(1) == word;
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(mask.data()) % sizeof(std::int32_t) == 0;
    if (!are_rows_whole || !is_aligned || mask.strides(0) % word != 0) {
        throw Error(Status::argument, "bitmask: strides ", std::string(py::str(mask.attr("strides"))),
                    "; the words of a row must be neighbours, and aligned");
    }
    throw_if(!mask.writeable(), Status::argument, "bitmask: read-only");
    return {static_cast<std::int32_t *>(mask.mutable_data()), static_cast<std::size_t>(mask.shape(0)),
            mask.strides(0) / word};
}

std::vector<bool> fill(const std::vector<MatcherPtr> & matchers,
                       py::array mask,
                       const std::optional<std::vector<std::int64_t>> & indices) {
    if (matchers.empty()) {
        return {};
    }
    // The width of a matcher never changes.
    const std::size_t n_words = matchers.front()->matcher.n_words();
    const Rows rows = rows_of(mask, n_words);
    throw_if(indices && indices->size() != matchers.size(), Status::argument,
             "indices: ", indices ? indices->size() : 0, " for ", matchers.size(), " matchers");
    const auto row_of = [&](std::size_t i) { return indices ? (*indices)[i] : static_cast<std::int64_t>(i); };
    for (std::size_t i = 0; i < matchers.size(); ++i) {
        throw_if(matchers[i]->matcher.n_words() != n_words, Status::argument, "matchers[", i, "]: a row of ",
                 matchers[i]->matcher.n_words(), " words, where matchers[0] has ", n_words);
        throw_if(row_of(i) < 0 || static_cast<std::size_t>(row_of(i)) >= rows.n, Status::argument, "indices[", i,
                 "]: row ", row_of(i), " of ", rows.n);
    }
    const py::gil_scoped_release unlocked;
    std::vector<bool> is_needed(matchers.size());
    for (std::size_t i = 0; i < matchers.size(); ++i) {
        std::int32_t * words = rows.at(static_cast<std::size_t>(row_of(i)));
        is_needed[i] = alone(*matchers[i], [words](const Matcher & matcher) { return matcher.fill(words); });
    }
    return is_needed;
}

using Positions = py::array_t<std::int64_t, py::array::c_style>;

// Addresses are those of tensors that the caller holds and has looked at: of numbers that numpy has no type for, too.
void * pointer(std::uintptr_t address) {
    return reinterpret_cast<void *>(address);  // NOLINT(performance-no-int-to-ptr)
}

Tables::Matrix matrix(std::uintptr_t address,
                      std::int64_t n_columns,
                      std::int64_t stride,
                      std::uint32_t n_bytes,
                      std::uint64_t minus_infinity) {
    return {pointer(address), n_columns, stride, n_bytes, minus_infinity};
}

Tables::Tokens tokens_of(const py::array & given) {
    const bool is_narrow = given.dtype().equal(py::dtype::of<std::int16_t>());
    throw_if(!is_narrow && !given.dtype().equal(py::dtype::of<std::int32_t>()), Status::argument,
             "tokens: neither int16 nor int32");
    return {given.data(), is_narrow};
}

// Tables with the arrays that they are views of.
struct HeldTables {
    HeldTables(std::int32_t vocab_size,
               const py::array_t<std::int32_t> & first,
               const py::array_t<std::uint8_t> & kinds,
               const py::array & tokens,
               const py::array_t<std::int32_t> & targets,
               const py::array & tails,
               const py::array_t<std::int32_t> & tail_begins,
               const py::array_t<std::int32_t> & completes) {
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
        held = py::make_tuple(first, kinds, tokens, targets, tails, tail_begins, completes);
    }

    Tables tables;
    py::tuple held;
};

using namespace pybind11::literals;

void register_class(const py::module_ & module) {
    py::class_<SharedMatcher, MatcherPtr>(module, "Matcher")
        .def(py::init([](std::shared_ptr<Trie> trie, std::shared_ptr<FollowSet> follow, std::int32_t n_vocab) {
                 return std::make_shared<SharedMatcher>(Matcher(Cursor(std::move(trie), std::move(follow)), n_vocab));
             }),
             "trie"_a.none(false), "follow"_a.none(false), "n_vocab"_a)
        .def("__copy__",
             [](SharedMatcher & shared) {
                 return alone(shared, [](const Matcher & matcher) { return std::make_shared<SharedMatcher>(matcher); });
             })
        .def("accept", alone(&Matcher::accept), "token"_a)
        .def(
            "accept_all",
            [](SharedMatcher & shared, const TokenArray & tokens) {
                return alone(shared, [&](Matcher & matcher) {
                    return matcher.accept_all(tokens.data(), static_cast<std::size_t>(tokens.size()));
                });
            },
            "tokens"_a)
        .def("rollback", alone(&Matcher::rollback), "n"_a)
        .def("reset", [](SharedMatcher & shared) { alone(shared, [](Matcher & matcher) { matcher.reset(); }); })
        .def("allowed",
             [](SharedMatcher & shared) {
                 std::vector<Token> tokens;
                 alone(shared, [&](const Matcher & matcher) {
                     matcher.for_each_allowed([&](Token token) { tokens.push_back(token); });
                 });
                 return to_array(tokens);
             })
        .def("forced", alone(&Matcher::forced), "n"_a)
        .def_property_readonly(
            "is_terminated",
            [](SharedMatcher & shared) { return alone(shared, [](const Matcher & it) { return it.is_terminated(); }); })
        .def_property_readonly("is_free",
                               [](SharedMatcher & shared) {
                                   return alone(shared, [](const Matcher & it) { return it.allowed().everything; });
                               })
        .def_property_readonly(
            "n_accepted",
            [](SharedMatcher & shared) { return alone(shared, [](const Matcher & it) { return it.n_accepted(); }); })
        .def_property_readonly("n_vocab", [](const SharedMatcher & shared) { return shared.matcher.n_vocab(); });
}

void register_tables(const py::module_ & module) {
    py::class_<HeldTables>(module, "Tables")
        .def(py::init<std::int32_t, py::array_t<std::int32_t>, py::array_t<std::uint8_t>, py::array,
                      py::array_t<std::int32_t>, py::array, py::array_t<std::int32_t>, py::array_t<std::int32_t>>(),
             "vocab_size"_a, "first"_a, "kinds"_a, "tokens"_a, "targets"_a, "tails"_a, "tail_begins"_a, "completes"_a)
        .def(
            "mask",
            [](const HeldTables & self, std::uintptr_t logits, std::int64_t n_columns, std::int64_t stride,
               std::uint32_t n_bytes, std::uint64_t minus_infinity, const Positions & nodes) {
                const Tables::Matrix rows = matrix(logits, n_columns, stride, n_bytes, minus_infinity);
                const py::gil_scoped_release unlocked;
                return self.tables.mask(rows, nodes.data(), nodes.size());
            },
            "logits"_a, "n_columns"_a, "stride"_a, "n_bytes"_a, "minus_infinity"_a, "nodes"_a)
        .def(
            "step",
            [](const HeldTables & self, const Positions & nodes, const Positions & tokens, Positions & out) {
                std::int64_t * to = out.mutable_data();
                const py::gil_scoped_release unlocked;
                self.tables.step(nodes.data(), tokens.data(), nodes.size(), to);
            },
            "nodes"_a, "tokens"_a, "out"_a)
        .def(
            "width",
            [](const HeldTables & self, const Positions & nodes) {
                const py::gil_scoped_release unlocked;
                return self.tables.width(nodes.data(), nodes.size());
            },
            "nodes"_a)
        .def(
            "candidates",
            [](const HeldTables & self, std::uintptr_t logprobs, std::int64_t n_columns, std::int64_t stride,
               std::uint32_t n_bytes, std::uint64_t minus_infinity, const Positions & nodes, std::uintptr_t values,
               Positions & tokens, Positions & targets) {
                const Tables::Matrix rows = matrix(logprobs, n_columns, stride, n_bytes, minus_infinity);
                std::int64_t * to_tokens = tokens.mutable_data();
                std::int64_t * to_targets = targets.mutable_data();
                const std::int64_t width = tokens.shape(1);
                const py::gil_scoped_release unlocked;
                self.tables.candidates(rows, nodes.data(), nodes.size(), width, pointer(values), to_tokens, to_targets);
            },
            "logprobs"_a, "n_columns"_a, "stride"_a, "n_bytes"_a, "minus_infinity"_a, "nodes"_a, "values"_a, "tokens"_a,
            "targets"_a);
}

}  // namespace

void register_matcher(py::module_ & module) {
    register_class(module);
    register_tables(module);
    module.def("fill_masks", &fill, "matchers"_a, "mask"_a, "indices"_a);
}

}  // namespace token_trie
