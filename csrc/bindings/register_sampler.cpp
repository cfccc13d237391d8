#include "bindings/bindings.h"
#include "llama/vocab.h"
#include "sampler/sampler.h"

#include <algorithm>

namespace token_trie {
namespace {

std::shared_ptr<FollowSet> make_follow(const Trie & trie,
                                       const Vocab & vocab,
                                       int on_complete,
                                       std::vector<Token> end_tokens,
                                       std::vector<Token> separator,
                                       std::int32_t max_items,
                                       std::int32_t min_items,
                                       bool unique,
                                       std::vector<std::string> exclude,
                                       std::vector<Token> start_after,
                                       std::int64_t max_before,
                                       std::int32_t max_span) {
    std::vector<Token> not_before;
    if (!start_after.empty()) {
        not_before = vocab.get() == nullptr ? end_tokens : vocab.end_of_generation();
    }
    FollowSet::Options options{static_cast<OnComplete>(on_complete),
                               std::move(end_tokens),
                               std::move(separator),
                               max_items,
                               min_items,
                               unique,
                               std::move(exclude),
                               std::move(start_after),
                               max_before,
                               std::move(not_before),
                               max_span};
    auto follow = std::make_shared<FollowSet>(trie, std::move(options));
    check_vocab(*follow, vocab);
    return follow;
}

py::object allowed(const Cursor & cursor) {
    const AllowedSet set = cursor.allowed();
    if (set.everything) {
        return py::none();
    }
    if (set.is_children_alone()) {
        return to_array(set.children.data, set.children.size);
    }
    std::vector<Token> tokens;
    set.for_each([&](Token token) {
        tokens.push_back(token);
        return true;
    });
    return to_array(tokens.data(), tokens.size());
}

py::array_t<bool> mask(const Cursor & cursor, std::int32_t n_vocab) {
    if (n_vocab < 0) {
        throw Error(Status::argument, "n_vocab: " + std::to_string(n_vocab) + " is negative");
    }
    py::array_t<bool> out(n_vocab);
    const AllowedSet set = cursor.allowed();
    std::fill_n(out.mutable_data(), n_vocab, set.everything);
    for (const Token token : set.except) {
        if (token < n_vocab) {
            out.mutable_data()[token] = false;
        }
    }
    if (!set.everything) {
        set.for_each([&](Token token) {
            if (token < n_vocab) {
                out.mutable_data()[token] = true;
            }
            return true;
        });
    }
    return out;
}

}  // namespace

void register_sampler(py::module_ & module) {
    using namespace pybind11::literals;
    py::class_<FollowSet, std::shared_ptr<FollowSet>>(module, "FollowSet")
        .def(py::init(&make_follow), "trie"_a, "vocab"_a, "on_complete"_a, "end_tokens"_a, "separator"_a, "max_items"_a,
             "min_items"_a, "unique"_a, "exclude"_a, "start_after"_a, "max_before"_a, "max_span"_a = 0);
    py::class_<Cursor>(module, "Cursor")
        .def(py::init([](std::shared_ptr<Trie> trie, std::shared_ptr<FollowSet> follow) {
                 return Cursor(std::move(trie), std::move(follow));
             }),
             "trie"_a.none(false), "follow"_a.none(false))
        .def("__copy__", [](const Cursor & cursor) { return Cursor(cursor); })
        .def("allowed", &allowed)
        .def("mask", &mask, "n_vocab"_a)
        .def("accept", &Cursor::accept, "token"_a)
        .def("reset", &Cursor::reset)
        .def_property_readonly("state", [](const Cursor & cursor) { return static_cast<int>(cursor.state()); })
        .def_property_readonly("ending", [](const Cursor & cursor) { return static_cast<int>(cursor.ending()); })
        .def_property_readonly("node", &Cursor::node)
        .def_property_readonly("n_items", &Cursor::n_items)
        .def_property_readonly("leaf", [](const Cursor & cursor) -> py::object {
            return cursor.leaf() == kNoLeaf ? py::object(py::none()) : py::object(py::int_(cursor.leaf()));
        });
    module.def(
        "make_sampler",
        [](const Cursor & cursor, int mode) {
            return reinterpret_cast<std::uintptr_t>(make_sampler(cursor, static_cast<Mode>(mode)));
        },
        "cursor"_a, "mode"_a);
}

}  // namespace token_trie
