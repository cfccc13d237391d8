"""Contenders for many prompts: token-trie together and one by one, a grammar one by one, llama.cpp's bare passes."""

from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import choose, choose_many

from bench.contenders.gbnf import alternatives
from bench.many.prompts import Prompts
from bench.models import Model

# Prompts that slow contenders answer; their rate does not depend on the number.
_AT_MOST = 16
_ROWS, _IDS = 256, 64


class Took(NamedTuple):
    """What n prompts took, with nothing of them evaluated beforehand."""

    n: int
    wall_s: float
    cpu_s: float  # of all threads
    first_s: float = 0.0  # to the first answer
    p50_s: float = 0.0  # to half of the answers, and so on
    p99_s: float = 0.0
    n_tokens: int = 0  # evaluated, where that is known


def together(model: Model, prompts: Prompts, mode: str) -> Took:
    """Answer by choose_many."""
    n_tokens = prompts.n_shared
    ready = []

    def decide() -> None:
        nonlocal n_tokens
        start = perf_counter()
        for _, decision in choose_many(model.llm, prompts.tokens, prompts.choices, mode=mode, as_ready=True):  # type: ignore[arg-type]
            ready.append(perf_counter() - start)
            n_tokens += decision.stats.n_prompt - prompts.n_shared + decision.stats.n_evaluated

    took = _timed(len(prompts.tokens), decide)
    p50, p99 = np.percentile(ready, [50, 99])
    return took._replace(first_s=ready[0], p50_s=float(p50), p99_s=float(p99), n_tokens=n_tokens)


def one_by_one(model: Model, prompts: Prompts, mode: str) -> Took:
    """Answer by choose, prompt after prompt."""
    return _loop(model, prompts, lambda prompt: choose(model.llm, prompt, prompts.choices, mode=mode))  # type: ignore[call-overload]


def by_grammar(model: Model, prompts: Prompts) -> Took:
    """Answer by create_completion with the same set in GBNF, likewise."""
    grammar = LlamaGrammar.from_string(alternatives([f" {text}" for text in prompts.choices]), verbose=False)
    llm: Any = model.llm
    return _loop(
        model,
        prompts,
        lambda prompt: llm.create_completion(prompt, grammar=grammar, temperature=0.0, max_tokens=16),
    )


def _loop(model: Model, prompts: Prompts, answer: Callable[[list[int]], object]) -> Took:
    """Answer the first prompt and some others; all others are taken to cost as much as these."""
    llm: Any = model.llm
    llm.reset()
    answer(model.tokenize("Something else:"))
    llm.reset()
    first, *others = prompts.tokens[: _AT_MOST + 1]
    took = _timed(1, lambda: answer(first))
    if others:
        each = _timed(len(others), lambda: [answer(prompt) for prompt in others])
        n_more = len(prompts.tokens) - 1
        wall_s = took.wall_s + n_more * each.wall_s / each.n
        cpu_s = took.cpu_s + n_more * each.cpu_s / each.n
        return Took(len(prompts.tokens), wall_s, cpu_s, took.wall_s)
    return took._replace(first_s=took.wall_s)


def bare(model: Model, prompts: Prompts) -> Took:
    """Evaluate what the prompts do not share in full batches, with the logits behind each: llama.cpp alone."""
    params = type(model.llm.context_params).from_buffer_copy(model.llm.context_params)
    params.n_seq_max, params.kv_unified, params.n_ctx = _IDS, True, max(params.n_ctx, 2048)
    context = llama_cpp.llama_init_from_model(model.llm.model, params)
    memory = llama_cpp.llama_get_memory(context)
    batch = llama_cpp.llama_batch_init(_ROWS, 0, 1)
    n_shared = prompts.n_shared
    rests = [prompt[n_shared:] for prompt in prompts.tokens]

    def decode(rows: list[tuple[int, int, int, bool]]) -> None:
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if llama_cpp.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(context)

    beginning = prompts.tokens[0][:n_shared]

    def evaluate() -> None:
        for start in range(0, n_shared, _ROWS):
            part = beginning[start : start + _ROWS]
            decode([(token, start + i, 0, False) for i, token in enumerate(part)])
        rows: list[tuple[int, int, int, bool]] = []
        sequence = 0
        for rest in rests:
            if rows and (len(rows) + len(rest) > _ROWS or sequence == _IDS - 1):
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
        took = _timed(len(rests), evaluate)
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
    return took._replace(n_tokens=n_shared + int(np.sum([len(rest) for rest in rests])))


def _timed(n: int, work: Callable[[], object]) -> Took:
    wall, cpu = perf_counter(), process_time()
    work()
    return Took(n, perf_counter() - wall, process_time() - cpu)
