"""`decide` and `decide_many`: typed questions about states, with a probability for every answer."""

from __future__ import annotations

import itertools
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from token_trie.decisions.bound_choices import Reader
from token_trie.decisions.calibration import (
    BatchPrior,
    Binding,
    Calibrator,
    Mean,
    fingerprint,
    over_rows,
    refuse_over_rows,
)
from token_trie.decisions.many import windows
from token_trie.decisions.run import Bound, Many, Prefix, Request
from token_trie.decisions.think import Think
from token_trie.errors import ArgumentError, ContextError, TokenTrieError, VocabularyError
from token_trie.llama.batch import Batch, Sequential
from token_trie.llama.stream import Stream
from token_trie.llama.text import join_after
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.lifetime import attachment, lease
from token_trie.native.options import takes
from token_trie.questions.answer import Answered, ChoiceAnswer, PredicateAnswer, ScoreAnswer
from token_trie.questions.examples import Examples
from token_trie.questions.form import FormAsked, FormView, Put, begins_with_state
from token_trie.questions.options import DecideOptions
from token_trie.questions.profile import PROFILES, profile_of
from token_trie.questions.question import Choice, Predicate, Question, Score, state_text
from token_trie.questions.scores import (
    LEAF_END,
    Asked,
    QuestionView,
    Reading,
    Scored,
    mean_of,
    priors_of_means,
    remembered,
    score_all,
    score_alone,
    score_in,
    score_texts,
    with_scored,
    write_in,
    written,
)
from token_trie.questions.trained import TrainedAsked, trained_of
from token_trie.sets.control_tokens import tokens_of
from token_trie.sets.prompt import check_length, first_token, tokenize_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.run import OnError
    from token_trie.questions.options import DecideKeywords


class Respondent(ABC):
    """Reads questions about one state; errors are those of `decide`."""

    @property
    @abstractmethod
    def known(self) -> dict[object, Any]:
        """Remembered facts of the model."""

    @abstractmethod
    def reading(self, view: QuestionView) -> Reading:
        """Return the reading of a view for the state."""

    @abstractmethod
    def prior(self, view: QuestionView, absent: str | None) -> Scored:
        """Return the scores of a view's texts about a state without content; None: the form's own."""

    @abstractmethod
    def score(self, reading: Reading) -> Scored:
        """Score texts."""

    @abstractmethod
    def written(self, reading: Reading) -> str:
        """Return the line that the model writes without a constraint, or its beginning."""


class OfLlama(Respondent):
    """A Llama's model that reads about one state."""

    def __init__(self, llm: Llama, state: str, options: DecideOptions) -> None:
        self._llm = llm
        self._state = state
        self._is_reproducible = options.reproducible

    @property
    def known(self) -> dict[object, Any]:
        """Remembered facts of the model."""
        return attachment(self._llm).known

    def reading(self, view: QuestionView) -> Reading:
        """Return the reading of a view for the state."""
        return view.reading(self._llm, self._state)

    def prior(self, view: QuestionView, absent: str | None) -> Scored:
        """Return the scores of a view's texts about a state without content, remembered if possible."""
        reading = view.reading(self._llm, absent).tokenized(self._llm)
        return remembered(self.known, reading, lambda: self.score(reading), is_reproducible=self._is_reproducible)

    def score(self, reading: Reading) -> Scored:
        """Score texts, reproducibly if requested."""
        return (score_alone if self._is_reproducible else score_texts)(self._llm, reading)

    def written(self, reading: Reading) -> str:
        """Return the line that the model writes without a constraint, or its beginning."""
        return written(self._llm, reading.prompt)


def asked_of(question: Question, options: DecideOptions, llm: Llama | None) -> Asked:
    """Return a question prepared for the model: in its trained format if it has one, or in a given form.

    Raises
    ------
    ArgumentError
        The model's trained format for it is not supported here, or not with these options.
    CalibrationError
        The calibration in the options was fitted on another binding.
    """
    trained = None if llm is None or options.form is not None else trained_of(llm)
    if llm is None or trained is None:
        return _in_form(question, options, llm)
    if options.think is not None:
        raise ArgumentError("think: the model was trained to decide without; give a form, and it is asked in that")
    if options.examples is not None:
        raise ArgumentError("examples: the model was trained to decide without; give a form")
    if options.calibrator is not None and options.calibrator.binding is not None:
        raise ArgumentError("calibration: the model was trained to decide, by temperatures of its own; give a form")
    return TrainedAsked.of(llm, question, trained)


