"""`decide` and `decide_many`: typed questions about states, with a probability for every answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np

from token_trie.decisions.calibration import BATCH_ROWS, Binding, Mean, fingerprint, refuse_batch
from token_trie.decisions.many import Many, Results, windows
from token_trie.decisions.run import run
from token_trie.errors import ArgumentError, ContextError, TokenTrieError, VocabularyError
from token_trie.llama.batch import Batch, Sequential
from token_trie.llama.stream import Stream
from token_trie.llama.text import join_after
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.lifetime import MAX_SEEN, LruCache, attachment, cache_in
from token_trie.native.options import takes
from token_trie.questions.form import Form, FormAsked, FormView, Put, begins_with_state
from token_trie.questions.options import FORMS, DecideOptions, forms_of, profile_of
from token_trie.questions.question import (
    Answered,
    Choice,
    ChoiceAnswer,
    Examples,
    Predicate,
    PredicateAnswer,
    Question,
    Score,
    ScoreAnswer,
    is_searched,
    state_text,
)
from token_trie.questions.scores import (
    LEAF_END,
    Reading,
    Scored,
    score_all,
    score_in,
)
from token_trie.questions.searched import Asked, SetAsked
from token_trie.sets.control_tokens import tokens_of
from token_trie.sets.prompt import chat_handler_of, check_length, first_token, tokenize_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.many import OnError
    from token_trie.questions.options import DecideKeywords


def asked_of(question: Question, options: DecideOptions, llm: Llama | None) -> Asked:
    """Return a question prepared for the model, in the given form or those of its profile.

    ArgumentError if the options do not fit the question; CalibrationError if the calibration was fitted on another
    binding.
    """
    examples = options.examples if isinstance(options.examples, Examples) else None
    calibrator = options.calibrator
    form, profile = options.form, None
    if form is None:
        profile = "plain" if llm is None else profile_of(llm)
        forms = forms_of(profile, question)
    else:
        forms = {form if isinstance(form, Form) else FORMS[form]: 1.0}
    if is_searched(question):
        return SetAsked.of(question, forms, options, profile)
    asked = FormAsked(question, forms, options.orders, calibrator, examples, profile)
    if calibrator is not None and calibrator.binding is not None:
        own = Binding(fingerprint(llm), _core.llama_loaded(), asked.asked, asked.classes, LEAF_END)
        calibrator.binding.require(own)
    return asked


K = TypeVar("K")
T = TypeVar("T")
_Asked: TypeAlias = "dict[str | None, Asked]"
Scores: TypeAlias = Mapping[K, Sequence[Scored]]
"""For each question, the scores of each view's texts."""


class ReadStep(NamedTuple):
    """A view of a question that a model has to read, about the state, or without one for the prior."""

    name: Any
    """Name of the question."""
    view: FormView
    is_prior: bool = False

    def reading(self, llm: Llama, state: str) -> Reading:
        """Return the reading of a Llama's model."""
        return self.view.reading(llm, None if self.is_prior else state)


def prior_steps(asked: Mapping[Any, Asked]) -> list[ReadStep]:
    """Return the steps of the priors, for questions that have some."""
    return [ReadStep(name, view, True) for name, one in asked.items() if one.has_prior for view in one.views]


def own_steps(asked: Mapping[Any, Asked]) -> list[ReadStep]:
    """Return the steps about the state."""
    return [ReadStep(name, view) for name, one in asked.items() for view in one.views]


def scores_of(steps: Iterable[ReadStep], results: Iterable[Scored]) -> dict[Any, list[Scored]]:
    """Return the results of steps by question."""
    found: dict[Any, list[Scored]] = {}
    for step, scored in zip(steps, results, strict=True):
        found.setdefault(step.name, []).append(scored)
    return found


def answers_of(asked: Mapping[K, Asked], scores: Scores[K], priors: Scores[K]) -> dict[K, Answered[Any]]:
    """Return the answers; an error names the question."""
    answers = {}
    for name, one in asked.items():
        with _naming(name):
            answers[name] = one.answer(scores[name], priors.get(name, ()))
    return answers


