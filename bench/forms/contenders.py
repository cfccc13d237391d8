"""Who answers questions: token-trie in its forms, and typed-gguf."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import llama_cpp
from token_trie.decisions.questions.decide import decide
from token_trie.decisions.questions.question import Choice, Predicate, Question
from token_trie.decisions.questions.wording import state_text
from token_trie.sets.chat_form import has_chat_template

from bench.forms.measure import Answer
from bench.models import Model

DEFAULT = "default"
TYPED_GGUF = "typed-gguf"
_FORMS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "unlisted, raw": {"calibration": None},
    "listed": {"form": "listed"},
    "listed, raw": {"form": "listed", "calibration": None},
    "letters": {"form": "letters"},
}


@dataclass(frozen=True)
class Told:
    """What another engine says."""

    value: Any
    probabilities: dict[Any, float]
    mass: float


def contenders(model: Model, threads: int) -> dict[str, Callable[[], Answer]]:
    """Return how each is opened; typed-gguf where it is installed."""
    found: dict[str, Callable[[], Answer]] = {
        name: partial(partial, partial(decide, model.llm), **options) for name, options in _FORMS.items()
    }
    try:
        import typed_gguf  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError:
        return found
    return found | {TYPED_GGUF: partial(_typed_gguf, model.path, threads, has_chat_template(model.llm))}


def _typed_gguf(path: Path, threads: int, has_template: bool) -> Answer:
    """Open a model in typed-gguf, with the llama.cpp that all others use; a context a request, as it does."""
    from typed_gguf import schema  # type: ignore[import-not-found]
    from typed_gguf.engine import decide as engine  # type: ignore[import-not-found]
    from typed_gguf.engine.session import ModelSession, open_model  # type: ignore[import-not-found]

    # A model without a template of its own is asked in plain text, which typed-gguf wants to be told.
    options = {"threads": threads} | ({} if has_template else {"template": "plain"})
    handle = open_model(path, runtime_dir=Path(llama_cpp.__file__).parent / "lib")

    def answer(state: Any, questions: Mapping[str, Question]) -> dict[str, Told]:
        shown = {name: _wire(question) for name, question in questions.items()}
        given = state if isinstance(state, (str, dict, list)) else state_text(state)
        request = schema.parse_request({"state": given, "questions": shown, "options": options})
        plan = engine.plan_context(request, handle)
        session = ModelSession(handle, plan)
        try:
            found = engine.DecisionEngine(session).decide(request, plan=plan).payload()["answers"]
        finally:
            session.close()
        return {name: _told(questions[name], found[name]) for name in questions}

    return answer


def _wire(question: Question) -> dict[str, Any]:
    """Return a question in System One's format."""
    if isinstance(question, Choice):
        criteria: Any = {str(value): text for value, text in dict(question.options).items()}
        return {"type": "choice", "instructions": question.instructions, "criteria": criteria}
    if isinstance(question, Predicate):
        told = {"true": question.true, "false": question.false}
        criteria = told if None not in told.values() else None
        return {"type": "noul", "instructions": question.instructions, "criteria": criteria}
    return {"type": "score", "instructions": question.instructions, "criteria": list(question.levels)}


def _told(question: Question, answer: dict[str, Any]) -> Told:
    if isinstance(question, Predicate):
        p: dict[Any, float] = {True: answer["noul"], False: 1 - answer["noul"]}
    else:
        p = dict(zip(question.values, answer["probabilities"].values(), strict=True))
    return Told(max(p, key=p.__getitem__), p, answer["coverage"])
