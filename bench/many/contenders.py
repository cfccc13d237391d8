"""Who answers many prompts: token-trie together and one by one, a grammar one by one, llama.cpp's bare passes."""

from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import choose, choose_many

from bench.contenders.gbnf import alternatives
from bench.many.prompts import Crowd
from bench.models import Model

# Of the slow ones, whose rate does not depend on how many there are.
_AT_MOST = 16
_ROWS, _IDS = 256, 64


class Took(NamedTuple):
    """What so many prompts took."""

    n: int
    wall_s: float
    cpu_s: float  # of all threads
    first_s: float  # to the first answer
    n_tokens: int = 0  # evaluated, where that is known


def together(model: Model, crowd: Crowd, mode: str) -> Took:
    """Answer by choose_many."""
    n_tokens = 0
    first = [0.0]

    def decide() -> None:
        nonlocal n_tokens
        start = perf_counter()
        for decision in choose_many(model.llm, crowd.prompts, crowd.choices, mode=mode):  # type: ignore[arg-type]
            first[0] = first[0] or perf_counter() - start
            n_tokens += decision.stats.n_prompt - crowd.n_shared + decision.stats.n_evaluated

    took = _timed(len(crowd.prompts), decide)
    return took._replace(first_s=first[0], n_tokens=n_tokens + crowd.n_shared)


def one_by_one(model: Model, crowd: Crowd, mode: str) -> Took:
    """Answer by choose, prompt after prompt, behind a beginning that is there already."""
    prompts = crowd.prompts[:_AT_MOST]
    choose(model.llm, crowd.prompts[-1], crowd.choices, mode=mode)  # type: ignore[arg-type]

    def decide() -> None:
        for prompt in prompts:
            choose(model.llm, prompt, crowd.choices, mode=mode)  # type: ignore[arg-type]

    return _timed(len(prompts), decide)


def by_grammar(model: Model, crowd: Crowd) -> Took:
    """Answer by create_completion with the same set in GBNF, likewise."""
    grammar = LlamaGrammar.from_string(alternatives([f" {text}" for text in crowd.choices]), verbose=False)
    llm: Any = model.llm

    def ask(prompt: list[int]) -> None:
        llm.create_completion(prompt, grammar=grammar, temperature=0.0, max_tokens=16)

    ask(crowd.prompts[-1])
    prompts = crowd.prompts[:_AT_MOST]
    return _timed(len(prompts), lambda: [ask(prompt) for prompt in prompts])


def bare(model: Model, crowd: Crowd) -> Took:
    """Evaluate what the prompts do not share in full batches, with the logits behind each: llama.cpp alone."""
    params = type(model.llm.context_params).from_buffer_copy(model.llm.context_params)
    params.n_seq_max, params.kv_unified, params.n_ctx = _IDS, True, max(params.n_ctx, 2048)
    context = llama_cpp.llama_init_from_model(model.llm.model, params)
    memory = llama_cpp.llama_get_memory(context)
    batch = llama_cpp.llama_batch_init(_ROWS, 0, 1)
    n_shared = crowd.n_shared
    rests = [prompt[n_shared:] for prompt in crowd.prompts]

    def decode(rows: list[tuple[int, int, int, bool]]) -> None:
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if llama_cpp.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(context)

    beginning = crowd.prompts[0][:n_shared]

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
    return Took(n, perf_counter() - wall, process_time() - cpu, 0.0)