def _in_form(question: Question, options: DecideOptions, llm: Llama | None) -> FormAsked:
    examples = options.examples if isinstance(options.examples, Examples) else None
    calibrator = options.calibrator
    profile = PROFILES["plain"] if llm is None else profile_of(llm)
    name = profile.name if options.form is None else None
    forms = options.forms(profile.forms(question))
    asked = FormAsked(question, forms, options.n_orders, calibrator, examples, name)
    if calibrator is not None and calibrator.binding is not None:
        own = Binding(fingerprint(llm), _core.llama_loaded(), asked.asked, asked.classes, LEAF_END)
        calibrator.binding.require(own)
    return asked


K = TypeVar("K")


class Thoughts:
    """Counts decisions, and how many of them thought first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_decisions = 0
        self._n_thoughts = 0

    def claim(self, n_decisions: int, n_close: int, share: float) -> int:
        """Count new decisions, n_close of which are close; return how many of these may think."""
        with self._lock:
            self._n_decisions += n_decisions
            most = math.ceil(share * self._n_decisions - 1e-9)  # because 0.2 * 15 is slightly above 3
            n = max(0, min(n_close, most - self._n_thoughts))
            self._n_thoughts += n
            return n


def to_think_about(known: dict[object, Any], think: Think, answers: Mapping[K, Answered[Any]]) -> list[K]:
    """Return the names of the answers about a state that need a thought, the closest first.

    Parameters
    ----------
    known : dict
        Remembered facts of the model, which hold the count of thoughts.
    """
    leads = {name: lead_of(answer) for name, answer in answers.items()}
    close = sorted((name for name in leads if leads[name] < think.margin), key=leads.__getitem__)
    thoughts: Thoughts = known.setdefault(("thoughts", think.share), Thoughts())
    return close[: thoughts.claim(len(answers), len(close), think.share)]


def lead_of(answer: Answered[Any]) -> float:
    """Return the difference of the two largest probabilities; 1 if there is only one."""
    best = sorted(answer.probabilities.values())[-2:]
    return best[1] - best[0] if len(best) > 1 else 1.0


T = TypeVar("T")


@overload
def decide(llm: Llama, state: object, questions: Choice[T], **options: Unpack[DecideKeywords]) -> ChoiceAnswer[T]: ...
@overload
def decide(llm: Llama, state: object, questions: Predicate, **options: Unpack[DecideKeywords]) -> PredicateAnswer: ...
@overload
def decide(llm: Llama, state: object, questions: Score, **options: Unpack[DecideKeywords]) -> ScoreAnswer: ...
@overload
def decide(
    llm: Llama, state: object, questions: Mapping[str, Choice[T]], **options: Unpack[DecideKeywords]
) -> dict[str, ChoiceAnswer[T]]: ...
@overload
def decide(
    llm: Llama, state: object, questions: Mapping[str, Predicate], **options: Unpack[DecideKeywords]
) -> dict[str, PredicateAnswer]: ...
@overload
def decide(
    llm: Llama, state: object, questions: Mapping[str, Score], **options: Unpack[DecideKeywords]
) -> dict[str, ScoreAnswer]: ...
@overload
def decide(
    llm: Llama, state: object, questions: Mapping[str, Question], **options: Unpack[DecideKeywords]
) -> dict[str, Any]: ...
@takes(DecideOptions)
def decide(llm: Llama, state: object, questions: object, **options: Unpack[DecideKeywords]) -> Any:
    """Answer questions about a state.

    The state is evaluated once, and each question is evaluated directly after it. So an answer does not depend on the
    other questions, on their order or on their names.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. The beginning that a state shares with the previous state is not evaluated again.
    state : str, JSON value, or sequence of chat messages
        The subject of the questions. Names of control tokens are plain text in it, and in the questions.
    questions : mapping of names to Choice, Predicate or Score; or one of these
        The questions. The model does not see their names.
    **options
        Those of `DecideOptions`.

    Returns
    -------
    dict of str to ChoiceAnswer, PredicateAnswer or ScoreAnswer
        The answers by the names of the questions, in their order. For a single question, its answer.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        The state, a question or an option cannot be given to the model, or does not fit into the context. The message
        names the question.
    BusyError, CancelledError
        As in `choose`.

    Notes
    -----
    Models of some hundred million parameters that were not trained for decisions answer a `Choice` well in many cases,
    but a `Predicate` or a `Score` hardly better than chance. Measure on rows with known answers.
    """
    read = DecideOptions.read("decide", options)
    return answer_about(llm, state, read_questions(questions, read, llm), read)


def answer_about(llm: Llama, state: object, asked: dict[str | None, Asked], options: DecideOptions) -> Any:
    """Answer prepared questions."""
    return answers_of(OfLlama(llm, state_text(state), options), asked, options)


def answers_of(who: Respondent, asked: dict[str | None, Asked], options: DecideOptions) -> Any:
    """Answer prepared questions; errors as of `decide`."""
    refuse_over_rows(options.calibration)
    priors = _priors(who.prior, asked)  # first, because they would replace the state in the sequence

    def answer(name: str | None, think: Think | None = None) -> Answered[Any]:
        one, scored = asked[name], list[Scored]()
        with naming(name):
            for view in one.views:
                reading = one.wanting(who.reading(view))._replace(think=think)
                scored.append(who.score(reading))
                if one.is_sure(scored, priors[name]):
                    break
            return one.answer(scored, priors[name])

    answers = {name: answer(name) for name in asked}
    if options.think is not None:
        for name in to_think_about(who.known, options.think, answers):
            answers[name] = answer(name, options.think)
    if options.instead:
        for name, one in asked.items():
            with naming(name):
                answers[name] = replace(answers[name], instead=who.written(who.reading(one.views[0])))
    return named(answers)


def named(answers: dict[str | None, Answered[Any]]) -> Any:
    """Return answers by name, or the single answer that has none."""
    return answers.get(None, answers)


def read_questions(questions: object, options: DecideOptions, llm: Llama | None = None) -> dict[str | None, Asked]:
    """Read questions by name, or one without a name, for a Llama's model or for a handle on a file.

    Raises
    ------
    ArgumentError
        They are not questions.
    """
    if isinstance(questions, (Choice, Predicate, Score)):
        _check_named(options, ())
        return {None: asked_of(questions, options.of(None), llm)}
    if not isinstance(questions, Mapping):
        raise ArgumentError(
            f"questions: {type(questions).__name__} where a dict of Choice, Predicate and Score belongs"
        )
    if not questions:
        raise ArgumentError("questions: none given")
    _check_named(options, questions)
    asked: dict[str | None, Asked] = {}
    for name, question in questions.items():
        if not isinstance(name, str):
            raise ArgumentError(f"questions: a name is {type(name).__name__} where str belongs")
        if not isinstance(question, (Choice, Predicate, Score)):
            kind = type(question).__name__
            raise ArgumentError(f"questions[{name!r}]: {kind} where Choice, Predicate or Score belongs")
        with naming(name):
            asked[name] = asked_of(question, options.of(name), llm)
    return asked


def _check_named(options: DecideOptions, names: Container[object]) -> None:
    if isinstance(options.examples, Mapping):
        for name in options.examples:
            if name not in names:
                raise ArgumentError(f"examples[{name!r}]: there is no question of that name")


def priors_of(
    llm: Llama, asked: dict[str | None, Asked], options: DecideOptions
) -> dict[str | None, list[Scored | None]]:
    """Return the scores of the texts of each question's views without a state; None where not needed."""
    return _priors(OfLlama(llm, "", options).prior, asked)


