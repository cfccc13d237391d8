#include "bindings/bindings.h"
#include "llama/vocab.h"
#include "trie/cache.h"
#include "trie/tensors.h"
#include "trie/trie_file.h"

#include <algorithm>
#include <functional>
#include <optional>

namespace token_trie {
namespace {

// pybind11 holds no pointers to what is const; nothing is changed through these.
std::shared_ptr<Trie> shared(const std::shared_ptr<const Trie> & trie) { return std::const_pointer_cast<Trie>(trie); }

std::shared_ptr<Trie> build(const TokenArray & tokens,
                            const OffsetArray & offsets,
                            std::vector<std::string> names,
                            std::string vocab) {
    throw_if(tokens.ndim() != 1 || offsets.ndim() != 1 || offsets.size() == 0 ||
                 offsets.data()[offsets.size() - 1] != tokens.size(),
             Status::argument, "tokens and offsets: one dimension each, and offsets end with len(tokens)");
    const LeafView leaves{tokens.data(), reinterpret_cast<const std::uint64_t *>(offsets.data()),
                          static_cast<std::size_t>(offsets.size()) - 1};
    const py::gil_scoped_release unlocked;
    return shared(Trie::build(leaves, std::move(names), std::move(vocab)));
}

// A method that has a leaf, or a node, for its first argument, which is looked at.
template <typename Method>
auto at_leaf(const Method & method) {
    return [method](const Trie & trie, LeafId leaf) {
        if (leaf >= trie.n_leaves()) {
            throw py::index_error(concat("leaf ", leaf, " of ", trie.n_leaves()));
        }
        return method(trie, leaf);
    };
}
template <typename... More, typename Method>
auto at_node(const Method & method) {
    return [method](const Trie & trie, NodeId node, More... more) {
        if (node >= trie.n_nodes()) {
            throw py::index_error(concat("node ", node, " of ", trie.n_nodes()));
        }
        return method(trie, node, more...);
    };
}

py::tuple to_arrays(const Trie & trie) {
    std::vector<Token> tokens;
    std::vector<std::int64_t> offsets{0};
    {
        const py::gil_scoped_release unlocked;
        tokens.reserve(trie.n_tokens());
        offsets.reserve(trie.n_leaves() + std::size_t{1});
        for (LeafId leaf = 0; leaf < trie.n_leaves(); ++leaf) {
            const std::vector<Token> sequence = trie.sequence(leaf);
            tokens.insert(tokens.end(), sequence.begin(), sequence.end());
            offsets.push_back(static_cast<std::int64_t>(tokens.size()));
        }
    }
    return py::make_tuple(to_array(tokens), to_array(offsets));
}

template <typename T>
py::array_t<T> given_away(std::vector<T> values) {
    auto held = std::make_unique<std::vector<T>>(std::move(values));
    const auto n = static_cast<py::ssize_t>(held->size());
    const T * data = held->data();
    return py::array_t<T>(n, data,
                          py::capsule(held.release(), [](void * p) { delete static_cast<std::vector<T> *>(p); }));
}

py::tuple tensors_of(const std::shared_ptr<Trie> & trie) {
    Tensors made;
    {
        const py::gil_scoped_release unlocked;
        made = to_tensors(trie);
    }
    return py::make_tuple(given_away(std::move(made.first)), given_away(std::move(made.tokens)),
                          given_away(std::move(made.targets)), given_away(std::move(made.tails)),
                          given_away(std::move(made.ends)));
}

py::array_t<NodeId> to_leaf_nodes(const Trie & trie) {
    py::array_t<NodeId> out(trie.n_leaves());
    std::fill_n(out.mutable_data(), out.size(), kNoNode);
    for (NodeId node = 0; node < trie.n_nodes(); ++node) {
        if (const LeafId leaf = trie.leaf(node); leaf != kNoLeaf) {
            out.mutable_at(leaf) = node;
        }
    }
    return out;
}

using Mask = py::array_t<bool, py::array::c_style>;

Mask to_left(const Trie & trie) {
    Mask out(trie.n_leaves());
    bool * left = out.mutable_data();
    const py::gil_scoped_release unlocked;
    for (LeafId leaf = 0; leaf < trie.n_leaves(); ++leaf) {
        left[leaf] = trie.has_leaf(leaf);
    }
    return out;
}

const std::uint8_t * mask_of(const Trie & trie, const Mask & keep) {
    throw_if(keep.ndim() != 1 || keep.size() != trie.n_leaves(), Status::argument, "mask: ", keep.size(), " for ",
             trie.n_leaves(), " members");
    return reinterpret_cast<const std::uint8_t *>(keep.data());
}

// None for none.
py::object to_id(std::uint32_t id) { return id == UINT32_MAX ? py::object(py::none()) : py::object(py::int_(id)); }

// In a damaged file a name may be any bytes.
py::object to_name(const Trie & trie, LeafId leaf) {
    const std::string name = trie.name(leaf);
    return py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(name.data(), static_cast<py::ssize_t>(name.size()), "replace"));
}

py::list to_aliases(const Trie & trie) {
    py::list out;
    for (const Alias & alias : trie.aliases()) {
        out.append(py::make_tuple(alias.name, alias.leaf));
    }
    return out;
}

using namespace pybind11::literals;
using Unlocked = py::call_guard<py::gil_scoped_release>;

void register_files(py::module_ & module) {
    module.def(
        "set_of",
        [](std::shared_ptr<Trie> trie) {
            return reinterpret_cast<std::uintptr_t>(std::make_unique<Set>(std::move(trie)).release());
        },
        py::arg("trie").none(false));
    py::class_<TrieImage>(module, "TrieImage")
        .def(py::init<std::shared_ptr<Trie>>(), py::arg("trie").none(false), Unlocked())
        .def("__len__", [](const TrieImage & image) { return image.pieces().size(); })
        // Valid as long as the image, which memoryviews keep.
        .def(
            "piece",
            [](const TrieImage & image, std::size_t i) {
                const std::string_view bytes = image.pieces().at(i);
                return py::memoryview::from_memory(bytes.data(), static_cast<py::ssize_t>(bytes.size()));
            },
            "i"_a);
    module.def(
        "open_trie", [](const std::string & path) { return shared(open_trie_file(path)); }, "path"_a, Unlocked());
    module.def("verify_trie", &verify_trie_file, "path"_a, Unlocked());
}

void register_class(const py::module_ & module) {
    py::class_<Trie, std::shared_ptr<Trie>>(module, "Trie")
        .def_static("build", &build, "tokens"_a, "offsets"_a, "names"_a, "vocab"_a)
        .def_property_readonly("n_nodes", &Trie::n_nodes)
        .def_property_readonly("n_leaves", &Trie::n_leaves)
        .def_property_readonly("n_tokens", &Trie::n_tokens)
        .def_property_readonly("max_length", &Trie::max_length)
        .def_property_readonly("max_token", &Trie::max_token)
        .def_property_readonly("vocab", &Trie::vocab)
        .def_property_readonly("structure_bytes", &Trie::structure_bytes)
        .def_property_readonly("total_bytes", &Trie::total_bytes)
        .def_property_readonly("aliases", &to_aliases)
        .def(
            "laid_out",
            [](const std::shared_ptr<Trie> & trie, bool compact) {
                return shared(Trie::laid_out(trie, compact ? Layout::compact : Layout::flat));
            },
            "compact"_a, Unlocked())
        .def(
            "filtered",
            [](const std::shared_ptr<Trie> & trie, const Mask & keep) {
                const std::uint8_t * bytes = mask_of(*trie, keep);
                const py::gil_scoped_release unlocked;
                return shared(Trie::filtered(trie, bytes));
            },
            py::arg("keep").noconvert())
        .def(
            "kept_alone",
            [](const std::shared_ptr<Trie> & trie) { return shared(Trie::laid_out(trie, Layout::by_size)); },
            Unlocked())
        .def("leaves_named", &Trie::leaves_named, "names"_a, Unlocked())
        .def_property_readonly("n_members", &Trie::n_members)
        .def("has_leaf", at_leaf(std::mem_fn(&Trie::has_leaf)), "leaf"_a)
        .def("arrays", &to_arrays)
        .def("tensors", &tensors_of)
        .def("leaf_nodes", &to_leaf_nodes)
        .def("left", &to_left)
        .def("name", at_leaf(&to_name), "leaf"_a)
        .def("sequence", at_leaf([](const Trie & trie, LeafId leaf) { return to_array(trie.sequence(leaf)); }),
             "leaf"_a)
        .def(
            "descend",
            [](const Trie & trie, const TokenArray & tokens) {
                return to_id(trie.descend(tokens.data(), static_cast<std::size_t>(tokens.size())));
            },
            "tokens"_a)
        .def("children", at_node([](const Trie & trie, NodeId node) { return to_array(trie.children(node)); }),
             "node"_a)
        .def("child_nodes", at_node([](const Trie & trie, NodeId node) {
                 std::vector<std::int64_t> nodes(trie.children(node).size);
                 for (std::uint32_t i = 0; i < nodes.size(); ++i) {
                     nodes[i] = trie.child_at(node, i);
                 }
                 return to_array(nodes);
             }),
             "node"_a)
        .def("child",
             at_node<Token>([](const Trie & trie, NodeId node, Token token) { return to_id(trie.child(node, token)); }),
             "node"_a, "token"_a)
        .def("leaf", at_node([](const Trie & trie, NodeId node) { return to_id(trie.leaf(node)); }), "node"_a);
}

void register_cache(py::module_ & module) {
    module.def(
        "cached_trie",
        [](const std::string & json, const std::optional<std::string> & path, const Vocab * vocab) {
            const py::gil_scoped_release unlocked;
            return shared(Cache::shared().get(json, path, vocab == nullptr ? 0 : vocab->size()));
        },
        "json"_a, "path"_a, "vocab"_a.none(true));
    module.def(
        "tries_by_path",
        [](const std::string & json, const Vocab & vocab) {
            const auto read = [&] {
                const py::gil_scoped_release unlocked;
                TrieSets sets = Cache::shared().get_paths(json, vocab.size());
                for (const auto & [path, trie] : sets) {
                    check_vocab(*trie, vocab);
                }
                return sets;
            };
            py::dict out;
            for (const auto & [path, trie] : read()) {
                out[py::str(path)] = shared(trie);
            }
            return out;
        },
        "json"_a, "vocab"_a);
    module.def("cache_stats", [] {
        const Cache::Stats stats = Cache::shared().stats();
        return py::make_tuple(stats.hits, stats.misses, stats.evictions, stats.entries, stats.capacity, stats.bytes);
    });
    module.def("cache_clear", [] { Cache::shared().clear(); });
}

}  // namespace

void register_trie(py::module_ & module) {
    register_files(module);
    register_class(module);
    register_cache(module);
}

}  // namespace token_trie
