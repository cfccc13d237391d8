"""Sets of 10⁵ to 10⁸ members: what they take, beside STATIC and marisa-trie; members asked for in other words."""

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice, product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import token_trie
from sklearn.feature_extraction.text import TfidfVectorizer
from token_trie import Choice, TokenTrie
from token_trie.questions.options import profile_of

from bench import native
from bench.contenders import greedy_sampler
from bench.models import load
from bench.plots import catalogue as plot
from bench.results import Results, Table, figure, progress
from bench.timing import timed

_SIZES = [100_000, 1_000_000, 10_000_000]
_V, _LENGTH, _ROWS, _FEW = 2048, 8, 140, 30  # ids are 8 uniform tokens out of 2,048, as STATIC is measured
_MAX_MARISA = _MAX_TENSORS = 10_000_000
_MAX_STATIC = 1_000_000
_OURS, _STATIC, _MARISA, _ALONE = "token-trie", "STATIC", "marisa-trie", "llama_tokenize on one core"
_N_TITLES = 200_000
_PROMPT = "A customer looks for a warm blue jacket for the mountains.\nWe recommend:"
_CATALOGUES = json.loads((Path(__file__).parents[1] / "data" / "catalogue.json").read_text())
_N_NEAR = 10  # members that the index leaves to the model
_LIKENESS = 40  # nats for a likeness of 1, chosen on titles and people
_N_ASKED, _HELD_OUT = 50_000, range(25, 50)  # the first queries were used to choose how to search
_KINDS = ["Jacket", "Backpack", "Lamp", "Chair", "Kettle", "Keyboard", "Bottle", "Tent", "Watch", "Speaker"]
_MATERIALS = ["Steel", "Oak", "Linen", "Wool", "Glass", "Leather", "Carbon", "Cotton", "Ceramic", "Bamboo"]
_COLOURS = ["Blue", "Black", "Olive", "White", "Red", "Grey", "Sand", "Teal", "Navy", "Rust"]
_MAKERS = ["Norvik", "Altura", "Brenda", "Castell", "Dunmore", "Eklund", "Farley", "Grove", "Hadley", "Ivarsen"]


class _Rows(list[dict[str, Any]]):
    """The figures of one set."""

    def __init__(self, of: str, members: int) -> None:
        self.of, self.members = of, members

    def put(self, who: str, what: str, value: float, unit: str, depth: int | None = None) -> None:
        """Add a figure; depth: the number of tokens before the step."""
        where = {"set": self.of, "members": self.members, "depth": depth}
        self.append(where | {"contender": who, "quantity": what, "value": float(value), "unit": unit})


def run(options: Any) -> None:
    """Measure sets of uniform ids, each in a process of its own, and titles with each model."""
    results = Results("catalogue")
    for n in progress(options.members or _SIZES, "ids"):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            results.rows += alone.submit(_uniform, n).result()
    for name in progress(options.models, "titles"):
        llm = load(name, n_ctx=256).llm
        results.rows += _titles(name, llm, options.rounds or 3)
        for kind in _CATALOGUES:
            results.rows += _asked(name, llm, kind)
    for of in dict.fromkeys(row["set"] for row in results.rows):
        lines: dict[str, dict[str, Any]] = {}
        for row in (row for row in results.rows if row["set"] == of):
            column = f">{row['contender']}, {row['members']:,}"
            line = lines.setdefault(row["quantity"], {"": row["quantity"]})
            before = line[column].removesuffix(f" {row['unit']}") + "; " if column in line else ""
            line[column] = f"{before}{figure(row['value'])} {row['unit']}".strip()
        caption = "Eight figures in a cell: after 0 to 7 tokens." if of == "uniform" else ""
        results.tables.append(Table(of, list(lines.values()), caption))
    results.finish(options.output, plot)


def _seconds(work: Callable[[], Any], times: int = 1) -> float:
    return median(timed(work)[0] for _ in range(times)) / 1e9


