"""`decide_many`: questions about many states at once, in one context."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from token_trie.decisions.calibrator import BatchPrior, batch_prior
from token_trie.decisions.over_rows import windows
from token_trie.decisions.questions.asked import Asked, View
from token_trie.decisions.questions.decide import answer_about, named, naming, priors_of, read_questions
from token_trie.decisions.questions.means import NOTHING, priors_of_means
from token_trie.decisions.questions.options import DecideOptions
from token_trie.decisions.questions.scores import Reading, Scored, score_all
from token_trie.decisions.questions.thinking import to_think_about
from token_trie.decisions.questions.wording import state_text
from token_trie.decisions.results import Many
from token_trie.decisions.think import Think
from token_trie.errors import ArgumentError, ContextError, TokenTrieError, VocabularyError
from token_trie.llama.batch import Batch
from token_trie.llama.sequential import Sequential
from token_trie.native.core import Llama
from token_trie.native.lease import attachment
from token_trie.native.options import takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.questions.options import DecideKeywords
    from token_trie.decisions.results import OnError


@takes(DecideOptions)
def decide_many(
    llm: Llama,
    states: Iterable[object],
    questions: object,
    *,
    on_error: OnError = "raise",
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
    **options: Unpack[DecideKeywords],
) -> Iterator[Any]:
    """Answer questions about many states, as `decide` does about one.

    States are read only when there is space for them. Answers are yielded as the caller asks for them, in the order of
    the states.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. Its own context is not touched, and it may be used meanwhile.
    states : iterable of states
        Each as for `decide`.
    questions
        The questions about each state, as for `decide`.
    on_error : {"raise", "return"}
        What happens if a state cannot be used. "raise" raises the error, which names the state's position, and ends the
        iteration. "return" yields the error instead of answers, and continues with the other states.
    progress, n_parallel, n_ctx
        As for `choose_many`.
    **options
        Those of `DecideOptions`.

    Yields
    ------
    dict of answers, or an answer
        The result of `decide`, up to llama.cpp's rounding, which depends on the size of a batch; with ``reproducible``
        the same, bit by bit. States are answered one at a time with ``reproducible``, ``instead``, ``orders="auto"``,
        and a `Think` with `seconds`. Otherwise, some tens of states are answered before the model thinks about any.

    Raises
    ------
    ArgumentError
        At once: invalid questions or options.
    ArgumentError, VocabularyError, ContextError
        An error of a state, with its position, or of a question, with its name.
    CancelledError
        The Llama was closed during the iteration.
    """
    read = DecideOptions.read("decide_many", options)
    asked = read_questions(questions, read, llm)
    many = Many(llm, states, "state", "decide", progress, n_parallel, n_ctx, on_error)
    _check_over_rows(read, asked)

    def find(batch: Batch | Sequential) -> Iterator[tuple[int, Any]]:
        is_timed = read.think is not None and read.think.seconds is not None
        prior = batch_prior(read.calibration)
        if prior is not None:
            return enumerate(map(_named, _over_rows(llm, batch, states, asked, prior)))
        if read.reproducible or read.instead or read.orders == "auto" or is_timed:
            return enumerate(_one_by_one(llm, states, asked, read))
        return enumerate(map(_named, _together(llm, batch, states, asked, read)))

    return many.results(find)


def _check_over_rows(options: DecideOptions, asked: _Asked) -> None:
    prior = batch_prior(options.calibration)
    if prior is None:
        return
    if options.reproducible or options.instead or options.orders == "auto" or options.think is not None:
        raise ArgumentError(
            "calibration: 'batch' decides by windows of states, without reproducible, instead, orders='auto' and think"
        )
    if prior.frequencies is not None and len(asked) > 1:
        raise ArgumentError("frequencies: are those of one question's answers, and several are asked")
    for one in asked.values():
        one.over_rows(prior)


def _one_by_one(
    llm: Llama, states: Iterable[object], asked: dict[str | None, Asked], options: DecideOptions
) -> Iterator[Any]:
    for state in states:
        try:
            yield answer_about(llm, state, asked, options)
        except (ArgumentError, VocabularyError, ContextError) as error:
            yield error


def _named(answers: dict[str | None, Any] | TokenTrieError) -> Any:
    return answers if isinstance(answers, TokenTrieError) else named(answers)


_Asked: TypeAlias = dict["str | None", Asked]
_Priors: TypeAlias = dict["str | None", "list[Scored | None]"]
_Job: TypeAlias = tuple[object, "list[str | None]", "Think | None"]
"""A state, the names of what is asked about it, one at least, and what is done first."""

_WINDOW = 64
"""States that are answered about before close answers are thought about."""


def _together(
    llm: Llama, batch: Batch | Sequential, states: Iterable[object], asked: _Asked, options: DecideOptions
) -> Iterator[Any]:
    priors = priors_of(llm, asked, options)
    if options.think is None:
        yield from _read(llm, batch, ((state, list(asked), None) for state in states), asked, priors)
        return
    left = iter(states)
    while window := list(itertools.islice(left, _WINDOW)):
        answered = list(_read(llm, batch, ((state, list(asked), None) for state in window), asked, priors))
        yield from _thought(llm, batch, window, answered, asked, priors, options.think)


def _over_rows(
    llm: Llama, batch: Batch | Sequential, states: Iterable[object], asked: _Asked, prior: BatchPrior
) -> Iterator[Any]:
    """Answer by windows of states, by what all until then give the options in the mean."""
    over = {name: one.over_rows(prior) for name, one in asked.items()}
    means = {name: [NOTHING] * len(one.views) for name, one in asked.items()}
    scored = _scored(llm, batch, ((state, list(asked), None) for state in states), asked)
    for window in windows(scored, prior.window):
        for row in window:
            for name, results in row.items():
                means[name] = [mean.and_of(one) for mean, one in zip(means[name], results, strict=True)]
        priors = {name: priors_of_means(of_views) for name, of_views in means.items()}
        yield from (_answers(over, row, priors) for row in window)


def _thought(
    llm: Llama,
    batch: Batch | Sequential,
    states: list[object],
    answered: list[Any],
    asked: _Asked,
    priors: _Priors,
    think: Think,
) -> Iterator[Any]:
    """Answer again about states whose answers are close; yield those of all."""
    known = attachment(llm).known
    again = [[] if isinstance(one, TokenTrieError) else to_think_about(known, think, one) for one in answered]
    jobs = ((state, names, think) for state, names in zip(states, again, strict=True) if names)
    thoughts = _read(llm, batch, jobs, asked, priors)
    for answers, names in zip(answered, again, strict=True):
        if not names:
            yield answers
        else:
            thought = next(thoughts)
            yield thought if isinstance(thought, TokenTrieError) else {**answers, **thought}


def _read(
    llm: Llama, batch: Batch | Sequential, jobs: Iterable[_Job], asked: _Asked, priors: _Priors
) -> Iterator[dict[str | None, Any] | TokenTrieError]:
    """Answer about states in their order; yield the answers of each, or an error."""
    return (_answers(asked, scored, priors) for scored in _scored(llm, batch, jobs, asked))


def _scored(
    llm: Llama, batch: Batch | Sequential, jobs: Iterable[_Job], asked: _Asked
) -> Iterator[dict[str | None, list[Scored | TokenTrieError]]]:
    """Score about states in their order."""
    under_way: deque[list[str | None]] = deque()

    def readings() -> Iterator[Callable[[], Reading]]:
        for state, names, think in jobs:
            under_way.append(names)
            for name in names:
                one = asked[name]
                yield from (partial(_reading, llm, one, view, state, think) for view in one.views)

    results = score_all(llm, batch, readings())
    for first in results:
        left = itertools.chain([first], results)
        yield {name: list(itertools.islice(left, len(asked[name].views))) for name in under_way.popleft()}


def _reading(llm: Llama, asked: Asked, view: View, state: object, think: Think | None) -> Reading:
    return asked.wanting(view.reading(llm, state_text(state)))._replace(think=think)


def _answers(
    asked: _Asked, scored: dict[str | None, list[Scored | TokenTrieError]], priors: _Priors
) -> dict[str | None, Any] | TokenTrieError:
    answers: dict[str | None, Any] = {}
    for name, results in scored.items():
        try:
            with naming(name):
                answers[name] = asked[name].answer([_require(one) for one in results], priors[name])
        except TokenTrieError as error:
            return error
    return answers


def _require(scored: Scored | TokenTrieError) -> Scored:
    if isinstance(scored, TokenTrieError):
        raise scored
    return scored
