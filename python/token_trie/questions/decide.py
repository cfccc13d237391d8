"""`decide` and `decide_many`: typed questions about states, with a probability for every answer."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

import numpy as np

from token_trie.decisions.calibration import BATCH_ROWS, Binding, Mean, fingerprint, refuse_batch
from token_trie.errors import ArgumentError, ContextError, TokenTrieError, VocabularyError
from token_trie.llama.query import Keep, Plan
from token_trie.llama.stream import Stream
from token_trie.llama.text import join_after
from token_trie.native.core import Llama, _core
from token_trie.native.lifetime import MAX_SEEN, LruCache, cache_in
from token_trie.native.options import takes
from token_trie.plan import Many, Model, Results, run, run_after, together, windows
from token_trie.questions.form import (
    Form,
    FormView,
    PreparedQuestion,
    RenderedQuestion,
    TokensOf,
    begins_with_state,
)
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
from token_trie.questions.scores import LEAF_END, Scored
from token_trie.questions.searched import Prepared, PreparedSet
from token_trie.sets.control_tokens import tokens_of
from token_trie.sets.prompt import chat_handler_of, check_length, first_token, tokenize_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.plan import OnError
    from token_trie.questions.options import DecideKeywords


def prepare(question: Question, options: DecideOptions, llm: Llama | None) -> Prepared:
    """Return a question prepared for the model, in the given form or those of its profile.

    ArgumentError if the options do not fit the question; CalibrationError if the calibration was fitted on another
    binding.
    """
    examples = options.examples if isinstance(options.examples, Examples) else None
    calibrator = options.calibrator
    form, profile = options.form, None
    if form is None:
        profile = "plain" if llm is None else profile_of(llm)
        forms = forms_of(profile, question, is_after_text=llm is None)
    else:
        forms = {form if isinstance(form, Form) else FORMS[form]: 1.0}
    if is_searched(question):
        return PreparedSet.of(question, forms, options, profile)
    prepared = PreparedQuestion(question, forms, options.orders, calibrator, examples, profile)
    if calibrator is not None and calibrator.binding is not None:
        own = Binding(fingerprint(llm), _core.llama_loaded(), prepared.wording, prepared.classes, LEAF_END)
        calibrator.binding.require(own)
    return prepared


K = TypeVar("K")
T = TypeVar("T")
_Prepared: TypeAlias = "dict[str | None, Prepared]"


@contextmanager
def naming(name: object) -> Iterator[None]:
    """Put the name of a question, if it has one, before the message of an error."""
    try:
        yield
    except (ArgumentError, VocabularyError, ContextError) as error:
        if name is None:
            raise
        raise type(error)(f"questions[{name!r}]: {error}") from error


def decide_plan(
    model: Model,
    questions: Mapping[K, Prepared],
    tokens_of: TokensOf,
    place: Callable[[K], AbstractContextManager[None]] = naming,
) -> Plan[dict[K, Answered[Any]]]:
    """Plan the answers to prepared questions, side by side; `place` gives an error the name of its question."""

    def named(name: K, question: Prepared) -> Plan[Answered[Any]]:
        with place(name):
            return (yield from question.plan(model, tokens_of))

    answers = yield from together(named(name, question) for name, question in questions.items())
    return dict(zip(questions, answers, strict=True))


_KEPT = 1024


def about(model: Model, state: str) -> TokensOf:
    """Return what tokenizes questions about a state; the tokens of priors are remembered."""
    llm = model.llm
    assert llm is not None
    memory: LruCache[tuple[list[int], Any]] = cache_in(model.known, "questions without a state", _KEPT, _KEPT)

    def tokens_of(view: FormView, *, is_prior: bool) -> list[int]:
        if not is_prior:
            return model.tokenize(view.prompt(llm, state))
        # By identity; the objects are kept, so that no others get their ids.
        spells = llm.tokenizer_, chat_handler_of(llm) if view.form.chat else None
        key = view.form, view.instructions, view.options, view.offset, view.shots, *map(id, spells)
        return memory.get(key, 1, lambda: (model.tokenize(view.prompt(llm, None)), spells))[0]

    return tokens_of


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
    prepared = prepare_all(questions, read, llm)
    refuse_batch(read.calibration)
    return run(llm, state, partial(_plan, prepared), reproducible=read.reproducible)


def _plan(questions: _Prepared, model: Model, state: object) -> Plan[Any]:
    return _alone_or_named((yield from decide_plan(model, questions, about(model, state_text(state)))))


def _alone_or_named(answers: dict[str | None, Any]) -> Any:
    return answers.get(None, answers)


def prepare_all(questions: object, options: DecideOptions, llm: Llama | None = None) -> _Prepared:
    """Read questions by name, or one without a name, for a Llama or a handle on a file; otherwise ArgumentError."""
    if isinstance(questions, (Choice, Predicate, Score)):
        _check_named(options, ())
        prepared: _Prepared = {None: prepare(questions, options.of(None), llm)}
        _check_orders(options, prepared)
        return prepared
    if not isinstance(questions, Mapping):
        raise ArgumentError(f"questions must be a dict of Choice, Predicate and Score, not {type(questions).__name__}")
    if not questions:
        raise ArgumentError("questions: none given")
    _check_named(options, questions)
    prepared = {}
    for name, question in questions.items():
        if not isinstance(name, str):
            raise ArgumentError(f"questions: a name must be str, not {type(name).__name__}")
        if not isinstance(question, (Choice, Predicate, Score)):
            kind = type(question).__name__
            raise ArgumentError(f"questions[{name!r}] must be a Choice, Predicate or Score, not {kind}")
        with naming(name):
            prepared[name] = prepare(question, options.of(name), llm)
    _check_orders(options, prepared)
    return prepared


def _check_orders(options: DecideOptions, prepared: _Prepared) -> None:
    turned = (one for one in prepared.values() if isinstance(one, PreparedQuestion) and len(one.views) > len(one.forms))
    if options.orders > 1 and not any(turned):
        raise ArgumentError("orders: has no effect, as no form here lists the options")


def _check_named(options: DecideOptions, names: Container[object]) -> None:
    if isinstance(options.examples, Mapping):
        for name in options.examples:
            if name not in names:
                raise ArgumentError(f"examples[{name!r}]: there is no question of that name")


def decide_after(stream: Stream, state: str | None, questions: object, options: DecideOptions) -> Any:
    """Answer questions about a stream's text, or about a state after it; errors as of `StreamHandle.decide`."""
    prepared = prepare_all(questions, options)
    refuse_batch(options.calibration)

    def plan(model: Model, before: list[int]) -> Plan[Any]:
        answers = yield from decide_plan(model, prepared, partial(_tokens_after_text, model, before, state))
        yield [Keep(before)]
        return _alone_or_named(answers)

    if not options.reproducible:
        return run_after(stream, plan)
    if stream.llm is None:
        raise ArgumentError("reproducible: for handles on a Llama, and this one is on a file")
    return run(stream.llm, stream.tokens, plan, reproducible=True)


