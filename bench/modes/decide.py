"""Whole decisions side by side: free text, a grammar, the trie as a sampler, the streaming handle."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import constrain

from bench.completion import Completion, Handle, Outcome
from bench.models import device_of, load
from bench.plots import decide as plot
from bench.results import Results, Share, Table, progress
from bench.tasks import N_CTX, Task, tasks
from bench.timing import watch

FREE, GUIDED, TRIE, FFI = "free", "strict-guided", "strict-trie", "strict-trie-ffi"
STEPPING = f"{FFI} (stepping)"
_CONTENDERS = (FREE, GUIDED, TRIE, FFI, STEPPING)
_SLOWEST_LEFT_OUT = 0.05  # not in sums of time: where cores are shared, one pass in a hundred takes seconds
_CAPTION = (
    "Prompt evaluated beforehand. None: share of decisions without a pass. Saved: passes, of one a token. GBNF: same\n"
    "text as the grammar's. Right: as a person would answer.\n"
    "Host: share of the time of generate (llama-cpp-python: of the call) outside forward passes."
)


def run(options: Any) -> None:
    """Decide everything with all models."""
    results, device = Results("decide"), device_of(options.device)
    assert device is not None  # which the command line has checked
    for name in options.models:
        model = load(name, options, n_ctx=N_CTX)
        rows = []
        for task in tasks(model):
            decided = _decide(task, options.rounds or 1)
            rows += [_row(task, who, decided) for who in _CONTENDERS]
        where = {
            "model": f"{model.name}, {model.n_vocab:,} tokens",
            "device": f"{device.backend}, {device.description}",
        }
        results.rows += [where | row for row in rows]
        results.tables.append(Table(f"{', on '.join(where.values())}: milliseconds a decision", rows, _CAPTION))
    results.finish(options.output, plot)


def _ways(task: Task, stack: ExitStack) -> dict[str, Callable[[list[int]], Outcome]]:
    """Return how each contender decides after a prompt."""
    completion = Completion(task.model, task.prompts)
    grammar = LlamaGrammar.from_string(task.grammar, verbose=False)
    most = max(map(len, task.sequences)) + 2  # for free text, whose end of a line counts as a token

    def constrained(prompt: list[int]) -> Outcome:
        completion.prepare(prompt)
        with constrain(task.model.llm, task.trie):
            return completion.answer(prompt, max_tokens=task.max_tokens)

    def handle(jump_forward: bool) -> Callable[[list[int]], Outcome]:
        handle = Handle(task.model, task.prompts, jump_forward=jump_forward)
        stream = stack.enter_context(closing(handle.stream))
        stream.set_token_trie(task.trie)

        def answer(prompt: list[int]) -> Outcome:
            handle.prepare(prompt)
            before = stream.state
            with watch() as took:
                steps = list(stream.generate())
            after = stream.state
            return Outcome(
                tokens=[step.token for step in steps],
                text="".join(step.text for step in steps),
                wall_ns=took.wall_ns,
                cpu_ns=took.cpu_ns,
                inner_ns=after.generate_ns - before.generate_ns,
                decode_ns=after.decode_ns - before.decode_ns,
                n_passes=after.n_passes - before.n_passes,
            )

        return answer

    return {
        FREE: partial(completion.answer, max_tokens=most, stop=["\n"]),
        GUIDED: partial(completion.answer, max_tokens=task.max_tokens, grammar=grammar),
        TRIE: constrained,
        FFI: handle(jump_forward=True),
        STEPPING: handle(jump_forward=False),
    }


def _decide(task: Task, rounds: int) -> dict[str, list[Outcome]]:
    """Let each contender decide each case; another begins each time, so that none always follows the same."""
    with ExitStack() as stack:
        ways = _ways(task, stack)

        def once(turn: int, prompt: list[int]) -> dict[str, Outcome]:
            first = turn % len(_CONTENDERS)
            return {who: ways[who](prompt) for who in _CONTENDERS[first:] + _CONTENDERS[:first]}

        once(0, task.prompts[0])  # warms up
        cases = list(enumerate(task.prompts * rounds))
        found = [once(*case) for case in progress(cases, f"{task.model.name}, {task.name}")]
    return {who: [each[who] for each in found] for who in _CONTENDERS}


def _row(task: Task, who: str, decided: dict[str, list[Outcome]]) -> dict[str, Any]:
    """Return the figures of a contender."""
    outcomes, grammar = decided[who], decided[GUIDED]
    usual = _usual(outcomes)
    n_tokens = sum(len(o.tokens) for o in outcomes)
    n_passes = sum(o.n_passes for o in outcomes)
    p50, p90, p99 = (float(np.percentile([o.wall_ns for o in outcomes], p)) / 1e6 for p in (50, 90, 99))
    texts = [o.text.strip() for o in outcomes]
    return {
        "set": f"{task.name}, {len(outcomes)} decisions",
        "mode": who,
        ">p50": p50,
        ">p90": p90,
        ">p99": p99,
        ">x GBNF": float(np.median([o.wall_ns for o in grammar])) / 1e6 / p50,
        ">tokens/s": round(_speed(usual)),
        ">x GBNF, tokens/s": _speed(usual) / _speed(_usual(grammar)),
        ">passes": n_passes,
        ">none": Share(np.mean([o.n_passes == 0 for o in outcomes])),
        ">saved": n_tokens - n_passes,
        ">GBNF": Share(np.mean([text == o.text.strip() for text, o in zip(texts, grammar, strict=True)])),
        ">right": Share(np.mean([text == expected for text, expected in zip(texts, cycle(task.expected))])),
        ">host": Share(1 - sum(o.decode_ns for o in usual) / sum(o.inner_ns for o in usual)),
    }  # fmt: skip


def _usual(outcomes: list[Outcome]) -> list[Outcome]:
    ordered = sorted(outcomes, key=lambda outcome: outcome.wall_ns)
    return ordered[: len(ordered) - int(len(ordered) * _SLOWEST_LEFT_OUT)]


def _speed(outcomes: list[Outcome]) -> float:
    return sum(len(o.tokens) for o in outcomes) / sum(o.wall_ns for o in outcomes) * 1e9
