"""The most probable answer, proved: what it takes beside one token's pass and beside scoring the whole set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from token_trie import StreamHandle, choose
from token_trie.cli.demo import ACTIONS, prompt_for
from token_trie.sets.prompt import tokenize_prompt

from bench.models import Model
from bench.scoring.contenders import watch
from bench.scoring.measure import MAIN_SET, Advance, cities, city_prompts, requests
from bench.scoring.rows import ExactRow

N_NAMES = 1_000
N_NAME_PROMPTS = 20


def exact(model: Model, rounds: int, n_ctx: int, advance: Advance) -> ExactRow:
    """Choose among the actions for all bundled requests."""
    cases = requests()
    names = list(ACTIONS)
    expected = [names.index(request["action"]) for request in cases]
    prompts = [prompt_for(request["text"]) for request in cases]
    return _measure(model, MAIN_SET, names, prompts, expected, rounds, n_ctx, advance, whole=True)


def exact_names(model: Model, rounds: int, n_ctx: int, advance: Advance) -> ExactRow:
    """Choose among names of places, of which scoring all would take seconds."""
    names = cities()[:N_NAMES]
    cases = [question for question in city_prompts() if question["city"] in names][:N_NAME_PROMPTS]
    expected = [names.index(question["city"]) for question in cases]
    prompts = [question["prompt"] for question in cases]
    return _measure(
        model, f"{N_NAMES:,} names of places", names, prompts, expected, rounds, n_ctx, advance, whole=False
    )


def _measure(
    model: Model,
    set_name: str,
    names: Sequence[str],
    prompts: Sequence[str],
    expected: Sequence[int],
    rounds: int,
    n_ctx: int,
    advance: Advance,
    *,
    whole: bool,
) -> ExactRow:
    llm: Any = model.llm
    taken: dict[str, list[float]] = {"pass": [], "exact": [], "whole": []}
    chosen, off, agree = [], [], []
    next_token = model.tokenize(" a")[0]
    with StreamHandle(llm, n_ctx=n_ctx) as handle:
        for prompt in prompts:
            tokens = tokenize_prompt(llm, prompt)
            choose(llm, prompt, names)  # evaluates the prompt, reads the set
            times: dict[str, list[float]] = {name: [] for name in taken}
            for _ in range(rounds):
                handle.prefill(tokens)
                with watch() as took:
                    handle.prefill([*tokens, next_token])
                times["pass"].append(took.wall_ns / 1e6)
                with watch() as took:
                    chosen.append(choose(llm, prompt, names))
                times["exact"].append(took.wall_ns / 1e6)
                if whole:
                    with watch() as took:
                        scored = choose(llm, prompt, names, probabilities=True)
                    times["whole"].append(took.wall_ns / 1e6)
                    agree.append(chosen[-1].index == scored.index)
                    off.append(abs(chosen[-1].logprob - scored.logprob) if agree[-1] else 0.0)
            for name, ms in times.items():
                taken[name] += [float(np.median(ms))] if ms else []
            advance()
    pass_ms = float(np.median(taken["pass"]))
    ratios = np.array(taken["exact"]) / pass_ms
    answers = [decision.index for decision in chosen[::rounds]]
    return ExactRow(
        model=model.name,
        set=set_name,
        members=len(names),
        prompts=len(prompts),
        pass_ms=pass_ms,
        ms=float(np.median(taken["exact"])),
        p90_ms=float(np.percentile(taken["exact"], 90)),
        times_pass=float(np.median(ratios)),
        p90_times_pass=float(np.percentile(ratios, 90)),
        of_whole=float(np.median(np.array(taken["exact"]) / taken["whole"])) if whole else None,
        n_evaluated=float(np.median([decision.stats.n_evaluated for decision in chosen])),
        n_passes=float(np.median([decision.stats.n_passes for decision in chosen])),
        proved=float(np.mean([decision.gap == 0 for decision in chosen])),
        agrees=float(np.mean(agree)) if whole else None,
        off_most=float(np.max(off)) if whole else None,
        right=float(np.mean(np.array(answers) == expected)),
    )