def _tokens_after_text(
    model: Model, before: list[int], state: str | None, view: FormView, *, is_prior: bool
) -> list[int]:
    """Return the tokens of a question about a text, or about a state after it."""
    if view.form.chat:
        raise ArgumentError("form: chat=True makes messages, which cannot follow the text of a handle")
    if not begins_with_state(view.form):
        raise ArgumentError("form: the question is before the state, and the text of the handle is there already")
    if view.shots:
        raise ArgumentError("examples: come before a state, and the handle's text is there already")
    shown = view.form.absent if is_prior else state
    question = RenderedQuestion(view.form.template, shown, view.instructions, view.listed)
    if not is_prior or state is not None:
        return _tokens_after(model, before, question)
    if model.llm is not None:  # the text is the state, and is left out
        return model.tokenize(question)
    return [first_token(model.vocab), *_spelled(model.vocab, question, b"")]


def _tokens_after(model: Model, before: list[int], question: RenderedQuestion) -> list[int]:
    """Return the tokens of a text with a question after it."""
    llm = model.llm
    if llm is None:
        n_kept, more = join_after(model.vocab, before, partial(_spelled, model.vocab, question))
        return before[:n_kept] + more
    check_length(llm, question.encode(), model.n_ctx)
    rendered = question.render(llm)

    def tokenize(lead: bytes) -> list[int]:
        whole = rendered.preceded_by(llm, lead.decode(errors="surrogateescape"))
        return tokens_of(llm, whole, lambda text: llm.tokenize(text, add_bos=False, special=True))

    n_kept, more = join_after(model.vocab, before, tokenize)
    return before[:n_kept] + more


