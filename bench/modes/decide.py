"""Whole decisions, alone or side by side: free text, a grammar, the trie as a sampler, the streaming handle."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import StreamHandle, constrain

from bench.completion import Completion, Outcome, portions
from bench.models import load
from bench.plots import decide as plot
from bench.results import PROMPTS, Results, Share, Table, progress
from bench.tasks import Case, Task, longest_prompt, tasks
from bench.timing import watch

FREE, GUIDED, TRIE, FFI = "free", "strict-guided", "strict-trie", "strict-trie-ffi"
STEPPING = f"{FFI} (stepping)"
_CONTENDERS = {  # of each mode, which take turns
    FREE: (FREE, GUIDED),
    GUIDED: (GUIDED,),
    TRIE: (TRIE, GUIDED),
    FFI: (FFI, GUIDED, STEPPING),
    "decide": (FREE, GUIDED, TRIE, FFI, STEPPING),
}
_SLOWEST_LEFT_OUT = 0.05  # of sums of time: where cores are shared, one pass in a hundred takes seconds
_CAPTION = (
    "Prompt evaluated beforehand. None: share of decisions without a pass. Saved: passes, of one a token. GBNF: same\n"
    "text as the grammar's. Right: as a person would answer.\n"
    "Host: share of the time of generate (llama-cpp-python: of the call) outside forward passes.\n" + PROMPTS
)


def run(options: Any) -> None:
    """Decide everything with all models."""
    results = Results(options.mode)
    who = _CONTENDERS[options.mode]
    for name in options.models:
        model = load(
            name,
            n_ctx=longest_prompt(options.prompt) + 256,
            n_batch=512,
            n_gpu_layers=options.n_gpu_layers,
            threads=options.threads,
            device=options.device,
        )
        for make in tasks(options.prompt, options.token_tree_descriptor).values():
            task = make(model)
            decided = _decide(task, who, options.rounds or 1)
            results.rows += [_row(task, each, decided) for each in who]
    for (model_name, device), of_model in groupby(results.rows, key=lambda row: (row["model"], row["device"])):
        rows = [{key: value for key, value in row.items() if key not in ("model", "device")} for row in of_model]
        results.tables.append(Table(f"{model_name}, on {device}: milliseconds a decision", rows, _CAPTION))
    results.finish(options.output)
    if options.output is not None:
        plot(results.rows, Path(options.output).with_suffix(".png"))


class _Handle:
    """token_trie.StreamHandle, on a context of its own."""

    def __init__(self, task: Task, *, jump_forward: bool = True) -> None:
        self._task = task
        self._handle = StreamHandle(task.model.llm, jump_forward=jump_forward)
        self._handle.set_token_trie(task.trie)
        if task.n_shared > 0:
            self._handle.prefill(task.prompts[0][: task.n_shared])
        self.close = self._handle.close

    def decide(self, prompt: list[int]) -> Outcome:
        for end in portions(prompt, self._task.n_shared):
            self._handle.prefill(prompt[:end])
        before = self._handle.state
        with watch() as took:
            steps = list(self._handle.generate())
        after = self._handle.state
        return Outcome(
            tokens=[step.token for step in steps],
            text="".join(step.text for step in steps),
            wall_ns=took.wall_ns,
            cpu_ns=took.cpu_ns,
            inner_ns=after.generate_ns - before.generate_ns,
            decode_ns=after.decode_ns - before.decode_ns,
            n_passes=after.n_passes - before.n_passes,
        )


def _ways(task: Task, who: tuple[str, ...], completion: Completion, stack: ExitStack) -> dict[str, Any]:
    """Return how each contender decides after a prompt."""
    grammar = LlamaGrammar.from_string(task.grammar, verbose=False)
    most = max(map(len, task.sequences)) + 2  # of free text, whose end of a line counts as a token

    def complete(**options: Any) -> Callable[[list[int]], Outcome]:
        def answer(prompt: list[int]) -> Outcome:
            completion.prepare(prompt)
            return completion.answer(prompt, **options)

        return answer

    def constrained(prompt: list[int]) -> Outcome:
        completion.prepare(prompt)
        with constrain(task.model.llm, task.trie):
            return completion.answer(prompt, max_tokens=task.max_tokens)

    def handle(jump_forward: bool) -> Callable[[list[int]], Outcome]:
        return stack.enter_context(closing(_Handle(task, jump_forward=jump_forward))).decide

    make: dict[str, Callable[[], Callable[[list[int]], Outcome]]] = {
        FREE: lambda: complete(max_tokens=most, stop=["\n"]),
        GUIDED: lambda: complete(max_tokens=task.max_tokens, grammar=grammar),
        TRIE: lambda: constrained,
        FFI: lambda: handle(jump_forward=True),
        STEPPING: lambda: handle(jump_forward=False),
    }
    return {name: make[name]() for name in who}


Decided = tuple[Case, dict[str, Outcome]]
"""A case, and the answers of the contenders."""


def _decide(task: Task, who: tuple[str, ...], rounds: int) -> list[Decided]:
    """Let each contender decide each case; another begins each time, so that none always follows the same."""
    completion = Completion(task.model, task.prompts)
    with ExitStack() as stack:
        ways = _ways(task, who, completion, stack)

        def once(case: Case, turn: int) -> Decided:
            prompt = list(case.tokens)
            order = [who[(turn + i) % len(who)] for i in range(len(who))]
            return case, {name: ways[name](prompt) for name in order}

        once(task.cases[0], 0)  # warms up
        cases = list(enumerate(task.cases * rounds))
        return [once(case, turn) for turn, case in progress(cases, f"{task.model.name}, {task.name}")]


def _row(task: Task, who: str, decided: list[Decided]) -> dict[str, Any]:
    """Return the figures of a contender."""
    outcomes = [found[who] for _, found in decided]
    usual = _usual(outcomes)
    n_tokens = sum(len(o.tokens) for o in outcomes)
    n_passes = sum(o.n_passes for o in outcomes)
    p50, p90, p99 = (float(np.percentile([o.wall_ns for o in outcomes], p)) / 1e6 for p in (50, 90, 99))
    grammar = [found[GUIDED] for _, found in decided]
    return {
        "model": f"{task.model.name}, {task.model.n_vocab:,} tokens",
        "device": task.model.device,
        "set": f"{task.name}, {len(decided)} decisions",
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
        ">GBNF": Share(np.mean([a.text.strip() == b.text.strip() for a, b in zip(outcomes, grammar, strict=True)])),
        ">right": None if task.cases[0].expected is None
        else Share(np.mean([found[who].text.strip() == case.expected for case, found in decided])),
        ">host": Share(1 - sum(o.decode_ns for o in usual) / sum(o.inner_ns for o in usual)),
    }  # fmt: skip


def _usual(outcomes: list[Outcome]) -> list[Outcome]:
    ordered = sorted(outcomes, key=lambda outcome: outcome.wall_ns)
    return ordered[: len(ordered) - int(len(ordered) * _SLOWEST_LEFT_OUT)]


def _speed(outcomes: list[Outcome]) -> float:
    return sum(len(o.tokens) for o in outcomes) / sum(o.wall_ns for o in outcomes) * 1e9
