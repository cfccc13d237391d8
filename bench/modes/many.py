"""Many prompts at once, beside one after the other and llama.cpp's bare passes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import choose, choose_many
from token_trie.cli.ask import ACTIONS, prompt_for
from token_trie.sets.prompt import tokenize_prompt

from bench.completion import decode, shared_tokens
from bench.contenders import alternatives
from bench.models import Model, load
from bench.results import Results, Table, progress
from bench.tasks import MAIN_SET, requests
from bench.timing import watch

_SIZES = (1, 8, 64, 512)  # by default
_AT_MOST = 16  # prompts that slow contenders answer; their rate does not depend on the number
_ROWS, _SEQUENCES = 256, 64  # in a bare pass
_TITLE = f"many prompts, {MAIN_SET}: CPU milliseconds a prompt, of all threads, nothing evaluated before"
_CAPTION = "Prompts are plain text, without a chat template; the shared beginning has an example of each action."


def run(options: Any) -> None:
    """Measure with all models."""
    results = Results("many")
    for name in options.models:
        model = load(name, options, n_ctx=2048)
        n_prompts = options.cases or 512
        sizes = sorted({*(n for n in _SIZES if n < n_prompts), n_prompts})
        lines = [_measure(model, n, options.rounds or 1) for n in progress(sizes, model.name)]
        results.tables.append(Table(f"{model.name}: {_TITLE}", lines, _CAPTION))
    results.finish(options.output)


def _measure(model: Model, n: int, rounds: int) -> dict[str, float]:
    llm: Any = model.llm
    texts = requests()
    prompts = [tokenize_prompt(llm, prompt_for(f"{texts[i % len(texts)]['text']} ({i})")) for i in range(n)]
    n_shared = shared_tokens(prompts, 1)
    grammar = LlamaGrammar.from_string(alternatives([f" {action}" for action in ACTIONS]), verbose=False)

    answer: Callable[[list[int]], object]
    ways: dict[str, Callable[[], float]] = {"bare passes": partial(bare_passes, model, prompts, n_shared)}
    for mode in ("greedy", "exact"):
        answer = partial(choose, llm, choices=list(ACTIONS), mode=mode)
        ways[f"choose_many, {mode}"] = partial(_together, model, prompts, mode)
        ways[f"choose, {mode}"] = partial(_loop, model, prompts, answer)
    answer = partial(llm.create_completion, grammar=grammar, temperature=0.0, max_tokens=16)
    ways["GBNF"] = partial(_loop, model, prompts, answer)
    taken = [[measure() for measure in ways.values()] for _ in range(rounds)]
    return {
        ">prompts": n,
        **{f">{way}": float(ns) / 1e6 / n for way, ns in zip(ways, np.median(taken, axis=0), strict=True)},
    }


def _together(model: Model, prompts: Sequence[list[int]], mode: Any) -> float:
    """Return the nanoseconds of choose_many."""
    with watch() as took:
        list(choose_many(model.llm, prompts, list(ACTIONS), mode=mode))
    return took.cpu_ns


def _loop(model: Model, prompts: Sequence[list[int]], answer: Callable[[list[int]], object]) -> float:
    """Return the nanoseconds of the first answer and the others, which cost as much as some of them."""
    model.llm.reset()
    answer(model.tokenize("Something else:"))
    model.llm.reset()
    first, *others = prompts[: _AT_MOST + 1]
    with watch() as took:
        answer(first)
    with watch() as each:
        for prompt in others:
            answer(prompt)
    return took.cpu_ns + (each.cpu_ns / len(others) * (len(prompts) - 1) if others else 0)


def bare_passes(model: Model, prompts: Sequence[list[int]], n_shared: int) -> float:
    """Return the nanoseconds in which llama.cpp alone evaluates what prompts do not share, in full batches."""
    params = type(model.llm.context_params).from_buffer_copy(model.llm.context_params)
    params.n_seq_max, params.kv_unified, params.n_ctx = _SEQUENCES, True, max(params.n_ctx, 2048)
    context = llama_cpp.llama_init_from_model(model.llm.model, params)
    memory = llama_cpp.llama_get_memory(context)
    batch = llama_cpp.llama_batch_init(_ROWS, 0, 1)
    beginning, rests = prompts[0][:n_shared], [prompt[n_shared:] for prompt in prompts]

    def evaluate() -> None:
        for start in range(0, n_shared, _ROWS):
            part = beginning[start : start + _ROWS]
            decode(context, batch, [(token, start + i, 0, False) for i, token in enumerate(part)])
        rows: list[tuple[int, int, int, bool]] = []
        sequence = 0
        for rest in rests:
            if rows and (len(rows) + len(rest) > _ROWS or sequence == _SEQUENCES - 1):
                decode(context, batch, rows)
                for used in range(1, sequence + 1):
                    llama_cpp.llama_memory_seq_rm(memory, used, -1, -1)
                rows, sequence = [], 0
            sequence += 1
            if n_shared:
                llama_cpp.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
            last = len(rest) - 1
            rows += [(token, n_shared + i, sequence, i == last) for i, token in enumerate(rest)]
        decode(context, batch, rows)

    try:
        with watch() as took:
            evaluate()
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
    return took.cpu_ns
