"""Models with states on prompts that share their beginning, as parts of a cold `choose`, and counted in llama.cpp."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import Choice, StreamHandle, TokenTrie, choose, choose_many, decide, fill, fill_many, score
from token_trie.cli.ask import ACTIONS, prompt_for
from token_trie.sets.prompt import tokenize_prompt

from bench.completion import shared_tokens
from bench.contenders import alternatives
from bench.models import Model, load
from bench.modes.record import object_schema
from bench.native import counted, start_counting
from bench.results import Results, Table, progress
from bench.sets import data
from bench.tasks import MAIN_SET, requests
from bench.timing import Took, watch

_N_SHARED, _N_OWN = 538, 13  # tokens that all prompts begin with, and about as many of each one's own
_N_PROMPTS, _N_RECORDS = 12, 6
_COLD, _SAME, _RECORD = "choose, cold", "choose, same prompt", "fill of 5 fields, same prompt"
_GBNF = {"GBNF, shared beginning": _SAME, "GBNF, same prompt": _SAME, "GBNF, record": _RECORD}
_CAPTION = (
    f"{MAIN_SET}; prompts of about {_N_SHARED + _N_OWN} tokens that share {_N_SHARED}; all figures are of one answer.\n"
    "Of cold: part of the time of the model's own cold choose. Calls of llama_decode, their rows, the passes that\n"
    "llama.cpp makes of them, MB of states copied to and from the host. GBNF: llama-cpp-python, greedy, beside our\n"
    "exact answers to the same prompt. Weights are random: only what it costs means anything."
)


class _Step(NamedTuple):
    name: str
    run: Callable[[], object]
    n_answers: int = 1


class _Took(NamedTuple):
    ms: float
    cpu_ms: float
    counts: dict[str, float]


def run(options: Any) -> None:
    """Measure all models, which take turns at each step."""
    start_counting()
    results = Results("states")
    models = [load(name, options, n_ctx=1024) for name in options.models]
    for model in models:  # options are scored without a state once, before
        decide(model.llm, "N/A", _questions())
    taken: dict[str, dict[str, list[_Took]]] = {model.name: {} for model in models}
    for turn in progress(range(options.rounds or 3), "states"):
        for steps in zip(*(_steps(model, turn) for model in models), strict=True):
            for model, step in zip(models, steps, strict=True):
                with counted() as counts, watch() as took:
                    step.run()
                taken[model.name].setdefault(step.name, []).append(_of_one(took, counts, step.n_answers))
    for name, steps_of in taken.items():
        rows = _rows(steps_of)
        results.rows += [{"model": name, **row} for row in rows]
        results.tables.append(Table(name, rows, _CAPTION))
    results.finish(options.output)


def _prompts(model: Model, begin: str) -> list[list[int]]:
    """Return prompts after a beginning that no other prompts have."""
    llm: Any = model.llm
    prompts = [tokenize_prompt(llm, prompt_for(request["text"])) for request in requests()]
    n_shared = shared_tokens(prompts, 1)
    first = model.tokenize(f"{begin}\n")
    shared = first + prompts[0][n_shared - _N_SHARED + len(first) : n_shared]
    prompts.sort(key=lambda prompt: abs(len(prompt) - n_shared - _N_OWN))
    return [shared + prompt[n_shared:] for prompt in prompts[: _N_PROMPTS + 2]]


def _questions() -> dict[str, Choice[Any]]:
    labels = list(data("topics.json"))[:4]
    return {f"q{i}": Choice(f"What is request {i} about?", labels) for i in range(5)}


def _schema() -> dict[str, Any]:
    return object_schema(
        {
            "action": {"enum": list(ACTIONS)},
            "urgent": {"type": "boolean"},
            "priority": {"enum": ["low", "medium", "high"]},
            "minutes": {"type": "integer", "minimum": 0, "maximum": 60},
            "topic": {"enum": list(data("topics.json"))},
        }
    )


def _steps(model: Model, turn: int) -> Iterator[_Step]:
    """Yield what is measured, each step after those before it; what stands between two steps prepares the next."""
    llm: Any = model.llm
    names, schema, questions = list(ACTIONS), _schema(), _questions()
    first, second, *others = _prompts(model, f"{turn} a")
    yield _Step(_COLD, lambda: choose(llm, first, names))
    yield _Step("choose, shared beginning", lambda: choose(llm, second, names))
    yield _Step(_SAME, lambda: choose(llm, second, names))
    yield _Step(f"{_SAME}, greedy", lambda: choose(llm, second, names, mode="greedy"))
    yield _Step("score, same prompt", lambda: score(llm, second, names))
    yield _Step(_RECORD, lambda: fill(llm, second, schema))
    yield _Step(f"{_RECORD}, greedy", lambda: fill(llm, second, schema, mode="greedy"))
    yield _Step(f"choose_many of {_N_PROMPTS}", lambda: list(choose_many(llm, others, names)), _N_PROMPTS)
    records = others[:_N_RECORDS]
    yield _Step(f"fill_many of {_N_RECORDS}", lambda: list(fill_many(llm, records, schema)), _N_RECORDS)

    state, another, *_ = map(model.text, _prompts(model, f"{turn} b"))
    yield _Step("decide, 5 questions, first", lambda: decide(llm, state, questions))
    yield _Step("decide, 5 questions, shared beginning", lambda: decide(llm, another, questions))

    first, second, *_ = _prompts(model, f"{turn} c")
    trie = TokenTrie.from_choices(llm, names, prompt=first)
    with closing(StreamHandle(llm)) as handle:
        handle.prefill(first)
        handle.choose(trie)

        def take_turn() -> None:
            handle.append(second[_N_SHARED:])
            handle.choose(trie)

        yield _Step("choose after a turn on a handle", take_turn)

    first, second, *_ = _prompts(model, f"{turn} d")
    of_actions = LlamaGrammar.from_string(alternatives([f" {name}" for name in names]), verbose=False)
    of_schema = LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)
    complete = llm.create_completion
    complete(first, max_tokens=1)
    shared, same, record = list(_GBNF)
    yield _Step(shared, lambda: complete(second, temperature=0.0, max_tokens=16, grammar=of_actions))
    yield _Step(same, lambda: complete(second, temperature=0.0, max_tokens=16, grammar=of_actions))
    yield _Step(record, lambda: complete(second, temperature=0.0, max_tokens=128, grammar=of_schema))


def _of_one(took: Took, counts: dict[str, int], n: int) -> _Took:
    each = {name: count / n for name, count in counts.items()}
    return _Took(took.wall_ns / 1e6 / n, took.cpu_ns / 1e6 / n, each)


def _rows(taken: dict[str, list[_Took]]) -> list[dict[str, Any]]:
    ms, cpu_ms = (
        {name: float(np.median([getattr(each, what) for each in those])) for name, those in taken.items()}
        for what in ("ms", "cpu_ms")
    )
    rows = []
    for name, those in taken.items():
        counts, ours = those[-1].counts, _GBNF.get(name)
        row = {
            "": name,
            ">ms": ms[name],
            ">of cold": ms[name] / ms[_COLD],
            ">CPU ms": cpu_ms[name],
            ">of cold, CPU": cpu_ms[name] / cpu_ms[_COLD],
            ">times ours": ms[name] / ms[ours] if ours else None,
        }
        if counts["passes"]:
            # llama-cpp-python's own calls are not seen, their passes are.
            row |= {f">{what}": None if ours else round(counts[what], 1) for what in ("rows", "calls")}
            row |= {">passes": round(counts["passes"], 1), ">MB copied": counts["copied"] / 1e6}
        rows.append(row)
    return rows
