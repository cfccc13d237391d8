"""A set less some of its members."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from token_trie.errors import ArgumentError
from token_trie.native.arguments import encode_names
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.lease import lease
from token_trie.sets.payload import payload_of_texts


def without(trie: _core.Trie, names: Iterable[str], llm: Llama | None) -> _core.Trie:
    """Build a trie without the members of these names; see `TokenTrie.without`."""
    all_names = [*((trie.name(leaf), leaf) for leaf in range(trie.n_leaves)), *trie.aliases]
    given = [name.decode() for name in encode_names(names, "names")]
    unknown = set(given).difference(name for name, _ in all_names)
    for i, name in enumerate(given):
        if name in unknown:
            raise ArgumentError(f"names[{i}]: {name!r} is no member of the set")
    wanted = set(given)
    out = {leaf for name, leaf in all_names if name in wanted}
    kept = [(name, leaf) for name, leaf in all_names if leaf not in out]
    if not kept:
        raise ArgumentError("names: no member of the set is left")
    names_kept = [name for name, _ in kept]
    if not trie.is_tree:
        if llm is None:
            raise ArgumentError("llm: a set of texts in any tokenization is made for a model; give it")
        payload = payload_of_texts(names_kept, [trie.text(leaf).decode() for _, leaf in kept])
        with lease(llm):
            return _core.cached_trie(payload.encode(), None, vocab_of(llm))
    tokens, offsets = trie.arrays()
    rows = [tokens[offsets[leaf] : offsets[leaf + 1]] for _, leaf in kept]
    ends = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return _core.Trie.build(np.concatenate(rows), ends, names_kept, trie.vocab)
