"""What a model says of the rows of a table, read once and looked at often."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from token_trie.decisions.admission import Admission
from token_trie.decisions.binding import Binding, fingerprint, spelled_as
from token_trie.decisions.calibrator import States
from token_trie.decisions.choice import ChoiceRequest
from token_trie.decisions.options import ChooseOptions
from token_trie.decisions.over_rows import UndecidedRequest
from token_trie.decisions.questions.decide import priors_of, read_questions
from token_trie.decisions.questions.formed import FormAsked, FormView
from token_trie.decisions.questions.question import Choice, Predicate, Question, Score
from token_trie.decisions.questions.scores import LEAF_END, Reading, score_all
from token_trie.decisions.questions.wording import state_text
from token_trie.decisions.results import Many
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.batch import Batch
from token_trie.llama.sequential import Sequential
from token_trie.native.core import Llama, _core
from token_trie.native.lease import lease
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import tokenize_prompt
from token_trie.sets.trie import TokenTrie
from token_trie.trust.options import RowOptions

Floats = npt.NDArray[np.float64]


class Row(NamedTuple):
    """What a model says of one row; arrays have a figure a class."""

    raw: Floats
    contextual: Floats | None
    mass: float
    state: States | None


@dataclass(frozen=True, eq=False)
class Readings:
    """What a model says of rows, asked one way.

    Attributes
    ----------
    texts : tuple of str
        The classes, in the order given: texts of choices, or names of options.
    raw : ndarray of float64, shape (n_rows, n_classes)
        Log-weights; those of a row, as a softmax, are the raw probabilities.
    contextual : ndarray of float64, shape (n_rows, n_classes), or None
        The same with the contextual prior taken out, of a question.
    mass : ndarray of float64, shape (n_rows,)
        The model's own probability for all classes together.
    states : ndarray of float32, shape (n_rows, n_embd), or None
        The hidden state of the last token of the prompt.
    binding : Binding
        What they come from.
    """

    texts: tuple[str, ...]
    raw: Floats
    contextual: Floats | None
    mass: Floats
    states: States | None
    binding: Binding

    def __len__(self) -> int:
        return len(self.raw)

    @classmethod
    def of(cls, rows: Iterable[Row], binding: Binding) -> Readings:
        """Put rows together."""
        rows, n = list(rows), len(binding.classes)
        contextual = [row.contextual for row in rows if row.contextual is not None]
        states = [row.state for row in rows if row.state is not None]
        return cls(
            texts=binding.classes,
            raw=np.array([row.raw for row in rows], np.float64).reshape(len(rows), n),
            contextual=np.array(contextual, np.float64) if contextual else None,
            mass=np.array([row.mass for row in rows], np.float64),
            states=np.array(states, np.float32) if states else None,
            binding=binding,
        )


class Reader(ABC):
    """Asks a model about rows; one a set of choices, or a question.

    Attributes
    ----------
    values : tuple
        What the classes are for the caller, in their order.
    binding : Binding
        What readings come from.
    """

    values: tuple[Any, ...]
    binding: Binding
    each: str
    """What a row is called in messages."""
    alone: str

    def __init__(self, llm: Llama) -> None:
        self._llm = llm

    def read(
        self,
        rows: Iterable[Any],
        *,
        states: bool = False,
        progress: bool = False,
        n_parallel: int | None = None,
        n_ctx: int | None = None,
    ) -> Iterator[Row]:
        """Read rows; errors are those of `choose_many`, with the position of the row.

        Parameters
        ----------
        states : bool
            Whether to keep hidden states.
        """
        many = Many(self._llm, rows, self.each, self.alone, progress, n_parallel, n_ctx)
        return many.results(lambda batch: enumerate(self._rows(batch, rows, states)))

    @abstractmethod
    def prompts(self, row: Any) -> list[list[int]]:
        """Return the tokens of the prompts that a row is read by; errors as of `read`, without the position."""

    @abstractmethod
    def _rows(self, batch: Batch | Sequential, rows: Iterable[Any], states: bool) -> Iterator[Row | TokenTrieError]: ...


def reader_of(llm: Llama, choices: ChoicesLike | Question, options: RowOptions) -> Reader:
    """Return what asks a model about rows.

    Raises
    ------
    ArgumentError
        The choices, or the options, are none, or do not fit each other; choices that are one answer are among them.
    """
    is_question = isinstance(choices, (Choice, Predicate, Score))
    options.require_for(is_question=is_question)
    return _OfQuestion(llm, choices, options) if is_question else _OfChoices(llm, choices, options)


class _OfChoices(Reader):
    each, alone = "prompt", "choose"

    def __init__(self, llm: Llama, choices: ChoicesLike, options: RowOptions) -> None:
        super().__init__(llm)
        scored = ChooseOptions(leaf_end=options.leaf_end, leading_space=options.leading_space, probabilities=True)
        self._request = ChoiceRequest.read(choices, scored)
        given = self._request.choices
        texts = tuple(leaf.name for leaf in given) if isinstance(given, TokenTrie) else tuple(given.texts)
        self.values = texts if isinstance(given, TokenTrie) else tuple(given.values)
        _require_distinct(texts)
        spelled = spelled_as(given, options.leading_space)
        self.binding = Binding(
            fingerprint(llm), _core.llama_loaded(), options.template, texts, options.leaf_end, spelled
        )

    def prompts(self, row: Any) -> list[list[int]]:
        """Return the tokens of the prompt."""
        with lease(self._llm):
            return [tokenize_prompt(self._llm, row)]

    def _rows(self, batch: Batch | Sequential, rows: Iterable[Any], states: bool) -> Iterator[Row | TokenTrieError]:
        request = UndecidedRequest(replace(self._request, with_state=states))
        requests = zip(rows, itertools.repeat(lambda: request))
        for _, found in Admission(self._llm, batch, requests).results(in_order=True):
            if isinstance(found, TokenTrieError):
                yield found
            else:
                choices = found.bound.choices
                answer = found.seen.answer
                scores = choices.aligned(answer.logprobs)[choices.left()]
                state = answer.state if len(answer.state) else None
                yield Row(scores, None, min(1.0, float(np.exp(scores).sum())), state)


class _OfQuestion(Reader):
    each, alone = "state", "decide"

    def __init__(self, llm: Llama, question: Question, options: RowOptions) -> None:
        super().__init__(llm)
        self._options = options.of_question()
        self._named = read_questions(question, self._options, llm)
        asked = self._named[None]
        if not isinstance(asked, FormAsked):
            raise ArgumentError("llm: was trained to decide, and is asked as it was trained; give a form")
        self._asked = asked
        other = (None,) if len(asked.classes) > len(question.values) else ()
        self.values = (*question.values, *other)
        _require_distinct(asked.classes)
        self.binding = Binding(fingerprint(llm), _core.llama_loaded(), asked.asked, asked.classes, LEAF_END)

    def prompts(self, row: Any) -> list[list[int]]:
        """Return the tokens of the question about a state, a view each."""
        with lease(self._llm):
            return [tokenize_prompt(self._llm, self._reading(view, row, False).prompt) for view in self._asked.views]

    def _rows(self, batch: Batch | Sequential, rows: Iterable[Any], states: bool) -> Iterator[Row | TokenTrieError]:
        asked, views = self._asked, self._asked.views
        priors = priors_of(self._llm, self._named, self._options)[None]

        def readings() -> Iterator[Callable[[], Reading]]:
            for row in rows:
                yield from (partial(self._reading, view, row, states) for view in views)

        results = score_all(self._llm, batch, readings())
        for first in results:
            scored = [first, *itertools.islice(results, len(views) - 1)]
            failed = next((one for one in scored if isinstance(one, TokenTrieError)), None)
            if failed is not None:
                yield failed
                continue
            known = [one for one in scored if not isinstance(one, TokenTrieError)]
            raw = asked.of_options(known, [None] * len(views))
            mass = min(1.0, float(np.mean([one.mass for one in known])))
            contextual = None if priors[0] is None else asked.of_options(known, priors)
            yield Row(raw, contextual, mass, known[0].state)

    def _reading(self, view: FormView, row: object, with_state: bool) -> Reading:
        text = state_text(row)
        if view.shots is not None and view.shots.has(text):
            raise ArgumentError("stands among the examples, where its answer is; leave it out here or there")
        return view.reading(self._llm, text)._replace(with_state=with_state)


def _require_distinct(texts: tuple[str, ...]) -> None:
    seen = set[str]()
    for i, text in enumerate(texts):
        if text in seen:
            raise ArgumentError(f"choices[{i}]: {text!r} is there twice; a class is one answer")
        seen.add(text)


def read_rows(
    llm: Llama,
    rows: Iterable[Any],
    choices: ChoicesLike | Question,
    options: RowOptions | None = None,
    *,
    states: bool = False,
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
) -> Readings:
    """Read rows of prompts behind which choices stand, or of states that a question is about."""
    reader = reader_of(llm, choices, options or RowOptions())
    read = reader.read(rows, states=states, progress=progress, n_parallel=n_parallel, n_ctx=n_ctx)
    return Readings.of(read, reader.binding)
