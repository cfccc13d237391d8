"""Many questions about one state, and many options of one question, beside llama.cpp's bare passes and other ways."""

from collections.abc import Callable
from typing import Any

import numpy as np
from token_trie import Choice, choose, decide, score
from token_trie.questions.decide import prepare
from token_trie.questions.options import DecideOptions
from token_trie.sets.prompt import tokenize_prompt

from bench.completion import shared_tokens
from bench.models import Model, load
from bench.modes.many import bare_passes
from bench.results import Results, Table, progress
from bench.sets import ids
from bench.tasks import requests
from bench.timing import watch

_N_STATE, _N_QUESTIONS, _N_OPTIONS = 1500, 20, 1000
_N_FRESH = 3  # calls of choose, which all cost the same
_LABELS = ["refund", "delivery", "login", "invoice"]
_MANY, _LARGE = f"{_N_QUESTIONS} questions, a state of {_N_STATE:,} tokens", f"{_N_OPTIONS:,} options"
_FRESH = "choose on fresh Llamas"


def run(options: Any) -> None:
    """Measure with all models."""
    results, rows = Results("questions"), []
    for name in options.models:
        model = load(name, options, n_ctx=4096)
        rows += _measure(model, options.rounds or 3)
    results.tables.append(Table("Questions about a state", rows))
    results.finish(options.output)


def _measure(model: Model, rounds: int) -> list[dict[str, Any]]:
    llm: Any = model.llm
    state = _state(model)
    questions = {f"q{i}": Choice(f"What is request {i} about?", _LABELS) for i in range(_N_QUESTIONS)}
    names = [name.replace("-", " ") for name in ids(_N_OPTIONS)]
    wide = Choice("Which word is it?", names)
    passes = _passes(model, state, questions)
    n_shared = shared_tokens(passes, 1)

    def fresh() -> None:
        for i in range(_N_FRESH):
            choose(llm, "Something else:", ["a", "b"])  # replaces the state
            choose(llm, f"{state}\n\nQuestion: What is request {i} about?\nAnswer:", _LABELS)

    decide(llm, "N/A", questions)  # the scores that the options get without a state are evaluated once, before
    decide(llm, "N/A", wide)
    ways: dict[tuple[str, str], Callable[[], object]] = {
        (_MANY, "decide"): lambda: decide(llm, state, questions),
        (_MANY, "bare passes"): lambda: bare_passes(model, passes, n_shared),
        (_MANY, _FRESH): fresh,
        (_LARGE, "decide"): lambda: decide(llm, state[:400], wide),
        (_LARGE, "score"): lambda: score(llm, f"{state[:400]}\n\nQuestion: Which word is it?\nAnswer:", names),
    }
    taken: dict[tuple[str, str], list[int]] = {way: [] for way in ways}
    for _ in progress(range(rounds), model.name):
        for way, measure in ways.items():
            choose(llm, "Something else:", ["a", "b"])
            with watch() as took:
                measure()
            taken[way].append(took.cpu_ns)
    cpu_s = {way: float(np.median(each)) / 1e9 for way, each in taken.items()}
    cpu_s[_MANY, _FRESH] *= _N_QUESTIONS / _N_FRESH
    n_tokens = n_shared + sum(len(tokens) - n_shared for tokens in passes)
    read = {(_MANY, "decide"): n_tokens, (_MANY, "bare passes"): n_tokens}
    return [
        {"model": model.name, "what": way[0], "who": way[1], ">tokens read": read.get(way), ">CPU s": seconds}
        for way, seconds in cpu_s.items()
    ]


def _state(model: Model) -> str:
    texts = [f"{i}. {request['text']}" for i, request in enumerate(requests() * 7)]
    n = next(n for n in range(1, 400) if len(model.tokenize("\n".join(texts[:n]))) >= _N_STATE)
    return "\n".join(texts[:n])


def _passes(model: Model, state: str, questions: dict[str, Choice[Any]]) -> list[list[int]]:
    """Return what decide has to read: after the state, each question's own tokens, and those of its options."""
    options = [token for text in _LABELS for token in model.tokenize(f" {text}")[:-1]]  # no logits after the last one
    return [
        tokenize_prompt(model.llm, view.prompt(model.llm, state)) + options
        for question in questions.values()
        for view in prepare(question, DecideOptions(), model.llm).views
    ]
