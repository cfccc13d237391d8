"""Many questions about one state, and many options of one question, beside llama.cpp's bare passes and other ways."""

from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
from token_trie import Choice, choose, decide, score
from token_trie.decisions.questions.asking import asked_of
from token_trie.decisions.questions.options import DecideOptions
from token_trie.sets.prompt import tokenize_prompt

from bench.many.contenders import bare
from bench.many.prompts import Prompts
from bench.models import Model, load
from bench.options import Options
from bench.outcome import show
from bench.results import Bar, Results
from bench.sets import data
from bench.table import model_bars, table_of, wide_console

_N_CTX, _N_BATCH = 4096, 512
_N_STATE, _N_QUESTIONS, _N_OPTIONS = 1500, 20, 1000
_N_FRESH = 3  # of the calls of choose, which all cost the same
_LABELS = ["refund", "delivery", "login", "invoice"]
_COLUMNS = """
    model = {0.model} | what = {0.what} | who = {0.who} | >tokens read = {0.n_tokens} | >CPU s = {0.cpu_s:.2f}
"""


@dataclass(frozen=True)
class QuestionsRow:
    """One way of answering."""

    model: str
    what: str
    who: str
    n_tokens: int  # 0: not counted
    cpu_s: float


def run(options: Options) -> None:
    """Measure with all models; print, and write what was asked for."""
    results = Results[QuestionsRow]("questions", {"threads": options.threads})
    console = wide_console(130)
    for name, begin, advance in model_bars(options.models, console):
        begin("asking", options.rounds or 3)
        model = load(name, n_ctx=_N_CTX, n_batch=_N_BATCH, n_gpu_layers=options.n_gpu_layers, threads=options.threads)
        _measure(model, options.rounds or 3, advance, results)
    show(console, [table_of(results.rows, "Questions about a state", _COLUMNS)], results, options.output)


def _measure(model: Model, rounds: int, advance: Callable[[], object], results: Results[QuestionsRow]) -> None:
    llm: Any = model.llm
    state = _state(model)
    questions = {f"q{i}": Choice(f"What is request {i} about?", _LABELS) for i in range(_N_QUESTIONS)}
    many = f"{_N_QUESTIONS} questions, a state of {_N_STATE:,} tokens"
    passes = _passes(model, state, questions)
    names = _names(_N_OPTIONS)
    wide = Choice("Which word is it?", names)
    large = f"{_N_OPTIONS:,} options"
    prompt = f"{state[:400]}\n\nQuestion: Which word is it?\nAnswer:"
    decide(llm, "N/A", questions)  # what questions give without a state is evaluated once, before
    decide(llm, "N/A", wide)
    ways: dict[tuple[str, str], Callable[[], object]] = {
        (many, "decide"): lambda: decide(llm, state, questions),
        (many, "bare passes"): lambda: bare(model, passes),
        (many, "choose on fresh Llamas"): lambda: [_fresh(llm, state, i) for i in range(_N_FRESH)],
        (large, "decide"): lambda: decide(llm, state[:400], wide),
        (large, "score"): lambda: score(llm, prompt, names),
    }
    took: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for way, measure in ways.items():
            choose(llm, "Something else:", ["a", "b"])
            started = process_time()
            measure()
            took.setdefault(way, []).append(process_time() - started)
        advance()
    cpu_s = {way: float(np.median(each)) for way, each in took.items()}
    cpu_s[many, "choose on fresh Llamas"] *= _N_QUESTIONS / _N_FRESH
    n_tokens = passes.n_shared + sum(len(tokens) - passes.n_shared for tokens in passes.tokens)
    counted = {(many, "decide"): n_tokens, (many, "bare passes"): n_tokens}
    results.rows += [QuestionsRow(model.name, *way, counted.get(way, 0), s) for way, s in cpu_s.items()]
    ratio = cpu_s[many, "decide"] / cpu_s[many, "bare passes"]
    results.bars.append(Bar(f"{model.name}: {many}, against bare passes", ratio, False, 1.15))
    ratio = cpu_s[many, "decide"] / cpu_s[many, "choose on fresh Llamas"]
    results.bars.append(Bar(f"{model.name}: {many}, against choose on fresh Llamas", ratio, False, 1 / 8))
    ratio = cpu_s[large, "decide"] / cpu_s[large, "score"]
    results.bars.append(Bar(f"{model.name}: {large}, against score", ratio, False, 2))


def _state(model: Model) -> str:
    requests = data("requests.json")
    assert isinstance(requests, list)
    texts = [f"{i}. {requests[i % len(requests)]['text']}" for i in range(400)]
    n = next(n for n in range(1, 400) if len(model.tokenize("\n".join(texts[:n]))) >= _N_STATE)
    return "\n".join(texts[:n])


def _passes(model: Model, state: str, questions: dict[str, Choice[Any]]) -> Prompts:
    """Return what decide has to read: behind the state, each question's own tokens, and those of its options."""
    tokens = []
    for question in questions.values():
        for view in asked_of(question, DecideOptions(), model.llm).views:
            reading = view.reading(model.llm, state)
            options = [
                model.tokenize(f" {text}")[:-1] for text in _LABELS
            ]  # what the last token is followed by is not asked
            tokens.append(tokenize_prompt(model.llm, reading.prompt) + [t for option in options for t in option])
    return Prompts(tokens, _LABELS, is_shared=True)


def _fresh(llm: Any, state: str, i: int) -> None:
    choose(llm, "Something else:", ["a", "b"])  # takes the place of the state
    choose(llm, f"{state}\n\nQuestion: What is request {i} about?\nAnswer:", _LABELS)


def _names(n: int) -> list[str]:
    words = data("words.json")
    assert isinstance(words, dict)
    kinds, things = words["kinds"], words["things"]
    return [f"{kinds[i % len(kinds)]} {things[i // len(kinds) % len(things)]} {i}" for i in range(n)]
