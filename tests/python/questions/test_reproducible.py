"""With ``reproducible``, answers are the same bit by bit in whatever company, order and history."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from token_trie import Choice, ContextError, Predicate, Score, decide, decide_many
from token_trie.asynchronous import adecide

STATE = {"subject": "Charged twice", "text": "I was charged twice for one order. " * 18}
QUESTIONS: dict[str, Any] = {
    "team": Choice("Which team?", {"billing": "payments and charges", "technical": "errors", "sales": None}),
    "urgent": Predicate("Is it urgent?"),
    "mood": Score("How angry is the customer?", ["calm", "annoyed", "furious"]),
}
N_COMPANIES = int(os.environ.get("COMPANIES", "4"))  # the tiny model takes 25 times as many


def figures(answer: Any) -> tuple[Any, ...]:
    return dict(answer.probabilities), answer.mass


def test_it_is_what_is_decided_otherwise_up_to_rounding(precise: Any) -> None:
    exact, other = (decide(precise, "Paris", QUESTIONS, reproducible=is_so) for is_so in (True, False))
    for name in QUESTIONS:
        assert exact[name].probabilities == pytest.approx(other[name].probabilities, abs=1e-4)


def ask_in_company(llm: Any, rng: random.Random, known: dict[str, Any]) -> None:
    """Ask some of the questions, by other names, with options in another order, behind what may have come before."""
    asked = {}
    for name in rng.sample(sorted(QUESTIONS), rng.randint(1, 3)):
        asked[name] = QUESTIONS[name]
        if isinstance(asked[name], Choice):
            options = list(asked[name].options.items())
            rng.shuffle(options)
            asked[name] = Choice(asked[name].instructions, dict(options))
    if rng.random() < 0.3:
        decide(llm, "else " * rng.randint(1, 40), asked, reproducible=rng.random() < 0.7)
    by_others = {f"{rng.random()}": name for name in asked}
    found = decide(llm, STATE, {other: asked[name] for other, name in by_others.items()}, reproducible=True)
    for other, name in by_others.items():
        assert figures(found[other]) == known[name]


def test_answers_are_equal_to_the_last_bit_in_any_company(llm: Any) -> None:
    rng = random.Random(1)
    known = {name: figures(one) for name, one in decide(llm, STATE, QUESTIONS, reproducible=True).items()}
    for _ in range(N_COMPANIES):
        ask_in_company(llm, rng, known)
    (found,) = decide_many(llm, [STATE], QUESTIONS, reproducible=True)
    assert {name: figures(one) for name, one in found.items()} == known


def test_so_they_are_in_very_many(
    model_paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized = tmp_path / "quantized.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    source, target = str(model_paths["tiny"]).encode(), str(quantized).encode()
    assert llama_cpp.llama_model_quantize(source, target, params) == 0
    model_params = llama_cpp.llama_model_default_params()
    # llama.cpp's kernels for AMX read beyond matrices as small as these, and give others numbers each time.
    model_params.use_extra_bufts = False
    monkeypatch.setattr("llama_cpp.llama_cpp.llama_model_default_params", lambda: model_params)
    llm = llama_cpp.Llama(str(quantized), n_ctx=2048, verbose=False)
    rng = random.Random(2)
    known = {name: figures(one) for name, one in decide(llm, STATE, QUESTIONS, reproducible=True).items()}
    for _ in range(25 * N_COMPANIES):
        ask_in_company(llm, rng, known)
    llm.close()


def test_recurrent_models_read_the_prompt_anew(recurrent: Any) -> None:
    first = decide(recurrent, "Paris", QUESTIONS, reproducible=True)
    second = decide(recurrent, "Paris", dict(reversed(QUESTIONS.items())), reproducible=True)
    assert {name: figures(one) for name, one in first.items()} == {name: figures(one) for name, one in second.items()}


def test_what_has_no_room_is_refused(precise: Any) -> None:
    with pytest.raises(ContextError, match="do not fit the context"):
        decide(precise, "Paris " * 1100, QUESTIONS["team"], reproducible=True)


def test_who_is_cancelled_leaves_no_trace(smollm2: Any) -> None:
    question = Choice("Which one?", [f"number {i}" for i in range(3000)])
    before = figures(decide(smollm2, STATE, QUESTIONS["team"], reproducible=True))

    async def leave() -> float:
        task = asyncio.create_task(adecide(smollm2, STATE, question, reproducible=True))
        await asyncio.sleep(0.5)
        assert not task.done()
        task.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - started

    assert asyncio.run(leave()) < 2
    assert figures(decide(smollm2, STATE, QUESTIONS["team"], reproducible=True)) == before
