"""200,000 made-up titles of products, as texts."""

from collections.abc import Callable, Iterator
from itertools import islice, product
from time import perf_counter
from typing import Any

import numpy as np

from bench.catalogues.figures import CatalogueRow, Collector

N = 200_000
_PROMPT = "A customer looks for a warm blue jacket for the mountains.\nWe recommend: "
_KINDS = ["Jacket", "Backpack", "Lamp", "Chair", "Kettle", "Keyboard", "Bottle", "Tent", "Watch", "Speaker"]
_MATERIALS = ["Steel", "Oak", "Linen", "Wool", "Glass", "Leather", "Carbon", "Cotton", "Ceramic", "Bamboo"]
_COLOURS = ["Blue", "Black", "Olive", "White", "Red", "Grey", "Sand", "Teal", "Navy", "Rust"]
_MAKERS = ["Norvik", "Altura", "Brenda", "Castell", "Dunmore", "Eklund", "Farley", "Grove", "Hadley", "Ivarsen"]


def titles() -> Iterator[str]:
    """Return as many as are asked for, each once."""
    for i, maker, kind, material, colour in product(range(1, 1000), _MAKERS, _KINDS, _MATERIALS, _COLOURS):
        yield f"{maker} {material} {kind} {i}, {colour}"


def measure(name: str, llm: Any, rounds: int) -> list[CatalogueRow]:
    """Measure building of texts, a decision among them, and the ten best."""
    import token_trie
    from token_trie.native.core import vocab_of

    rows: list[CatalogueRow] = []
    to = Collector(rows, f"titles, {name}", N)
    texts = list(islice(titles(), N))
    vocab = vocab_of(llm)

    def one_by_one() -> None:
        model = llm._model
        for text in texts[:: N // 20_000]:
            model.tokenize(text.encode(), False, False)

    start = perf_counter()
    one_by_one()
    to.put("llama_tokenize on one core", "texts to tokens", (perf_counter() - start) * (N // 20_000), "s")
    start = perf_counter()
    trie = token_trie.TokenTrie.from_choices(llm, texts, prompt=_PROMPT.rstrip(" "))
    to.put("token-trie", "build from texts", perf_counter() - start, "s")
    to.put("token-trie", "bytes a member", trie.core.structure_bytes / N, "B")
    to.put("token-trie", "distinct tokens", len(vocab), "")
    in_stock = np.random.default_rng(0).random(len(trie)) < 0.1
    few = trie.filtered(in_stock)

    def decide(among: Any, n_best: int) -> Callable[[], Any]:
        return lambda: token_trie.choose(llm, _PROMPT.rstrip(" "), among, mode="exact", n_best=n_best)

    work = {"choose": decide(trie, 1), "choose, 10 % left": decide(few, 1), "ten best": decide(trie, 10)}
    taken: dict[str, list[float]] = {what: [] for what in work}
    for i in range(rounds + 1):
        for what, do in work.items():
            start = perf_counter()
            do()
            if i:
                taken[what].append(perf_counter() - start)
    for what, them in taken.items():
        to.put("token-trie", what, float(np.median(them)), "s")
    return rows
