"""`choose_many` and `score_many`: many prompts at once, in one context."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.decisions.answers import Answers, ask
from token_trie.decisions.batched import Question, read_choice
from token_trie.decisions.choose import choose
from token_trie.decisions.crowd import Asker, Crowd, paired
from token_trie.decisions.decision import Decision
from token_trie.decisions.how import MAX_NODES, How, Mode, read_options
from token_trie.decisions.native_scores import ENDS, End, check_scorable
from token_trie.decisions.run import Run
from token_trie.decisions.score import score
from token_trie.decisions.think import Think
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.batch import Answer, Batch
from token_trie.llama.chooser import room_of
from token_trie.llama.sequential import Sequential
from token_trie.native.arguments import check_counts, check_flags, lookup
from token_trie.native.core import Llama
from token_trie.native.ffi import lib
from token_trie.progress import Progress
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.spelling import Tokenization

OnError: TypeAlias = Literal["raise", "return"]


def choose_many(
    llm: Llama,
    prompts: Iterable[Prompt],
    choices: ChoicesLike = None,
    *,
    sets: Iterable[ChoicesLike] | None = None,
    mode: Mode | None = None,
    probabilities: bool = False,
    calibrate: None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int | None = None,
    end: End = "longest",
    n_best: int = 1,
    beam_width: int = 16,
    max_nodes: int | None = MAX_NODES,
    timeout: float | None = None,
    leading_space: bool | None = None,
    tokenization: Tokenization = "canonical",
    heal: bool = False,
    think: Think | None = None,
    as_ready: bool = False,
    on_error: OnError = "raise",
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
) -> Iterator[Any]:
    """Let the model answer many prompts, each with one of a set, as `choose` answers one.

    The prompts go through a context of their own together: what some of them begin with is evaluated once, the rest in
    full batches. They are read as there is room for them, and decisions are handed out lazily, so that a generator of
    millions takes no more memory than one of hundreds.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. Its own context is not touched, and it may be used meanwhile.
    prompts : iterable of prompts
        Each as of `choose`.
    choices
        The answers, as of `choose`, for all prompts; one-shot iterables are read once.
    sets : iterable of choices
        In place of choices: those of each prompt.
    mode, probabilities, temperature, top_p, seed, end, n_best, beam_width, max_nodes
    timeout, leading_space, tokenization, heal, think
        As of `choose`; a seed is each prompt's, and so is a timeout, which begins with its search. What prompts think
        goes through the context together, too.
    calibrate : None
        `choose` calibrates, one prompt at a time.
    as_ready : bool
        Whether to hand out pairs (place, decision) as they are ready, in place of decisions in order.
    on_error : {"raise", "return"}
        What becomes of a prompt that cannot be answered: its error, which names its place, is raised, which ends the
        iteration, or handed out in place of a decision, and the others go on.
    progress : bool
        Whether to show on standard error how far it is, with the rate and, if prompts have a length, the time left: a
        bar on a terminal, and elsewhere a line every ten seconds.
    n_parallel : int, optional
        Sequences at most, at least 2; by default as many as do well with the model.
    n_ctx : int, optional
        Tokens of the context, which all prompts under way share; by default as many as the Llama's. Its memory is taken
        when the first decision is asked for.

    Yields
    ------
    Decision
        What `choose` would decide, up to llama.cpp's rounding, which depends on the size of a batch. Of its stats,
        times are of the prompt among others, and passes are shared with them.

    Raises
    ------
    ArgumentError
        At once: options that do not fit each other or the choices.
    ArgumentError, VocabularyError, ContextError
        Of a prompt, with its place.
    CancelledError
        The Llama was closed meanwhile.

    Notes
    -----
    Whatever the prompts themselves raise is raised behind the decisions about those before. An interrupt, and closing
    the iterator, ends what is under way within a pass and leaves the Llama usable. Recurrent and hybrid models, whose
    sequences cannot share cells, answer one prompt after the other.
    """
    _refuse_calibrate(calibrate)
    options: dict[str, Any] = {
        "mode": mode,
        "probabilities": probabilities,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "end": end,
        "n_best": n_best,
        "beam_width": beam_width,
        "max_nodes": max_nodes,
        "timeout": timeout,
        "leading_space": leading_space,
        "tokenization": tokenization,
        "heal": heal,
        "think": think,
    }
    asker: Asker[Decision[Any]]
    if sets is None:
        read, how = read_options(choices, **options)
        asker = _Choosing(llm, how, options)
        asked: Iterable[tuple[Prompt, ChoicesLike]] = zip(prompts, itertools.repeat(read))
    elif choices is not None:
        raise ArgumentError("choices and sets: one of the two")
    else:
        asker = _Choosing(llm, None, options)
        asked = paired(prompts, sets)
    return _run(asker, asked, prompts, as_ready, on_error, progress, n_parallel, n_ctx)


def _refuse_calibrate(calibrate: object) -> None:
    if calibrate is not None:
        raise ArgumentError(
            "calibrate: choose and score take it, for one prompt; of many prompts none is, so call these for each"
        )


def score_many(
    llm: Llama,
    prompts: Iterable[Prompt],
    choices: ChoicesLike,
    *,
    end: End = "any",
    branches: bool = False,
    calibrate: None = None,
    leading_space: bool | None = None,
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
) -> npt.NDArray[np.float64]:
    """Score every answer behind each of many prompts, as `score` does behind one.

    Parameters
    ----------
    llm, prompts, progress, n_parallel, n_ctx
        As of `choose_many`.
    choices, end, branches, leading_space
        As of `score`.
    calibrate : None
        `score` calibrates, one prompt at a time.

    Returns
    -------
    ndarray of float64, shape (n_prompts, n_choices)
        Natural logarithms, in the order of the prompts and of the choices; of a `TokenTrie`, of its leaves.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        Of a prompt, with its place.
    """
    _refuse_calibrate(calibrate)
    lookup(end, ENDS, "end")
    check_flags(branches=branches)
    read, _ = read_options(choices, end=end, leading_space=leading_space, mode="exact")
    asker = _Scoring(llm, end, branches, leading_space)
    rows = list(_run(asker, zip(prompts, itertools.repeat(read)), prompts, False, "raise", progress, n_parallel, n_ctx))
    return np.stack(rows) if rows else np.empty((0, len(read)))


async def achoose_many(
    llm: Llama, prompts: Iterable[Prompt], choices: ChoicesLike = None, **options: Any
) -> AsyncIterator[Any]:
    """Do as `choose_many` does, on a worker thread.

    A task that is cancelled ends it within a pass, and waits for no prompt that is still to come.
    """
    decisions = choose_many(llm, prompts, choices, **options)
    assert isinstance(decisions, Run)
    nothing = object()
    try:
        while (
            decision := await in_worker(lambda: next(decisions, nothing), lambda _: decisions.interrupt())
        ) is not nothing:
            yield decision
    finally:
        decisions.close()


class _Choosing(Asker[Decision[Any]]):
    def __init__(self, llm: Llama, how: How | None, options: dict[str, Any]) -> None:
        self.llm = llm
        self._how = how  # None: another for each set
        self._options = options

    def ask(self, prompt: Prompt, choices: ChoicesLike, room: int) -> Question[Decision[Any]]:
        how = self._how
        if how is None:
            choices, how = read_options(choices, **self._options)
        return read_choice(self.llm, prompt, choices, how, room)

    def alone(self, prompt: Prompt, choices: ChoicesLike) -> Callable[[], Decision[Any]]:
        if self._how is None:
            choices, _ = read_options(choices, **self._options)
        return lambda: choose(self.llm, prompt, choices, **self._options)


@dataclass(frozen=True)
class _Scores(Question[npt.NDArray[np.float64]]):
    tokens: list[int]
    answers: Answers[Any]
    end: End
    branches: bool

    n_tokens = 1

    @property
    def n_members(self) -> int:
        return len(self.answers.trie)

    def submit(self, batch: Batch) -> int:
        return batch.submit(
            self.answers.trie,
            self.tokens,
            mode=lib.TOKEN_TRIE_BATCH_SCORES,
            leaf_end=ENDS[self.end],
            branches=int(self.branches),
        )

    def read(self, answer: Answer) -> npt.NDArray[np.float64]:
        return self.answers.aligned(answer.logprobs)


class _Scoring(Asker[npt.NDArray[np.float64]]):
    def __init__(self, llm: Llama, end: End, branches: bool, leading_space: bool | None) -> None:
        self.llm = llm
        self._end = end
        self._branches = branches
        self._leading_space = leading_space

    def ask(self, prompt: Prompt, choices: ChoicesLike, room: int) -> Question[npt.NDArray[np.float64]]:
        tokens, answers = ask(self.llm, prompt, choices, room=room, leading_space=self._leading_space)
        check_scorable(answers.trie)
        return _Scores(tokens, answers, self._end, self._branches)

    def alone(self, prompt: Prompt, choices: ChoicesLike) -> Callable[[], npt.NDArray[np.float64]]:
        how: Any = {"end": self._end, "branches": self._branches, "leading_space": self._leading_space}
        return lambda: score(self.llm, prompt, choices, **how)


def _run(
    asker: Asker[Any],
    asked: Iterable[tuple[Prompt, ChoicesLike]],
    prompts: Iterable[Prompt],
    as_ready: bool,
    on_error: OnError,
    progress: bool,
    n_parallel: int | None,
    n_ctx: int | None,
) -> Run:
    check_flags(as_ready=as_ready, progress=progress)
    lookup(on_error, {"raise": 0, "return": 1}, "on_error")
    if n_parallel is not None:
        check_counts(2, n_parallel=n_parallel)
    if isinstance(prompts, (str, bytes)):
        raise ArgumentError("prompts: a text where several belong; for one prompt there is choose")
    room_of(asker.llm)
    total = len(prompts) if isinstance(prompts, Sized) else None

    def results(batch: Batch | Sequential) -> Generator[Any, None, None]:
        with Progress(total, "prompts", wanted=progress) as shown:
            for n, (place, result) in enumerate(Crowd(asker, batch, asked).results(in_order=not as_ready), 1):
                shown.move(n)
                if isinstance(result, TokenTrieError) and on_error == "raise":
                    raise result
                yield (place, result) if as_ready else result

    return Run(asker.llm, n_parallel or 0, n_ctx, results)
