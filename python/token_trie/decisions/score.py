"""`score`: the probability of every answer, in a few batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.decisions.native_scores import End, check_scorable, score_leaves
from token_trie.errors import ArgumentError
from token_trie.llama.chooser import check_room, chooser, fit_set, room_of
from token_trie.llama.stream import StreamHandle
from token_trie.native.core import Llama
from token_trie.native.lease import lease
from token_trie.sets.prompt import Prompt, tokenize_prompt
from token_trie.sets.trie import TokenTrie

Normalize: TypeAlias = Literal["tokens", "prior"]


def score(
    target: Llama | StreamHandle,
    prompt: Prompt | None,
    choices: TokenTrie | Sequence[str],
    *,
    end: End = "any",
    branches: bool = False,
    normalize: Normalize | None = None,
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
    choices : TokenTrie or sequence of str
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
    handle_given = isinstance(target, StreamHandle)
    if prompt is None and not handle_given:
        raise ArgumentError("prompt: None where text, token ids or chat messages belong")
    llm = target._llm if isinstance(target, StreamHandle) else target
    if isinstance(choices, TokenTrie):
        trie = choices
        tokens = None if prompt is None else _tokenize(target, prompt)
    elif llm is None:
        raise ArgumentError("choices: a handle on a file takes a TokenTrie")
    elif prompt is None:
        raise ArgumentError("choices: texts need the prompt that they follow; or give a TokenTrie")
    else:
        with lease(llm):
            trie, tokens = fit_set(llm, prompt, choices, leading_space, None if handle_given else room_of(llm))

    check_scorable(trie)

    def on(handle: StreamHandle, prefix: Sequence[int] | None) -> npt.NDArray[np.float64]:
        scores = score_leaves(handle, trie, end=end, branches=branches, prefix=prefix).leaves
        if normalize == "prior":
            beginning = [handle._beginning()]
            scores = scores - score_leaves(handle, trie, end=end, branches=branches, prefix=beginning).leaves
        return scores

    if isinstance(target, StreamHandle):
        scores = on(target, tokens)
    else:
        assert tokens is not None
        with lease(target):
            check_room(target, tokens, trie)
        with chooser(target) as handle:
            handle._hold(trie)
            handle.prefill(tokens)
            scores = on(handle, None)
    if normalize == "tokens":
        scores = scores / np.diff(trie._handle.arrays()[1])
    if trie is not choices and len(trie) < len(choices):
        # Equal ones are one leaf.
        leaf_of = {name: i for i, name in enumerate(trie.names)}
        leaf_of |= dict(trie._handle.aliases)
        scores = scores[[leaf_of[str(choice)] for choice in choices]]
    return scores


def _tokenize(target: Llama | StreamHandle, prompt: Prompt) -> list[int]:
    if isinstance(target, StreamHandle):
        return target._tokenize_prompt(prompt)
    with lease(target):
        return tokenize_prompt(target, prompt, room_of(target))
