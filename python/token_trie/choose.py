"""`choose`: one answer out of a set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import llama_cpp
import numpy as np
import numpy.typing as npt

from token_trie._native import Llama, _core
from token_trie.constrain import WALKING, Mode, constrain
from token_trie.errors import ArgumentError
from token_trie.prompt import Prompt, fit_choices, tokenize_prompt
from token_trie.trie import TokenTrie


@dataclass(frozen=True)
class Stats:
    """What one decision took."""

    n_prompt: int
    """Tokens of the prompt."""
    n_branches: int
    """Tokens chosen among two or more."""
    n_forced: int
    """Tokens that the set left no choice about."""
    n_passes: int
    """Forward passes of the model after the prompt's."""
    prompt_ms: float
    """Time to the first token, most of it for the prompt."""
    decide_ms: float
    """Time from there to the last."""


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
        Natural logarithm of the product, over the branch points passed, of the model's probability for the token taken,
        renormalized over the allowed tokens. Temperature and top_p are left out of it. 0 for a single choice.
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

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. What it has evaluated of the prompt already is not evaluated again.
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
    ArgumentError, VocabularyError
        For choices, prompts or options that fit neither each other nor the model.
    BusyError
        The model is constrained already.
    """
    if not 0 < temperature < float("inf"):
        raise ArgumentError(f"temperature: {temperature} is not above 0; for the best answer use mode='greedy'")
    if not 0 < top_p <= 1:
        raise ArgumentError(f"top_p: {top_p} is not in (0, 1]")
    if seed is not None and not 0 <= seed < 2**32:
        raise ArgumentError(f"seed: {seed} is not in [0, 2**32)")
    if isinstance(choices, TokenTrie):
        trie, prompt_tokens = choices, tokenize_prompt(llm, prompt)
    else:
        fitted = fit_choices(llm, prompt, choices, leading_space=leading_space)
        trie, prompt_tokens = TokenTrie._from_fitted(llm, choices, fitted), fitted.prompt[: fitted.n_kept]
    _check_room(llm, len(prompt_tokens), trie)
    options = {"temp": temperature, "top_p": top_p} if mode == "sampled" else {"temp": 0.0}
    with constrain(llm, trie, mode) as constraint:
        decision = _decide(llm, trie, constraint.new_cursor(), prompt_tokens, options, seed)
    if trie is not choices:
        # Equal choices are one leaf.
        decision = replace(decision, index=list(choices).index(decision.value))
    return decision


def _decide(
    llm: Llama,
    trie: TokenTrie,
    cursor: _core.Cursor,
    prompt: list[int],
    options: dict[str, float],
    seed: int | None,
) -> Decision:
    chosen: list[int] = []
    logprob = 0.0
    n_branches = n_forced = 0
    saved = llm._seed, llm.draft_model
    started = first = time.perf_counter()
    # Tokens drafted ahead would move the logits that are read here.
    llm.draft_model = None
    llm.set_seed(llama_cpp.LLAMA_DEFAULT_SEED if seed is None else seed)
    tokens = llm.generate(prompt, top_k=0, min_p=0.0, repeat_penalty=1.0, **options)
    try:
        for token in tokens:
            allowed = cursor.allowed()
            assert allowed is not None
            if len(allowed) > 1:
                n_branches += 1
                logprob += _log_share(llm, allowed, token)
            else:
                n_forced += 1
            leaf = cursor.leaf
            cursor.accept(token)
            if cursor.state != WALKING:
                break
            chosen.append(token)
            if len(chosen) == 1:
                first = time.perf_counter()
            leaf = cursor.leaf
            if leaf is not None and len(trie.children(chosen)) == 0:
                break
    finally:
        tokens.close()
        llm._seed, llm.draft_model = saved
    ended = time.perf_counter()
    assert leaf is not None
    stats = Stats(
        n_prompt=len(prompt),
        n_branches=n_branches,
        n_forced=n_forced,
        n_passes=n_branches + n_forced - 1,
        prompt_ms=(first - started) * 1e3,
        decide_ms=(ended - first) * 1e3,
    )
    return Decision(trie[leaf].name, leaf, tuple(chosen), logprob, stats)


def _log_share(llm: Llama, allowed: npt.NDArray[np.int32], token: int) -> float:
    """Natural-log probability of a token among the allowed ones, by the logits of the last pass."""
    row = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
    logits = np.ctypeslib.as_array(row, shape=(llm.n_vocab(),))
    shares = logits[allowed].astype(np.float64)
    best = shares.max()
    return float(logits[token] - best - np.log(np.exp(shares - best).sum()))


def _check_room(llm: Llama, n_prompt: int, trie: TokenTrie) -> None:
    if llm.context_params.embeddings:
        raise ArgumentError("llm: made with embedding=True, which gives no logits to choose by")
    if n_prompt + trie.max_tokens > llm.n_ctx():
        raise ArgumentError(
            f"prompt: {n_prompt} tokens and an answer of up to {trie.max_tokens} do not fit the context of "
            f"{llm.n_ctx()} tokens; make the Llama with a larger n_ctx"
        )
