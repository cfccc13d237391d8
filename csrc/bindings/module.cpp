#include "bindings/bindings.h"

PYBIND11_MODULE(_core, module) {
    token_trie::register_errors(module);
    token_trie::register_trie(module);
    token_trie::register_cache(module);
    token_trie::register_devices(module);
    token_trie::register_vocab(module);
    token_trie::register_sampler(module);
    token_trie::register_matcher(module);
    token_trie::register_tables(module);
    token_trie::register_threads(module);
}