def _spelled(vocab: _core.Vocab, question: RenderedQuestion, lead: bytes) -> list[int]:
    """Return the tokens of a question for a model without a Llama; names of control tokens in it stay plain text."""
    controls = (text for _, text in vocab.control_texts() if len(text) > 1)
    if any(text.decode(errors="ignore") in question.template for text in controls):
        raise ArgumentError("form: its template names control tokens, for which the handle is to be on a Llama")
    return tokenize_text(vocab, lead + question.encode(), "question", begins=False, special=False)


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
    prepared = prepare_all(questions, read, llm)
    many = Many(llm, states, "state", "decide", progress, n_parallel, n_ctx, on_error, reproducible=read.reproducible)
    if read.calibration != "batch":
        return many.run(partial(_plan, prepared))
    if read.reproducible:
        raise ArgumentError("calibration: 'batch' decides by windows of states, without reproducible")
    scored = {name: one for name, one in prepared.items() if isinstance(one, PreparedQuestion)}
    assert len(scored) == len(prepared)  # because sets refuse this calibration
    return Results(many, lambda batch: _by_mean(many.found(batch, partial(_scores_plan, scored)), scored))


def _scores_plan(
    questions: Mapping[str | None, PreparedQuestion], model: Model, state: object
) -> Plan[tuple[int, dict[str | None, list[Scored]]]]:
    """Plan the scores of the questions about a state, with the hash of the state."""
    text = state_text(state)
    tokens_of = about(model, text)

    def scored(name: str | None, question: PreparedQuestion) -> Plan[list[Scored]]:
        with naming(name):
            return (yield from question.scored(model, tokens_of))[0]

    found = yield from together(scored(name, question) for name, question in questions.items())
    return hash(text), dict(zip(questions, found, strict=True))


def _by_mean(
    results: Iterator[tuple[int, Any]], questions: Mapping[str | None, PreparedQuestion]
) -> Iterator[tuple[int, Any]]:
    """Answer in windows of states; the prior is the mean over all different states so far."""
    means = {name: [Mean()] * len(one.views) for name, one in questions.items()}
    seen = LruCache[bool](MAX_SEEN, MAX_SEEN)
    for window in windows(results, BATCH_ROWS):
        for _, row in window:
            if isinstance(row, TokenTrieError) or not seen.is_new(row[0], True):
                continue
            for name, of_views in row[1].items():
                for i, one in enumerate(of_views):
                    if np.isfinite(one.logprobs).all():
                        means[name][i] = means[name][i].with_rows(one.logprobs[None])
        priors = {name: _priors_of(of_views) for name, of_views in means.items()}
        for position, row in window:
            yield (
                position,
                row
                if isinstance(row, TokenTrieError)
                else _alone_or_named({name: one.answer(row[1][name], priors[name]) for name, one in questions.items()}),
            )


def _priors_of(means: Sequence[Mean]) -> list[Scored]:
    """Return the means of a question's views as priors; none if one of them has too few states."""
    values = [value for mean in means if (value := mean.prior) is not None]
    return [Scored(value, np.ones_like(value)) for value in values] if len(values) == len(means) else []