def _priors(
    prior: Callable[[QuestionView, str | None], Scored], asked: dict[str | None, Asked]
) -> dict[str | None, list[Scored | None]]:
    priors: dict[str | None, list[Scored | None]] = {}
    for name, one in asked.items():
        with naming(name):
            priors[name] = [mean_of([prior(view, absent) for absent in one.absent(view)]) for view in one.views]
    return priors


@contextmanager
def naming(name: str | None) -> Iterator[None]:
    """Put a question's name before the message of an error."""
    try:
        yield
    except (ArgumentError, VocabularyError, ContextError) as error:
        if name is None:
            raise
        raise type(error)(f"questions[{name!r}]: {error}") from error


@dataclass(frozen=True, eq=False)
class QuestionsRequest(Request[Any]):
    """Questions about the text of a handle, or about a state after it."""

    state: str | None
    asked: dict[str | None, Asked]
    options: DecideOptions

    def bind(self, reader: Reader, prefix: Prefix) -> _BoundQuestions:
        """Bind them to the text; each question is tokenized later, when it is read."""
        return _BoundQuestions(prefix.tokens, self)


@dataclass(frozen=True, eq=False)
class _BoundQuestions(Bound[Any]):
    tokens: list[int]
    request: QuestionsRequest

    def run(self, stream: Stream) -> Any:
        options = self.request.options
        standing = _OfStream(stream, self.tokens, self.request.state, options)
        answers = answers_of(standing, self.request.asked, options)
        stream.prefill(self.tokens)
        return answers