@contextmanager
def _naming(name: object) -> Iterator[None]:
    """Put the name of a question, if it has one, before the message of an error."""
    try:
        yield
    except (ArgumentError, VocabularyError, ContextError) as error:
        if name is None:
            raise
        raise _named_error(name, error) from error


def _named_error(name: object, error: TokenTrieError) -> TokenTrieError:
    is_named = name is not None and isinstance(error, (ArgumentError, VocabularyError, ContextError))
    return type(error)(f"questions[{name!r}]: {error}") if is_named else error


def _answer(asked: Mapping[K, Asked], read: Callable[[ReadStep], Scored]) -> dict[K, Answered[Any]]:
    """Answer questions by what `read` returns for each step, one after the other; an error names the question."""
    # First, because they would replace the state in a sequence.
    priors = _read_each(prior_steps(asked), read)
    return answers_of(asked, _read_each(own_steps(asked), read), priors)


def _read_each(steps: list[ReadStep], read: Callable[[ReadStep], Scored]) -> dict[Any, list[Scored]]:
    found = []
    for step in steps:
        with _naming(step.name):
            found.append(read(step))
    return scores_of(steps, found)


def _read_by(llm: Llama, known: dict[object, Any], state: str, options: DecideOptions, step: ReadStep) -> Scored:
    """Read a step with a Llama's model; priors are remembered."""
    if not step.is_prior:
        return _score(llm, step.reading(llm, state), options)
    reading = prior_reading(llm, known, step.view)
    return remembered(known, reading, options, lambda: _score(llm, reading, options))


def _score(llm: Llama, reading: Reading, options: DecideOptions) -> Scored:
    return reading.alone(llm) if options.reproducible else run(llm, reading.prompt, reading)


_KEPT = 1024


def prior_reading(llm: Llama, known: dict[object, Any], view: FormView) -> Reading:
    """Return the tokenized reading of a view without a state, remembered if possible."""
    spells = llm.tokenizer_, chat_handler_of(llm) if view.form.chat else None
    memory: LruCache[tuple[Reading, Any]] = cache_in(known, "readings without a state", _KEPT, _KEPT)
    # By identity; the objects are kept, so that no others get their ids.
    key = view.form, view.instructions, view.options, view.offset, view.shots, *map(id, spells)
    return memory.get(key, 1, lambda: (view.reading(llm, None).tokenized(llm), spells))[0]


def remembered(
    known: dict[object, Any], reading: Reading, options: DecideOptions, make: Callable[[], Scored]
) -> Scored:
    """Return the scores of a tokenized reading, remembered if possible; the least recently used are forgotten."""
    memory: LruCache[Scored] = cache_in(known, "question priors", _KEPT, _KEPT)
    return memory.get((reading.digest, options.reproducible), 1, make)


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
    Models of some hundred million parameters answer a `Choice` well in many cases, but a `Predicate` or a `Score`
    hardly better than chance. Measure on rows with known answers.
    """
    read = DecideOptions.read("decide", options)
    return _about(llm, state, read_questions(questions, read, llm), read)


def _about(llm: Llama, state: object, asked: _Asked, options: DecideOptions) -> Any:
    refuse_batch(options.calibration)
    return named(_answer(asked, partial(_read_by, llm, attachment(llm).known, state_text(state), options)))


def named(answers: dict[str | None, Any] | TokenTrieError) -> Any:
    """Return answers by name, or the single answer that has none; an error as it is."""
    return answers if isinstance(answers, TokenTrieError) else answers.get(None, answers)


def read_questions(questions: object, options: DecideOptions, llm: Llama | None = None) -> _Asked:
    """Read questions by name, or one without a name, for a Llama or a handle on a file; otherwise ArgumentError."""
    if isinstance(questions, (Choice, Predicate, Score)):
        _check_named(options, ())
        return {None: asked_of(questions, options.of(None), llm)}
    if not isinstance(questions, Mapping):
        raise ArgumentError(f"questions must be a dict of Choice, Predicate and Score, not {type(questions).__name__}")
    if not questions:
        raise ArgumentError("questions: none given")
    _check_named(options, questions)
    asked: dict[str | None, Asked] = {}
    for name, question in questions.items():
        if not isinstance(name, str):
            raise ArgumentError(f"questions: a name must be str, not {type(name).__name__}")
        if not isinstance(question, (Choice, Predicate, Score)):
            kind = type(question).__name__
            raise ArgumentError(f"questions[{name!r}] must be a Choice, Predicate or Score, not {kind}")
        with _naming(name):
            asked[name] = asked_of(question, options.of(name), llm)
    return asked


def _check_named(options: DecideOptions, names: Container[object]) -> None:
    if isinstance(options.examples, Mapping):
        for name in options.examples:
            if name not in names:
                raise ArgumentError(f"examples[{name!r}]: there is no question of that name")


def priors_of(llm: Llama, asked: _Asked, options: DecideOptions) -> Scores[str | None]:
    """Return the scores of each question's views without a state, for questions that need them."""
    return _read_each(prior_steps(asked), partial(_read_by, llm, attachment(llm).known, "", options))