def _memory(what: str) -> int:
    """Return a figure of this process's memory in bytes, as Linux reports it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) << 10


def _drawn(n: int) -> Any:
    """Return n ids in the order of their tokens."""
    ids = np.random.default_rng(0).integers(0, _V, (n, _LENGTH), dtype=np.int32)
    keys = sum(ids[:, i].astype(np.int64) << (44 - 11 * i) for i in range(5))
    return ids[np.argsort(keys, kind="stable")]


def _trie_of(ids: Any) -> TokenTrie:
    return TokenTrie.from_arrays(ids.ravel(), np.arange(0, ids.size + 1, _LENGTH))


def _uniform(n: int) -> _Rows:
    """Measure a set of n members, with all contenders that go so far."""
    rows, ids = _Rows("uniform", n), _drawn(n)
    shuffled = _build(rows, ids[np.random.default_rng(5).permutation(n)], "")
    mask = np.random.default_rng(6).random(len(shuffled)) < 0.1
    rows.put(_OURS, "filter, members in no order", _seconds(partial(shuffled.filtered, mask), 3) * 1e3, "ms")
    del shuffled, mask
    trie = _build(rows, ids, ", in token order")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ids.trie"
        rows.put(_OURS, "save", _seconds(lambda: trie.save(file)), "s")
        rows.put(_OURS, "open and first step", _seconds(lambda: TokenTrie.open(file).children([]), 5) * 1e3, "ms")
        mapped = TokenTrie.open(file)
        paths = ids[np.random.default_rng(1).integers(0, n, 20_000)]
        _steps(rows, mapped, paths, "")
        _filters(rows, mapped)
        few = ids[:: max(1, n // _FEW)][:_FEW]
        _steps(rows, _trie_of(few), few[np.random.default_rng(3).integers(0, len(few), 20_000)], f", {_FEW} members")
        if n <= _MAX_TENSORS:
            _tensors(rows, mapped, paths)
    if n <= _MAX_MARISA:
        _marisa(rows, ids)
    return rows


def _build(rows: _Rows, ids: Any, order: str) -> TokenTrie:
    if can_tell := Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _memory("VmRSS")
    ns, trie = timed(lambda: _trie_of(ids))
    rows.put(_OURS, "build" + order, ns / 1e9, "s")
    if can_tell:
        rows.put(_OURS, "peak of build, of the result" + order, (_memory("VmHWM") - before) / trie.nbytes, "x")
    rows.put(_OURS, "bytes a member" + order, trie.nbytes / rows.members, "B")
    return trie


def _steps(rows: _Rows, trie: TokenTrie, paths: Any, name: str) -> None:
    """Measure a step of the tree alone, to a member's end, and what the sampler adds to a step at each depth."""
    core = trie.core
    walk = _seconds(lambda: [core.descend(path) for path in paths], 3)
    rows.put(_OURS, f"step{name}", walk * 1e6 / paths.size, "µs")
    sampler = greedy_sampler(trie)
    logits = np.random.default_rng(4).standard_normal(_V).astype(np.float32)
    part = len(paths) // _LENGTH
    for depth in range(_LENGTH):
        # Others at the next depth, as a path that was walked before is in the cache.
        some = np.ascontiguousarray(paths[depth * part : (depth + 1) * part, :depth], np.int32)
        taken = native.apply(sampler.pointer, logits, 2000, some if depth else None)
        rows.put(_OURS, f"apply{name}", float(np.mean(taken)) / 1e3, "µs", depth)


def _filters(rows: _Rows, trie: TokenTrie) -> None:
    rng = np.random.default_rng(2)
    for share, name in ((0.1, ", 10 % left"), (0.0001, ", 0.01 % left")):
        mask = rng.random(len(trie)) < share
        rows.put(_OURS, f"filter{name}", _seconds(partial(trie.filtered, mask), 3) * 1e3, "ms")
        some = rng.choice(np.flatnonzero(mask), 2000)
        _steps(rows, trie.filtered(mask), np.stack([trie.core.sequence(int(i)) for i in some]), name)