class _OfStream(Respondent):
    """Reads about the text of a stream, whose sequence changes with each reading."""

    def __init__(self, stream: Stream, tokens: list[int], state: str | None, options: DecideOptions) -> None:
        self._stream = stream
        self._llm = stream.llm
        self._tokens = tokens
        self._state = state
        self._is_reproducible = options.reproducible
        if options.reproducible and self._llm is None:
            raise ArgumentError("reproducible: for handles on a Llama, and this one is on a file")

    @property
    def known(self) -> dict[object, Any]:
        """Remembered facts of the model."""
        return self._stream.with_model(lambda _, known: known)

    def reading(self, view: QuestionView) -> Reading:
        """Return the reading of a view after the stream's text."""
        formed = _formed(view)
        return Reading(self._behind(self._tokens, formed, self._state), formed.weighing.texts)

    def prior(self, view: QuestionView, absent: str | None) -> Scored:
        """Return the scores without a state's content: after the stream's text, or alone if that is the state."""
        formed = _formed(view)
        texts, absent = formed.weighing.texts, formed.form.absent if absent is None else absent
        if self._state is not None:
            return self.score(Reading(self._behind(self._tokens, formed, absent), texts))
        alone = Reading(self._alone(formed, absent), texts)
        return remembered(
            self.known,
            alone,
            lambda: self._score(alone, is_beside=True),
            is_reproducible=self._is_reproducible,
        )

    def score(self, reading: Reading) -> Scored:
        """Score texts, reproducibly if requested."""
        return self._score(reading, is_beside=False)

    def written(self, reading: Reading) -> str:
        """Return the line that the model writes without a constraint, or its beginning."""
        return write_in(self._stream, reading)

    def _score(self, reading: Reading, *, is_beside: bool) -> Scored:
        if self._is_reproducible and self._llm is not None:
            return score_alone(self._llm, reading)
        return score_in(self._stream, reading, is_beside=is_beside)

    def _alone(self, view: FormView, state: str) -> list[int]:
        put = _put(view, state)
        if self._llm is not None:
            return self._stream.tokenize(put)
        return self._stream.with_vocab(lambda vocab: [first_token(vocab), *_spelled(vocab, put, b"")])

    def _behind(self, before: list[int], view: FormView, state: str | None) -> list[int]:
        """Return the tokens of the stream's text, with a question and its state, if any, after it."""
        put, llm = _put(view, state), self._llm
        if llm is None:
            n_kept, more = self._stream.with_vocab(
                lambda vocab: join_after(vocab, before, lambda lead: _spelled(vocab, put, lead))
            )
            return before[:n_kept] + more
        with lease(llm):
            check_length(llm, put.encode(), self._stream.n_ctx_max)
            rendered = put.render(llm)

            def tokenize(lead: bytes) -> list[int]:
                whole = rendered.preceded_by(llm, lead.decode(errors="surrogateescape"))
                return tokens_of(llm, whole, lambda text: llm.tokenize(text, add_bos=False, special=True))

            n_kept, more = join_after(vocab_of(llm), before, tokenize)
            return before[:n_kept] + more