def decide_after(stream: Stream, state: str | None, questions: object, options: DecideOptions) -> Any:
    """Answer questions about a stream's text, or about a state after it; errors as of `StreamHandle.decide`."""
    asked = read_questions(questions, options)
    with stream.transaction() as before:
        if not before:
            raise ArgumentError("there is no text to answer about: prefill first")
        refuse_batch(options.calibration)
        if options.reproducible and stream.llm is None:
            raise ArgumentError("reproducible: for handles on a Llama, and this one is on a file")
        answers = _answer(asked, partial(_read_after, stream, before, state, options))
        stream.prefill(before)
        stream.splice(stream.raw_state.n_tokens, [])  # a grammar restarts
        stream.clear_span()
        return named(answers)


def _read_after(stream: Stream, before: list[int], state: str | None, options: DecideOptions, step: ReadStep) -> Scored:
    """Read a step about a stream's text, or about a state after it; the stream's sequence changes."""
    view = step.view
    if view.shots:
        raise ArgumentError("examples: come before a state, and the handle's text is there already")
    reading = view.reading_by(partial(_tokens_of, stream, before, view, state), is_prior=step.is_prior)
    if not step.is_prior or state is not None:
        return _score_after(stream, reading, options, is_beside=False)
    known = stream.with_model(lambda _, known: known)
    return remembered(known, reading, options, lambda: _score_after(stream, reading, options, is_beside=True))


def _score_after(stream: Stream, reading: Reading, options: DecideOptions, *, is_beside: bool) -> Scored:
    if options.reproducible and stream.llm is not None:
        return reading.alone(stream.llm)
    if is_beside:
        with suppress(ContextError):  # if both do not fit: in the place of the sequence
            return score_in(stream, reading, is_beside=True)
    return score_in(stream, reading, is_beside=False)


def _tokens_of(stream: Stream, before: list[int], view: FormView, state: str | None, is_prior: bool) -> list[int]:
    """Return the tokens of a question about the stream's text, or about a state after it."""
    if not is_prior or state is not None:
        return _tokens_after(stream, before, _put(view, view.form.absent if is_prior else state))
    put = _put(view, view.form.absent)  # the text is the state, and is left out
    if stream.llm is not None:
        return stream.tokenize(put)
    return stream.with_vocab(lambda vocab: [first_token(vocab), *_spelled(vocab, put, b"")])


def _tokens_after(stream: Stream, before: list[int], put: Put) -> list[int]:
    """Return the tokens of the stream's text with a question after it."""
    llm = stream.llm
    if llm is None:
        n_kept, more = stream.with_vocab(
            lambda vocab: join_after(vocab, before, lambda lead: _spelled(vocab, put, lead))
        )
        return before[:n_kept] + more
    check_length(llm, put.encode(), stream.n_ctx_max)
    rendered = put.render(llm)

    def tokenize(lead: bytes) -> list[int]:
        whole = rendered.preceded_by(llm, lead.decode(errors="surrogateescape"))
        return tokens_of(llm, whole, lambda text: llm.tokenize(text, add_bos=False, special=True))

    n_kept, more = join_after(vocab_of(llm), before, tokenize)
    return before[:n_kept] + more


