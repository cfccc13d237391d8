"""`score`: the probability of every answer, in a few batches."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.decisions.answers import Answers, ask
from token_trie.decisions.calibration import prior
from token_trie.decisions.native_scores import ENDS, End, check_scorable, score_leaves
from token_trie.errors import ArgumentError
from token_trie.llama.chooser import check_room, chooser, room_of
from token_trie.llama.stream import StreamHandle
from token_trie.native.arguments import check_flags, lookup
from token_trie.native.core import Llama
from token_trie.native.lease import lease
from token_trie.sets.choices import Choices, ChoicesLike, read_choices
from token_trie.sets.prompt import Prompt, first_token
from token_trie.sets.trie import TokenTrie

Normalize: TypeAlias = Literal["tokens", "prior"]


def score(
    target: Llama | StreamHandle,
    prompt: Prompt | None,
    choices: ChoicesLike,
    *,
    end: End = "any",
    branches: bool = False,
    normalize: Normalize | None = None,
    calibrate: Prompt | None = None,
    leading_space: bool | None = None,
) -> npt.NDArray[np.float64]:
    """Score every answer behind a prompt.

    All answers are evaluated as one tree behind the prompt, what they share once, in as few batches as the context has
    room for.

    Parameters
    ----------
    target : llama_cpp.Llama or StreamHandle
        The model. A handle is left as it is: its sequence, its cache, its trie.
    prompt : str, sequence of int, sequence of chat messages, or None
        What the answers follow; None for a handle's own sequence. A handle evaluates a prompt beside its sequence and
        drops it again, whereas of a Llama's prompts what the last two share is not evaluated again.
    choices : TokenTrie, or choices as for `choose`
        The answers. Texts are tokenized as they follow this very prompt, by a Llama.
    end : {"any", "longest", "follow"}
        What a score has beside the probability of the tokens: nothing; that no token comes next by which a longer
        answer of the set goes on, so that answers exclude each other; that an end-of-generation token follows.
    branches : bool
        Whether to take, instead of the model's own probabilities, those renormalized over what the set allows, at
        branch points alone. This is the probability that a walk in sampled mode takes, ends included, and cheaper. It
        favours answers with an improbable beginning that leaves no choice afterwards; the README has how far the two
        distributions are apart.
    normalize : {"tokens", "prior"}, optional
        "tokens": divided by the number of tokens. "prior": less the score behind the token that begins a text, so that
        what counts is how much the prompt speaks for an answer.
    calibrate : str, sequence of int, or sequence of chat messages, optional
        On a Llama: the prompt without its content, the scores behind which are subtracted; see `choose`.
    leading_space : bool, optional
        As for `TokenTrie.from_choices`.

    Returns
    -------
    ndarray of float64, shape (n_leaves,)
        Natural logarithms, in the order of the trie's leaves; for texts, in the order of the texts. Texts of equal
        tokens have one score.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError, BusyError
        As of `choose`.
    """
    if normalize is not None and (not isinstance(normalize, str) or normalize not in ("tokens", "prior")):
        raise ArgumentError(f"normalize: {normalize!r} is not 'tokens', 'prior' or None")
    lookup(end, ENDS, "end")
    check_flags(branches=branches)
    if not isinstance(choices, TokenTrie):
        choices = read_choices(choices)
    if isinstance(target, StreamHandle):
        if calibrate is not None:
            raise ArgumentError("calibrate: goes with a Llama, as the prompt is evaluated in place of another")
        with target._native.own():  # that the trie is set, and then scored
            tokens, answers = _ask_handle(target, prompt, choices, leading_space)
            check_scorable(answers.trie)
            scores = _score(target, answers, tokens, end, branches, normalize)
    else:
        if prompt is None:
            raise ArgumentError("prompt: None where text, token ids or chat messages belong")
        spaced: Any = {"leading_space": leading_space}
        with lease(target):
            tokens, answers = ask(target, prompt, choices, **spaced)
            check_scorable(answers.trie)
            check_room(room_of(target), len(tokens), answers.trie)
            empty, behind = ([], answers) if calibrate is None else ask(target, calibrate, choices, **spaced)
            check_room(room_of(target), len(empty), behind.trie)
        with chooser(target) as handle:
            taken_out = 0.0 if calibrate is None else prior(target, handle, answers, empty, behind, end)
            handle._hold(answers.trie)
            handle.prefill(tokens)
            scores = _score(handle, answers, None, end, branches, normalize) - taken_out
    if normalize == "tokens":
        scores = scores / np.diff(answers.trie._handle.arrays()[1])
    return answers.aligned(scores)


def _score(
    handle: StreamHandle,
    answers: Answers[Any],
    prefix: list[int] | None,
    end: End,
    branches: bool,
    normalize: Normalize | None,
) -> npt.NDArray[np.float64]:
    scores = score_leaves(handle, answers.trie, end=end, branches=branches, prefix=prefix).leaves
    if normalize == "prior":
        beginning = [handle._native.with_vocab(first_token)]
        scores = scores - score_leaves(handle, answers.trie, end=end, branches=branches, prefix=beginning).leaves
    return scores


def _ask_handle(
    handle: StreamHandle, prompt: Prompt | None, choices: TokenTrie | Choices[Any], leading_space: bool | None
) -> tuple[list[int] | None, Answers[Any]]:
    if isinstance(choices, TokenTrie):
        return None if prompt is None else handle._tokenize_prompt(prompt), Answers(choices)
    if handle._llm is None:
        raise ArgumentError("choices: a handle on a file takes a TokenTrie")
    if prompt is None:
        raise ArgumentError("choices: texts need the prompt that they follow; or give a TokenTrie")
    with lease(handle._llm):
        return ask(handle._llm, prompt, choices, leading_space=leading_space, room=handle._native.room)
