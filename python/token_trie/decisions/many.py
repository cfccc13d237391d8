"""`choose_many` and `score_many`: decisions for many prompts in one context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from token_trie.arrays import Floats
from token_trie.decisions.calibration import BATCH_ROWS, Mean, refuse_batch
from token_trie.decisions.choose import ChoiceRequest, ScoreRequest, Undecided
from token_trie.decisions.decision import Decision
from token_trie.decisions.options import ChooseOptions, ScoreOptions
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.query import Plan
from token_trie.native.core import Llama
from token_trie.native.lifetime import MAX_SEEN, LruCache
from token_trie.native.options import takes
from token_trie.plan import Many, Model, OnError, Results, windows
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import ChooseKeywords, ScoreKeywords


def decided_by_mean(
    results: Iterator[tuple[int, Undecided | TokenTrieError]],
) -> Iterator[tuple[int, Decision[Any] | TokenTrieError]]:
    """Decide rows of one set, window by window, by the mean over all different rows so far.

    Errors are passed on at their positions.
    """
    mean, seen = Mean(np.logaddexp), LruCache[bool](MAX_SEEN, MAX_SEEN)
    for window in windows(results, BATCH_ROWS):
        rows = [one for _, one in window if isinstance(one, Undecided)]
        if new := [one.log_shares for one in rows if seen.is_new(hash(tuple(one.bound.tokens)), True)]:
            mean = mean.with_rows(np.array(new))
        for position, one in window:
            yield position, one.decide(mean.prior) if isinstance(one, Undecided) else one


@takes(ChooseOptions)
def choose_many(
    llm: Llama,
    prompts: Iterable[Prompt],
    choices: ChoicesLike = None,
    *,
    sets: Iterable[ChoicesLike] | None = None,
    as_ready: bool = False,
    on_error: OnError = "raise",
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
    **options: Unpack[ChooseKeywords],
) -> Iterator[Any]:
    """Let the model answer many prompts with one choice each, as `choose` does for one prompt.

    All prompts share one context, which is not the model's own. A beginning that several prompts share is evaluated
    once, the rest in full batches. Prompts are read only when there is space for them, and decisions are yielded as the
    caller asks for them. So a generator of millions of prompts takes no more memory than one of hundreds.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. Its own context is not touched, and it may be used meanwhile.
    prompts : iterable of prompts
        Each as for `choose`.
    choices
        The choices for all prompts, as for `choose`; an iterator is read once.
    sets : iterable of choices
        Instead of `choices`: the choices for each prompt.
    as_ready : bool
        Whether to yield pairs (position, decision) as soon as they are ready, instead of decisions in order.
    on_error : {"raise", "return"}
        What happens if a prompt cannot be answered. "raise" raises the error, which names the prompt's position, and
        ends the iteration. "return" yields the error instead of a decision, and continues with the other prompts.
    progress : bool
        Whether to show on standard error how many prompts are done, and how many tokens are read and written: a bar on
        a terminal, and elsewhere a line every ten seconds. If prompts have a length, the time left is shown, and before
        the first is done, how long it is at least.
    n_parallel : int, optional
        Largest number of sequences in the context, at least 2; by default a number that suits the model.
    n_ctx : int, optional
        Tokens of the context, which all current prompts share; by default as many as in the Llama's context. Its memory
        is allocated when the first decision is requested.

    Yields
    ------
    Decision
        The decision of `choose`, up to llama.cpp's rounding, which depends on the size of a batch. In its stats, times
        include the work for other prompts, and passes are shared with them.

    Raises
    ------
    ArgumentError
        At once: options that do not fit each other or the choices.
    ArgumentError, VocabularyError, ContextError
        Of a prompt, with its position.
    CancelledError
        The Llama was closed meanwhile.

    Notes
    -----
    If the iterable of prompts raises an error, the decisions for the prompts before it are yielded first. Ctrl-C, and
    closing the iterator, end the work within one pass; the Llama can still be used.
    """
    read = ChooseOptions.read("choose_many", options)
    if sets is not None and choices is not None:
        raise ArgumentError("choices and sets: one of the two")
    many = Many(llm, prompts, "prompt", "choose", progress, n_parallel, n_ctx, on_error, as_ready)
    if read.calibration == "batch":
        if sets is not None:
            raise ArgumentError("calibration: 'batch' is taken over one set, and sets gives each prompt its own")
        undecided = ChoiceRequest.read(choices, read).undecided()
        return Results(many, lambda batch: decided_by_mean(many.found(batch, undecided.scored)))
    if sets is None:
        return many.run(ChoiceRequest.read(choices, read).plan)

    def plan(model: Model, row: tuple[Prompt, ChoicesLike]) -> Plan[Decision[Any]]:
        return ChoiceRequest.read(row[1], read).plan(model, row[0])

    return many.run(plan, _paired(prompts, sets))


def _paired(prompts: Iterable[Prompt], sets: Iterable[ChoicesLike]) -> Iterator[tuple[Prompt, ChoicesLike]]:
    """Pair prompts with their sets, lazily; ArgumentError if there are more of one than of the other."""
    if isinstance(prompts, Sized) and isinstance(sets, Sized) and len(prompts) != len(sets):
        raise ArgumentError(f"sets: {len(sets):,}, where there are {len(prompts):,} prompts")
    return _pair(prompts, iter(sets))


def _pair(prompts: Iterable[Prompt], sets: Iterator[ChoicesLike]) -> Iterator[tuple[Prompt, ChoicesLike]]:
    n, none = 0, object()
    for n, prompt in enumerate(prompts, 1):
        choices = next(sets, none)
        if choices is none:
            raise ArgumentError(f"sets: {n - 1:,}, where there are at least {n:,} prompts")
        yield prompt, choices
    if next(sets, none) is not none:
        raise ArgumentError(f"sets: at least {n + 1:,}, where there are {n:,} prompts")


@takes(ScoreOptions)
def score_many(
    llm: Llama,
    prompts: Iterable[Prompt],
    choices: ChoicesLike,
    *,
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
    **options: Unpack[ScoreKeywords],
) -> Floats:
    """Score every choice after each of many prompts, as `score` does after one prompt.

    Parameters
    ----------
    llm, prompts, progress, n_parallel, n_ctx
        As of `choose_many`.
    choices
        The answers, as of `score`, for all prompts.
    **options
        Those of `score`, except the normalization "prior", which works for one prompt at a time.

    Returns
    -------
    ndarray of float64, shape (n_prompts, n_choices)
        Natural logarithms, in the order of the prompts and of the choices; of a `TokenTrie`, of its leaves.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        Of a prompt, with its position.
    """
    read = ScoreOptions.read("score_many", options)
    refuse_batch(read.calibration)
    if read.normalize == "prior":
        raise ArgumentError("normalize: 'prior' is for score, which scores one prompt, and the text's begin besides")
    request = ScoreRequest.read(choices, read)
    many = Many(llm, prompts, "prompt", "score", progress, n_parallel, n_ctx)
    rows = list(many.run(request.plan))
    return np.stack(rows) if rows else np.empty((0, request.n_choices))