def _put(view: FormView, state: str | None) -> Put:
    if view.form.chat:
        raise ArgumentError("form: chat=True makes messages, which cannot follow the text of a handle")
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
        the same, bit by bit, and the states are answered one at a time.

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
    is_batch = read.calibration == "batch"
    if is_batch and read.reproducible:
        raise ArgumentError("calibration: 'batch' decides by windows of states, without reproducible")

    def find(batch: Batch | Sequential) -> Iterator[tuple[int, Any]]:
        if is_batch:
            return enumerate(map(named, _by_mean(llm, batch, states, asked)))
        if read.reproducible:
            return enumerate(_one_by_one(llm, states, asked, read))
        return enumerate(map(named, _together(llm, batch, states, asked, read)))

    return Results(many, find)


def _one_by_one(llm: Llama, states: Iterable[object], asked: _Asked, options: DecideOptions) -> Iterator[Any]:
    for state in states:
        try:
            yield _about(llm, state, asked, options)
        except (ArgumentError, VocabularyError, ContextError) as error:
            yield error


def _together(
    llm: Llama, batch: Batch | Sequential, states: Iterable[object], asked: _Asked, options: DecideOptions
) -> Iterator[Any]:
    priors = priors_of(llm, asked, options)
    for scores in _score_rows(llm, batch, states, asked):
        yield _answers_or_error(asked, scores, priors)


def _score_rows(
    llm: Llama, batch: Batch | Sequential, states: Iterable[object], asked: _Asked
) -> Iterator[Scores[str | None] | TokenTrieError]:
    """Read the questions about many states together; yield, in order, the scores or the error of each state."""
    steps = own_steps(asked)

    def readings() -> Iterator[Callable[[], Reading]]:
        for state in states:
            yield from (partial(lambda state, step: step.reading(llm, state_text(state)), state, s) for s in steps)

    results = score_all(llm, batch, readings())
    for first in results:
        found: list[Any] = [first, *itertools.islice(results, len(steps) - 1)]
        failed = [(step.name, one) for step, one in zip(steps, found, strict=True) if isinstance(one, TokenTrieError)]
        yield _named_error(*failed[0]) if failed else scores_of(steps, found)


def _answers_or_error(
    asked: _Asked, scores: Scores[str | None] | TokenTrieError, priors: Scores[str | None]
) -> dict[str | None, Answered[Any]] | TokenTrieError:
    if isinstance(scores, TokenTrieError):
        return scores
    try:
        return answers_of(asked, scores, priors)
    except TokenTrieError as error:
        return error


def _read_state(state: object) -> object:
    """Return the text of a state; without one, the state, whose row has the error."""
    with suppress(ArgumentError):
        return state_text(state)
    return state


def _by_mean(llm: Llama, batch: Batch | Sequential, states: Iterable[object], asked: _Asked) -> Iterator[Any]:
    """Answer in windows of states; the prior is the mean over all different states so far."""
    means = {name: [Mean()] * len(one.views) for name, one in asked.items()}
    # Texts, as the caller may change a state after it was read.
    states, again = itertools.tee(map(_read_state, states))
    seen = LruCache[bool](MAX_SEEN, MAX_SEEN)
    for window in windows(_score_rows(llm, batch, states, asked), BATCH_ROWS):
        for scores, state in zip(window, again, strict=False):
            if isinstance(scores, TokenTrieError) or not seen.is_new(hash(state), True):
                continue
            for name, of_views in scores.items():
                for i, one in enumerate(of_views):
                    if np.isfinite(one.logprobs).all():
                        means[name][i] = means[name][i].with_rows(one.logprobs[None])
        priors = {name: _priors_of(of_views) for name, of_views in means.items()}
        yield from (_answers_or_error(asked, scores, priors) for scores in window)


def _priors_of(means: Sequence[Mean]) -> list[Scored]:
    """Return the means of a question's views as priors; none if one of them has too few states."""
    values = [value for mean in means if (value := mean.prior) is not None]
    return [Scored(value, np.ones_like(value), math.nan, 0, 0) for value in values] if len(values) == len(means) else []
