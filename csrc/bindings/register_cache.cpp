#include "bindings/bindings.h"
#include "llama/vocab.h"
#include "trie/cache.h"

namespace token_trie {

void register_cache(py::module_ & module) {
    using namespace pybind11::literals;
    module.def(
        "cached_trie",
        [](const std::string & json, const std::optional<std::string> & path, const Vocab * vocab) {
            const py::gil_scoped_release unlocked;
            return std::const_pointer_cast<Trie>(
                Cache::shared().get(json, path, vocab == nullptr ? 0 : vocab->size(),
                                    [vocab] { return vocab == nullptr ? nullptr : vocab->lexicon(); }));
        },
        "json"_a, "path"_a, "vocab"_a.none(true));
    module.def(
        "tries_by_path",
        [](const std::string & json, const Vocab & vocab) {
            const auto read = [&] {
                const py::gil_scoped_release unlocked;
                TrieSets sets = Cache::shared().get_paths(json, vocab.size(), [&] { return vocab.lexicon(); });
                for (const auto & [path, trie] : sets) {
                    check_vocab(*trie, vocab);
                }
                return sets;
            };
            py::dict out;
            for (const auto & [path, trie] : read()) {
                out[py::str(path)] = std::const_pointer_cast<Trie>(trie);
            }
            return out;
        },
        "json"_a, "vocab"_a);
    module.def("cache_stats", [] {
        const Cache::Stats stats = Cache::shared().stats();
        return py::make_tuple(stats.hits, stats.misses, stats.evictions, stats.entries, Cache::kCapacity, stats.bytes);
    });
    module.def("cache_clear", [] { Cache::shared().clear(); });
}

}  // namespace token_trie
