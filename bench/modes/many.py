"""Many prompts at once, beside one after the other and llama.cpp's bare passes."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import choose, choose_many, fill, fill_many
from token_trie.cli.demo import ACTIONS, prompt_for
from token_trie.sets.prompt import tokenize_prompt

from bench.completion import shared_tokens
from bench.contenders import alternatives
from bench.models import Model, load
from bench.results import Results, Table, progress
from bench.tasks import MAIN_SET, requests
from bench.timing import watch

_SIZES = (1, 8, 64, 512)  # by default
_MANY = 64  # above which all share one beginning
_AT_MOST = 16  # prompts that slow contenders answer; their rate does not depend on the number
_ROWS, _SEQUENCES = 256, 64  # of a bare pass
_LABELS, _RECORD = "3 labels", "record of 3 fields"
_KINDS = ((_LABELS, True), (MAIN_SET, True), (_LABELS, False), (_RECORD, True))
_SETS = {_LABELS: ["work", "home", "travel"], MAIN_SET: list(ACTIONS)}
_FIELDS = {
    "about": {"type": "string", "maxLength": 24},
    "urgent": {"type": "boolean"},
    "day": {"enum": ["now", "later"]},
}
_SCHEMA = {"type": "object", "properties": _FIELDS, "required": [*_FIELDS]}
_CAPTION = "Prompts are plain text, without a chat template; the shared beginning has an example of each action."


@dataclass(frozen=True)
class Cost:
    """Time for n prompts, nothing of them evaluated before; CPU seconds are of all threads."""

    n: int
    cpu_s: float
    seconds: tuple[float, ...] = ()  # to the first answer, to half of the answers, to 99 %
    n_tokens: int = 0  # evaluated, where that is known


def run(options: Any) -> None:
    """Measure with all models."""
    sizes = sorted({*(n for n in _SIZES if n < options.prompts), options.prompts})
    kinds = [(n, name, shared) for n in sizes for name, shared in _KINDS]
    kinds = [(n, name, shared) for n, name, shared in kinds if shared or n <= _MANY]
    results = Results("many")
    for name in options.models:
        model = load(name, n_ctx=2048, n_batch=512, n_gpu_layers=options.n_gpu_layers, threads=options.threads)
        found: dict[tuple[Any, ...], Cost] = {}
        for n, set_name, shared in progress(kinds, model.name):
            for way, took in _measure(model, _SETS.get(set_name), n, shared, options.rounds or 1).items():
                found[(shared, n, set_name, *way)] = took
        results.tables.append(Table(f"{model.name}: many prompts", list(map(_line, found, found.values())), _CAPTION))
    results.finish(options.output)


def _line(key: tuple[Any, ...], took: Cost) -> dict[str, Any]:
    shared, n, set_name, who, mode = key
    return {
        "beginning": "shared" if shared else "own",
        ">prompts": n,
        "set": set_name,
        "who": who,
        "mode": mode,
        ">CPU ms a prompt": 1e3 * took.cpu_s / took.n,
        ">tokens a CPU s": took.n_tokens / took.cpu_s if took.n_tokens else None,
        ">first, p50, p99, s": " ".join(f"{each:.2f}" for each in took.seconds),
    }


def _measure(model: Model, choices: list[str] | None, n: int, shared: bool, rounds: int) -> dict[tuple[str, str], Cost]:
    """Measure choices, or records where there are none."""
    llm: Any = model.llm
    write = prompt_for if shared else "{0}\nIn a word, what the request is about:".format
    texts = requests()
    prompts = [tokenize_prompt(llm, write(f"{texts[i % len(texts)]['text']} ({i})")) for i in range(n)]
    n_shared = shared_tokens(prompts, 1) if shared else 0
    if choices is None:
        prompts = [prompt + model.tokenize(" As JSON: ") for prompt in prompts]
        grammar = LlamaGrammar.from_json_schema(json.dumps(_SCHEMA), verbose=False)
    else:
        grammar = LlamaGrammar.from_string(alternatives([f" {text}" for text in choices]), verbose=False)

    def complete(prompt: list[int]) -> object:
        return llm.create_completion(prompt, grammar=grammar, temperature=0.0, max_tokens=64 if choices is None else 16)

    def loop(mode: Any) -> Callable[[], Cost]:
        return lambda: _loop(model, prompts, lambda prompt: choose(llm, prompt, choices, mode=mode))

    ways: dict[tuple[str, str], Callable[[], Cost]] = {
        ("bare passes", ""): lambda: bare_passes(model, prompts, n_shared),
        ("choose_many", "greedy"): lambda: _together(model, prompts, choices, n_shared, "greedy"),
        ("choose", "greedy"): loop("greedy"),
        ("choose_many", "exact"): lambda: _together(model, prompts, choices, n_shared, "exact"),
        ("choose", "exact"): loop("exact"),
        ("GBNF", "greedy"): lambda: _loop(model, prompts, complete),
    }
    if choices is None:
        ways = {
            ("fill_many", "exact"): lambda: _filled(model, prompts),
            ("fill", "exact"): lambda: _loop(model, prompts, lambda prompt: fill(llm, prompt, _SCHEMA, max_tokens=32)),
            ("GBNF", "greedy"): ways["GBNF", "greedy"],
        }
    taken: dict[tuple[str, str], list[Cost]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, measure in ways.items():
            taken[way].append(measure())
    return {way: sorted(those, key=lambda one: one.cpu_s)[len(those) // 2] for way, those in taken.items()}


def _filled(model: Model, prompts: list[list[int]]) -> Cost:
    """Answer by fill_many."""
    start, ready = perf_counter(), []
    with watch() as took:
        for _ in fill_many(model.llm, prompts, _SCHEMA, max_tokens=32, as_ready=True):
            ready.append(perf_counter() - start)
    return Cost(len(prompts), took.cpu_ns / 1e9, (ready[0], *np.percentile(ready, [50, 99])))


def _together(model: Model, prompts: list[list[int]], choices: list[str], n_shared: int, mode: Any) -> Cost:
    """Answer by choose_many."""
    n_tokens, ready = n_shared, []
    start = perf_counter()
    with watch() as took:
        for _, decision in choose_many(model.llm, prompts, choices, mode=mode, as_ready=True):
            ready.append(perf_counter() - start)
            n_tokens += decision.stats.n_prompt - n_shared + decision.stats.n_evaluated
    return Cost(len(prompts), took.cpu_ns / 1e9, (ready[0], *np.percentile(ready, [50, 99])), n_tokens)


def _loop(model: Model, prompts: list[list[int]], answer: Callable[[list[int]], object]) -> Cost:
    """Answer the first prompt and some others; all others are taken to cost as much as these."""
    model.llm.reset()
    answer(model.tokenize("Something else:"))
    model.llm.reset()
    first, *others = prompts[: _AT_MOST + 1]
    with watch() as took:
        answer(first)
    with watch() as each:
        for prompt in others:
            answer(prompt)
    cpu_ns = took.cpu_ns + (each.cpu_ns / len(others) * (len(prompts) - 1) if others else 0)
    return Cost(len(prompts), cpu_ns / 1e9, (took.wall_ns / 1e9,))


def bare_passes(model: Model, prompts: list[list[int]], n_shared: int) -> Cost:
    """Evaluate what the prompts do not share in full batches, with the logits after each: llama.cpp alone."""
    params = type(model.llm.context_params).from_buffer_copy(model.llm.context_params)
    params.n_seq_max, params.kv_unified, params.n_ctx = _SEQUENCES, True, max(params.n_ctx, 2048)
    context = llama_cpp.llama_init_from_model(model.llm.model, params)
    memory = llama_cpp.llama_get_memory(context)
    batch = llama_cpp.llama_batch_init(_ROWS, 0, 1)
    beginning, rests = prompts[0][:n_shared], [prompt[n_shared:] for prompt in prompts]

    def decode(rows: list[tuple[int, int, int, bool]]) -> None:
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if llama_cpp.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(context)

    def evaluate() -> None:
        for start in range(0, n_shared, _ROWS):
            part = beginning[start : start + _ROWS]
            decode([(token, start + i, 0, False) for i, token in enumerate(part)])
        rows: list[tuple[int, int, int, bool]] = []
        sequence = 0
        for rest in rests:
            if rows and (len(rows) + len(rest) > _ROWS or sequence == _SEQUENCES - 1):
                decode(rows)
                for used in range(1, sequence + 1):
                    llama_cpp.llama_memory_seq_rm(memory, used, -1, -1)
                rows, sequence = [], 0
            sequence += 1
            if n_shared:
                llama_cpp.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
            last = len(rest) - 1
            rows += [(token, n_shared + i, sequence, i == last) for i, token in enumerate(rest)]
        decode(rows)

    try:
        with watch() as took:
            evaluate()
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
    return Cost(len(rests), took.cpu_ns / 1e9, (), n_shared + sum(map(len, rests)))
