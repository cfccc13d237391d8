"""`decide`: typed questions about a state, each answered with a probability for all that it may be answered with."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from token_trie.decisions.calibrator import refuse_batch_prior
from token_trie.decisions.questions.answered import Answered, ChoiceAnswer, PredicateAnswer, ScoreAnswer
from token_trie.decisions.questions.asked import Asked, View
from token_trie.decisions.questions.asking import asked_of
from token_trie.decisions.questions.options import DecideOptions
from token_trie.decisions.questions.question import Choice, Predicate, Question, Score
from token_trie.decisions.questions.respondent import OfLlama, Respondent
from token_trie.decisions.questions.scores import Scored
from token_trie.decisions.questions.thinking import to_think_about
from token_trie.decisions.questions.wording import state_text
from token_trie.decisions.think import Think
from token_trie.errors import ArgumentError, ContextError, VocabularyError
from token_trie.native.core import Llama
from token_trie.native.options import takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.questions.options import DecideKeywords

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
        What the questions are about. Names of control tokens are plain text in it, and in the questions.
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
    """Answer questions that were read."""
    return answers_of(OfLlama(llm, state_text(state), options), asked, options)


def answers_of(who: Respondent, asked: dict[str | None, Asked], options: DecideOptions) -> Any:
    """Answer questions that were read; errors as of `decide`."""
    refuse_batch_prior(options.calibration)
    priors = _priors(who.prior, asked, options)  # first, as they would take the place of the state

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
    """Return answers by their names, or the one that has none."""
    return answers.get(None, answers)


def read_questions(questions: object, options: DecideOptions, llm: Llama | None = None) -> dict[str | None, Asked]:
    """Read questions by their names, or one without a name, for a Llama's model or for what stands in a stream.

    Raises
    ------
    ArgumentError
        They are none.
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
    """Return what questions give their texts without a state, a view each, if that is wanted."""
    return _priors(OfLlama(llm, "", options).prior, asked, options)


def _priors(
    prior: Callable[[View], Scored], asked: dict[str | None, Asked], options: DecideOptions
) -> dict[str | None, list[Scored | None]]:
    priors: dict[str | None, list[Scored | None]] = {}
    for name, one in asked.items():
        with naming(name):
            takes_prior = one.takes_prior and options.takes_prior
            priors[name] = [prior(view) if takes_prior else None for view in one.views]
    return priors


@contextmanager
def naming(name: str | None) -> Iterator[None]:
    """Put a question's name before what is said of it."""
    try:
        yield
    except (ArgumentError, VocabularyError, ContextError) as error:
        if name is None:
            raise
        raise type(error)(f"questions[{name!r}]: {error}") from error