def _tensors(rows: _Rows, trie: TokenTrie, paths: Any) -> None:
    """Measure candidates and next nodes of 140 rows at each depth, beside STATIC where its folder is given."""
    import torch
    from token_trie.engines.torch import DeviceTries

    tries = DeviceTries(_V)
    nodes = torch.full((_ROWS,), tries.add(trie, on_complete="release"))
    rows.put(_OURS, "bytes a member on a device", tries.nbytes / len(trie), "B")
    logprobs = torch.log_softmax(torch.randn(_ROWS, _V, generator=torch.Generator().manual_seed(0)), -1)
    tokens = torch.tensor(paths[:_ROWS], dtype=torch.int64)
    static = _static(rows, tokens, logprobs)
    for depth in range(_LENGTH):
        turns: dict[str, Callable[[], Any]] = {_OURS: partial(tries.candidates, logprobs, nodes)}
        turns |= {_STATIC: static[depth]} if static else {}
        taken: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(30):
            for name, work in turns.items():
                taken[name].append(_seconds(lambda work=work: [work() for _ in range(20)]) / 20)
        for name, them in taken.items():
            rows.put(name, f"candidates of {_ROWS} rows", median(them) * 1e6, "µs", depth)
        mask = partial(tries.mask_, logprobs.clone(), nodes)
        rows.put(_OURS, f"mask_ of {_ROWS} rows", _seconds(mask, 200) * 1e6, "µs", depth)
        nodes = tries.step(nodes, tokens[:, depth])


def _static(rows: _Rows, tokens: Any, logprobs: Any) -> list[Callable[[], Any]] | None:
    """Return STATIC's step at each depth: what its sparse_transition_torch does before it ranks the beams."""
    folder = os.environ.get("STATIC_DIR")
    if folder is None or rows.members > _MAX_STATIC:
        return None
    import torch

    sys.path.insert(0, folder)
    from static_decoding.csr_utils import build_static_index  # type: ignore[import-not-found]
    from static_decoding.decoding_pt import generate_and_apply_logprobs_mask  # type: ignore[import-not-found]

    ns, made = timed(lambda: build_static_index(_drawn(rows.members), _V, 2))
    rows.put(_STATIC, "build", ns / 1e9, "s")
    nbytes = sum(np.asarray(each).nbytes for each in made)
    rows.put(_STATIC, "bytes a member on a device", nbytes / rows.members, "B")
    packed, indptr, limits, start_mask, dense_mask, dense_states = (
        torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in made
    )
    minus, beams, device = torch.tensor(-float("inf")), 70, torch.device("cpu")

    def first() -> Any:
        return torch.where(start_mask, logprobs, minus).topk(beams, -1)

    def second() -> Any:
        best = torch.where(dense_mask[tokens[:, 0]], logprobs, minus).topk(beams, -1)
        return best, dense_states[tokens[:, 0].unsqueeze(1), best.indices]

    def sparse(here: Any, limit: int) -> Any:
        return generate_and_apply_logprobs_mask(logprobs, here, packed, indptr, limit, _V, device)

    steps: list[Callable[[], Any]] = [first, second]
    states = dense_states[tokens[:, 0], tokens[:, 1]]
    for depth in range(2, _LENGTH):
        steps.append(partial(sparse, states, int(limits[depth])))
        _, found, following = steps[-1]()
        states = following.gather(1, (found == tokens[:, depth : depth + 1]).int().argmax(1, keepdim=True))[:, 0]
    return steps


def _marisa(rows: _Rows, ids: Any) -> None:
    try:
        import marisa_trie
    except ImportError:
        return
    keys = ids.astype(">u2")
    ns, made = timed(lambda: marisa_trie.Trie(bytes(key).decode("utf-16-be", "surrogatepass") for key in keys))
    rows.put(_MARISA, "build", ns / 1e9, "s")
    rows.put(_MARISA, "bytes a member", len(made.tobytes()) / rows.members, "B")


def titles() -> Iterator[str]:
    """Yield ten million made-up titles."""
    for i, maker, kind, material, colour in product(range(1, 1000), _MAKERS, _KINDS, _MATERIALS, _COLOURS):
        yield f"{maker} {material} {kind} {i}, {colour}"


