"""`choose`: one answer out of a set."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from token_trie._native import Llama
from token_trie.constrain import MODES, Mode, lookup
from token_trie.errors import ArgumentError, BusyError, ContextError, InternalError
from token_trie.prompt import Prompt, fit_choices, tokenize_prompt
from token_trie.stream import StreamHandle
from token_trie.trie import TokenTrie


@dataclass(frozen=True)
class Stats:
    """What one decision took."""

    n_prompt: int
    """Tokens of the prompt."""
    n_branches: int
    """Branch points passed: where two or more tokens were allowed."""
    n_forced: int
    """Tokens that the set left no choice about."""
    n_passes: int
    """Forward passes of the model after the prompt's."""
    prompt_ms: float
    """Time to evaluate what the context did not hold of the prompt."""
    decide_ms: float
    """Time from there to the last token."""


@dataclass(frozen=True)
class Decision:
    """One answer.

    Attributes
    ----------
    value : str
        The choice, just as it was given; of a `TokenTrie`, the leaf's name.
    index : int
        Its position among the choices; of a `TokenTrie`, the leaf's.
    tokens : tuple of int
        Its tokens.
    logprob : float
        Natural logarithm of the product, over the branch points passed, of the model's probability for what was taken,
        renormalized over what was allowed. Temperature and top_p are left out of it. 0 for a single choice.
    stats : Stats
        What it took.
    """

    value: str
    index: int
    tokens: tuple[int, ...]
    logprob: float
    stats: Stats

    def __str__(self) -> str:
        return self.value


def choose(
    llm: Llama,
    prompt: Prompt,
    choices: Sequence[str] | TokenTrie,
    *,
    mode: Mode = "greedy",
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int | None = None,
    leading_space: bool | None = None,
) -> Decision:
    """Let the model answer a prompt with one of a set.

    The work is done by a `StreamHandle` that is made for the model on the first call and kept as long as the model is:
    the model's own context is not touched, and what a prompt shares with the one before is not evaluated again.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    prompt : str, sequence of int, or sequence of chat messages
        Text is tokenized as `Llama.create_completion` does, messages go through the model's chat template.
    choices : sequence of str, or TokenTrie
        The answers. Texts are tokenized as they follow this very prompt. A trie's sequences follow it as they are.
    mode : {"greedy", "sampled"}
        The best token at each branch point, or one drawn at random.
    temperature, top_p : float
        For sampled mode, as everywhere in llama.cpp; temperature above 0, top_p in (0, 1].
    seed : int, optional
        For sampled mode: the same seed draws the same answer.
    leading_space : bool, optional
        As for `TokenTrie.from_choices`.

    Returns
    -------
    Decision

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        For choices, prompts or options that fit neither each other nor the model.
    BusyError
        Another thread is choosing with this model.
    """
    lookup(mode, MODES, "mode")
    if prompt is None:
        raise ArgumentError("prompt: None where text, token ids or chat messages belong")
    _check_numbers(temperature=temperature, top_p=top_p)
    if not 0 < temperature < float("inf"):
        raise ArgumentError(f"temperature: {temperature} is not above 0; for the best answer use mode='greedy'")
    if not 0 < top_p <= 1:
        raise ArgumentError(f"top_p: {top_p} is not in (0, 1]")
    if isinstance(choices, TokenTrie):
        trie, prompt_tokens = choices, tokenize_prompt(llm, prompt)
    else:
        fitted = fit_choices(llm, prompt, choices, leading_space=leading_space)
        trie, prompt_tokens = TokenTrie._from_fitted(llm, choices, fitted), fitted.prompt[: fitted.n_kept]
    if len(prompt_tokens) + trie.max_tokens > llm.n_ctx():
        raise ContextError(
            f"prompt: {len(prompt_tokens)} tokens and an answer of up to {trie.max_tokens} do not fit the context of "
            f"{llm.n_ctx()} tokens; make the Llama with a larger n_ctx"
        )
    chooser = _chooser(llm)
    if not chooser.lock.acquire(blocking=False):
        raise BusyError("another thread is choosing with this Llama; use one Llama a thread")
    try:
        chooser.handle.set_seed(_ANY_SEED if seed is None else seed)
        decision = _decide(chooser.handle, trie, prompt_tokens, mode, temperature, top_p)
    finally:
        chooser.lock.release()
    if trie is not choices:
        # Equal choices are one leaf.
        decision = replace(decision, index=list(choices).index(decision.value))
    return decision


_ANY_SEED = 0xFFFFFFFF


def _decide(
    handle: StreamHandle, trie: TokenTrie, prompt: list[int], mode: Mode, temperature: float, top_p: float
) -> Decision:
    handle.set_token_trie(trie, mode)
    started = time.perf_counter()
    handle.prefill(prompt)
    before = handle.state
    evaluated = time.perf_counter()
    steps = list(handle.generate(temperature=temperature, top_p=top_p))
    ended = time.perf_counter()
    after = handle.state
    if after.leaf is None:
        raise InternalError(f"the decision ended as {after} without an answer")
    stats = Stats(
        n_prompt=len(prompt),
        n_branches=after.n_branches - before.n_branches,
        n_forced=after.n_forced - before.n_forced,
        n_passes=after.n_passes - before.n_passes,
        prompt_ms=(evaluated - started) * 1e3,
        decide_ms=(ended - evaluated) * 1e3,
    )
    tokens = tuple(step.token for step in steps)
    return Decision(trie[after.leaf].name, after.leaf, tokens, after.logprob, stats)


def _check_numbers(**options: float) -> None:
    for name, value in options.items():
        if not isinstance(value, (int, float)):
            raise ArgumentError(f"{name}: {type(value).__name__} where a number belongs")


@dataclass(frozen=True)
class _Chooser:
    handle: StreamHandle
    lock: threading.Lock


_making = threading.Lock()


def _chooser(llm: Llama) -> _Chooser:
    # Kept in the model itself, so that the two are freed together.
    with _making:
        if not hasattr(llm, "_token_trie_chooser"):
            llm._token_trie_chooser = _Chooser(StreamHandle(llm), threading.Lock())
        chooser: _Chooser = llm._token_trie_chooser
        return chooser