def _formed(view: QuestionView) -> FormView:
    assert isinstance(view, FormView)  # because the questions were read for a stream
    if view.shots is not None:
        raise ArgumentError("examples: stand before a state, and what stands on a handle stands there already")
    return view


def _put(view: FormView, state: str | None) -> Put:
    if view.form.chat:
        raise ArgumentError("form: chat=True makes messages, which do not go behind what stands")
    if not begins_with_state(view.form):
        raise ArgumentError("form: the question is before the state, and the text of the handle is there already")
    return Put(view.form.template, state, view.instructions, view.listed)


def _spelled(vocab: _core.Vocab, put: Put, lead: bytes) -> list[int]:
    """Return the tokens of a question for a model without a Llama; names of control tokens in it stay plain text."""
    controls = (text for _, text in vocab.control_texts() if len(text) > 1)
    if any(text.decode(errors="ignore") in put.template for text in controls):
        raise ArgumentError("form: its template names control tokens, for which the handle is to be on a Llama")
    return tokenize_text(vocab, lead + put.encode(), "question", begins=False, special=False)


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
        together = over_rows(read.calibration)
        if together is not None:
            return enumerate(map(_named, _over_rows(llm, batch, states, asked, together)))
        if read.reproducible or read.instead or read.orders == "auto" or is_timed:
            return enumerate(_one_by_one(llm, states, asked, read))
        return enumerate(map(_named, _together(llm, batch, states, asked, read)))

    return many.results(find)


def _check_over_rows(options: DecideOptions, asked: _Asked) -> None:
    calibrator = over_rows(options.calibration)
    if calibrator is None:
        return
    if options.reproducible or options.instead or options.orders == "auto" or options.think is not None:
        raise ArgumentError(
            "calibration: 'batch' decides by windows of states, without reproducible, instead, orders='auto' and think"
        )
    if isinstance(calibrator, BatchPrior) and calibrator.frequencies is not None and len(asked) > 1:
        raise ArgumentError("frequencies: are those of one question's answers, and several are asked")
    for one in asked.values():
        one.over_rows(calibrator)


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
"""A state, the names of one or more questions about it, and how to think first."""

_WINDOW = 64
"""Number of states that are answered before close answers are thought about."""


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
    llm: Llama, batch: Batch | Sequential, states: Iterable[object], asked: _Asked, calibrator: Calibrator
) -> Iterator[Any]:
    """Answer in windows of states; the prior is the mean over all states so far."""
    over = {name: one.over_rows(calibrator) for name, one in asked.items()}
    means = {name: [Mean()] * len(one.views) for name, one in asked.items()}
    scored = _scored(llm, batch, ((state, list(asked), None) for state in states), asked)
    for window in windows(scored, calibrator.window or 1):
        for row in window:
            for name, results in row.items():
                means[name] = [with_scored(mean, one) for mean, one in zip(means[name], results, strict=True)]
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
    """Answer again, with a thought, about states whose answers are close; yield the answers about all states."""
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
    """Answer about states in order; yield the answers about each, or an error."""
    return (_answers(asked, scored, priors) for scored in _scored(llm, batch, jobs, asked))


def _scored(
    llm: Llama, batch: Batch | Sequential, jobs: Iterable[_Job], asked: _Asked
) -> Iterator[dict[str | None, list[Scored | TokenTrieError]]]:
    """Score questions about states in order."""
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


def _reading(llm: Llama, asked: Asked, view: QuestionView, state: object, think: Think | None) -> Reading:
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