def _titles(name: str, llm: Any, rounds: int) -> _Rows:
    """Measure building of texts, a decision among them, and the ten best."""
    rows = _Rows(f"titles, {name}", _N_TITLES)
    texts = list(islice(titles(), _N_TITLES))
    some = texts[:: _N_TITLES // 20_000]
    alone = _seconds(lambda: [llm._model.tokenize(text.encode(), False, False) for text in some])
    rows.put(_ALONE, "texts to tokens", alone * _N_TITLES / len(some), "s")
    ns, trie = timed(lambda: TokenTrie.from_choices(llm, texts, prompt=_PROMPT))
    rows.put(_OURS, "build from texts", ns / 1e9, "s")
    rows.put(_OURS, "bytes a member", trie.core.structure_bytes / _N_TITLES, "B")
    few = trie.filtered(np.random.default_rng(0).random(len(trie)) < 0.1)
    for what, among, n_best in (("choose", trie, 1), ("choose, 10 % left", few, 1), ("ten best", trie, 10)):
        decide = partial(token_trie.choose, llm, _PROMPT, among, mode="exact", n_best=n_best)
        decide()
        rows.put(_OURS, what, _seconds(decide, rounds), "s")
    return rows


def asked(kind: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the members of a catalogue, whose parts are the rarer the later they are listed, and 50 queries.

    A query names a member in another order, and every second one in other words, too; it comes with the member.
    """
    parts, member = _CATALOGUES[kind]["parts"], _CATALOGUES[kind]["member"]
    rng = random.Random(f"{kind} 0")
    weights = {part: [1 / (i + 2) for i in range(len(texts))] for part, texts in parts.items()}
    made: dict[str, dict[str, str]] = {}
    while len(made) < _N_ASKED:
        row = {part: rng.choices(texts, weights[part])[0] for part, texts in parts.items()}
        made.setdefault(member.format(**row), row)
    members = sorted(made)
    queries = []
    for i, text in enumerate(rng.sample(members, _HELD_OUT.stop)):
        words = _CATALOGUES[kind]["words"] if i % 2 else {}
        row = {part: words.get(word, word) for part, word in made[text].items()}
        forms = _CATALOGUES[kind]["forms"]
        queries.append((forms[i // 2 % len(forms)].format(**row), text))
    return members, queries


def _asked(name: str, llm: Any, kind: str) -> _Rows:
    """Measure how often the member that is asked for comes first: for the model, an index of characters, and both."""
    rows, template = _Rows(f"{kind}, {name}", _N_ASKED), _CATALOGUES[kind]["prompt"]
    members, queries = asked(kind)
    trie = TokenTrie.from_choices(llm, members, prompt=template.format(query=queries[0][0]))
    contextual = token_trie.Contextual(template.format(query=""))
    spaced = profile_of(llm) == "plain"
    question = Choice(_CATALOGUES[kind]["question"], TokenTrie.from_choices(llm, members, leading_space=spaced))
    index = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4))
    known = index.fit_transform(members)

    def near(query: str) -> tuple[list[str], Any]:
        likeness = (known @ index.transform([query]).T).toarray().ravel()
        best = np.argsort(-likeness, kind="stable")[:_N_NEAR]
        return [members[i] for i in best.tolist()], likeness[best]

    def choose(query: str, among: TokenTrie, **how: Any) -> str:
        return token_trie.choose(llm, template.format(query=query), among, **how).text

    def weighed(query: str) -> str:
        few, likeness = near(query)
        own = token_trie.score(llm, template.format(query=query), few, leaf_end="longest", calibration=contextual)
        return few[int(np.argmax(own + _LIKENESS * likeness))]

    ways: dict[str, Callable[[str], str]] = {
        "choose": lambda query: choose(query, trie),
        "choose, contextual": lambda query: choose(query, trie, calibration=contextual),
        "decide, the set as options": lambda query: str(token_trie.decide(llm, query, question).value),
        "index": lambda query: near(query)[0][0],
        "index, then choose, contextual": lambda query: choose(
            query, trie.only(near(query)[0]), calibration=contextual
        ),
        "index and contextual scores": weighed,
    }
    for what, way in ways.items():
        start = perf_counter()
        found = [way(queries[i][0]) for i in _HELD_OUT]
        rows.put(_OURS, what, (perf_counter() - start) / len(found), "s")
        hits = sum(text == queries[i][1] for i, text in zip(_HELD_OUT, found, strict=True))
        rows.put(_OURS, f"{what}: the right one first", 100 * hits / len(found), "%")
    return rows
