"""`choose`: one answer out of a set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie._chooser import check_room, chooser, fit_set, room_of
from token_trie._lease import lease
from token_trie._native import Llama
from token_trie.constrain import lookup
from token_trie.errors import ArgumentError, InternalError
from token_trie.prompt import Prompt, spell_choices
from token_trie.score import ENDS, End, Scores, check_scorable, score_leaves, search_leaves
from token_trie.stream import StreamHandle
from token_trie.trie import Tokenization, TokenTrie, check_tokenization

Mode: TypeAlias = Literal["greedy", "sampled", "exact", "aligned", "beam"]
MODES = {"greedy": 0, "sampled": 1, "exact": 2, "aligned": 3, "beam": 4}

SCORED_WHOLE = 4096
"""Nodes of a trie that `choose` scores whole in exact mode; larger ones are searched."""


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
    n_evaluated: int = 0
    """Nodes of the trie that the model was asked about, in the modes that score whole answers."""


class Candidate(NamedTuple):
    """An answer that was considered."""

    value: str
    leaf: int
    """Its index in the trie."""
    logprob: float
    """Natural logarithm of its probability."""


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
        Greedy and sampled: natural logarithm of the product, over the branch points passed, of the model's probability
        for what was taken, renormalized over what was allowed. Temperature and top_p are left out of it. 0 for a single
        choice. Exact, aligned and beam: of the model's own probability for the whole answer, which is not renormalized.
    stats : Stats
        What it took.
    candidates : tuple of Candidate
        Exact and beam: the n_best best answers, by whole probability.
    gap : float
        Exact and beam: nats that an answer left out may be above the last candidate at most. 0: proved that none is.
    probabilities : ndarray of float64, shape (n_leaves,), or None
        Exact, where the set was scored whole, and aligned: of each leaf of the trie, given that the answer is one of
        them; their sum is 1.
    coverage : float or None
        With probabilities: the model's own probability for the set. Near 0, none of the answers fits.
    trie : TokenTrie
        The set. Leaves are in the order of the choices; equal ones are one.
    """

    value: str
    index: int
    tokens: tuple[int, ...]
    logprob: float
    stats: Stats
    candidates: tuple[Candidate, ...] = ()
    gap: float = 0.0
    probabilities: npt.NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    coverage: float | None = None
    trie: TokenTrie | None = field(default=None, compare=False, repr=False)

    @property
    def entropy(self) -> float:
        """Of the probabilities, in nats: 0 if the model is certain, ln(n_leaves) if all are alike to it."""
        p = self._known()
        return float(-np.sum(p[p > 0] * np.log(p[p > 0])))

    @property
    def margin(self) -> float:
        """Difference of the two largest probabilities."""
        two = np.sort(self._known())[-2:]
        return float(two[-1] - (two[0] if len(two) > 1 else 0.0))

    def top(self, k: int) -> list[tuple[str, float]]:
        """Return the k most probable answers with their probabilities, best first; of equal ones by their tokens."""
        p = self._known()
        assert self.trie is not None
        order = np.lexsort((self.trie._handle.leaf_nodes(), -p))
        return [(self.trie[int(leaf)].name, float(p[leaf])) for leaf in order[:k]]

    def _known(self) -> npt.NDArray[np.float64]:
        if self.probabilities is None:
            raise ArgumentError("no probabilities: they come with mode='exact' on sets scored whole, and 'aligned'")
        return self.probabilities

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
    end: End = "longest",
    n_best: int = 1,
    beam_width: int = 16,
    max_nodes: int | None = None,
    leading_space: bool | None = None,
    tokenization: Tokenization = "canonical",
    heal: bool = False,
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
    mode : {"greedy", "sampled", "exact", "aligned", "beam"}
        "greedy": the best token at each branch point, which is fastest and may miss the most probable answer;
        "sampled": one drawn at random there. "exact": the most probable whole answer. "aligned": one whole answer drawn
        from the model's probabilities for them, which drawing token by token does not do and which takes scoring the
        whole set, however large. "beam": the best answer that
        going on from the beam_width best beginnings of each length finds.
    temperature, top_p : float
        For sampled mode, as everywhere in llama.cpp; temperature above 0, top_p in (0, 1].
    seed : int, optional
        For sampled and aligned mode: the same seed draws the same answer.
    end : {"longest", "any", "follow"}
        For exact, aligned and beam: what the probability of an answer has beside its tokens; see `score`. By default
        that the text does not go on towards a longer answer.
    n_best : int
        For exact and beam: answers to return as candidates.
    beam_width : int
        For beam.
    max_nodes : int, optional
        For exact: nodes of the trie to evaluate at most, once an answer is found; `Decision.gap` is what is left
        unproved then. With it, or on a trie of more than 4,096 nodes, the set is searched, best first, and not scored
        whole: probabilities are None.
    leading_space, tokenization
        As for `TokenTrie.from_choices`; for choices given as texts. Exact, aligned and beam are for the canonical
        tokenization alone.
    heal : bool
        With ``tokenization="any"``, for a prompt that may end inside a token, such as in a space or in ``"Fra"``: its
        last token is taken back, and what it spells begins each choice, to be spelled in any way. The tokens of the
        decision then begin there. Choices go on just where the prompt ends: no space is added unless leading_space
        says so. The canonical tokenization always mends the seam by itself.

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
    lookup(end, ENDS, "end")
    if prompt is None:
        raise ArgumentError("prompt: None where text, token ids or chat messages belong")
    _check_numbers(temperature=temperature, top_p=top_p)
    if not 0 < temperature < float("inf"):
        raise ArgumentError(f"temperature: {temperature} is not above 0; for the best answer use mode='greedy'")
    if not 0 < top_p <= 1:
        raise ArgumentError(f"top_p: {top_p} is not in (0, 1]")
    _check_counts(n_best=n_best, beam_width=beam_width, max_nodes=1 if max_nodes is None else max_nodes)
    if seed is not None and (not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32):
        raise ArgumentError(f"seed: {seed} is not in [0, 2**32)")
    check_tokenization(tokenization)
    if isinstance(choices, TokenTrie) and (heal or tokenization != "canonical"):
        raise ArgumentError("tokenization and heal go with choices given as texts; a TokenTrie has its own tokens")
    if heal and tokenization != "any":
        raise ArgumentError('heal goes with tokenization="any"; the canonical one mends the seam by itself')
    with lease(llm):
        if not isinstance(choices, TokenTrie) and tokenization == "any":
            spelled = spell_choices(llm, prompt, choices, leading_space=leading_space, heal=heal, room=room_of(llm))
            trie, prompt_tokens = TokenTrie._from_texts(llm, choices, spelled.texts), spelled.prompt
        else:
            trie, prompt_tokens = fit_set(llm, prompt, choices, leading_space, room_of(llm))
        if mode not in ("greedy", "sampled"):
            check_scorable(trie)
        check_room(llm, prompt_tokens, trie)
    with chooser(llm) as handle:
        if mode == "greedy" or mode == "sampled":
            handle.set_seed(_ANY_SEED if seed is None else int(seed))
            decision = _walk(handle, trie, prompt_tokens, mode, temperature, top_p)
        elif mode == "beam":
            decision = _search(handle, trie, prompt_tokens, end, n_best, beam_width, 0)
        elif mode == "exact" and (max_nodes is not None or trie.n_nodes > SCORED_WHOLE):
            decision = _search(handle, trie, prompt_tokens, end, n_best, 0, max_nodes or 0)
        else:
            decision = _score(handle, trie, prompt_tokens, end, n_best, mode == "aligned", seed)
    if trie is not choices:
        # Equal choices are one leaf.
        decision = replace(decision, index=list(choices).index(decision.value))
    return decision


_ANY_SEED = 0xFFFFFFFF


def _walk(
    handle: StreamHandle,
    trie: TokenTrie,
    prompt: list[int],
    mode: Literal["greedy", "sampled"],
    temperature: float,
    top_p: float,
) -> Decision:
    handle.set_token_trie(trie, mode)
    clock = _Clock(handle, prompt)
    before = handle._state()  # as C has it: `state` costs as much as a branch point
    steps = list(handle.generate(temperature=temperature, top_p=top_p))
    after = handle._state()
    if after.leaf < 0:
        raise InternalError(f"the decision ended as {handle.state} without an answer")
    stats = clock.stats(
        n_branches=after.n_branches - before.n_branches,
        n_forced=after.n_forced - before.n_forced,
        n_passes=after.n_passes - before.n_passes,
    )
    tokens = tuple(step.token for step in steps)
    return Decision(trie[after.leaf].name, after.leaf, tokens, after.logprob, stats, trie=trie)


def _score(
    handle: StreamHandle, trie: TokenTrie, prompt: list[int], end: End, n_best: int, drawn: bool, seed: int | None
) -> Decision:
    handle._hold(trie)
    clock = _Clock(handle, prompt)
    scores = score_leaves(handle, trie, end=end)
    stats = clock.stats(n_passes=scores.n_passes, n_evaluated=scores.n_evaluated)
    return _weigh(trie, scores, stats, n_best, drawn, seed)


def _weigh(trie: TokenTrie, scores: Scores, stats: Stats, n_best: int, drawn: bool, seed: int | None) -> Decision:
    best = float(scores.leaves.max())
    if best == -np.inf:
        raise InternalError("the model gives no answer of the set a finite score")
    weights = np.exp(scores.leaves - best)
    p = weights / weights.sum()
    # By tokens, so that the order in which the choices were given changes nothing.
    nodes = trie._handle.leaf_nodes()
    ranked = np.lexsort((nodes, -scores.leaves))
    by_tokens = np.argsort(nodes)
    leaf = int(np.random.default_rng(seed).choice(by_tokens, p=p[by_tokens]) if drawn else ranked[0])
    candidates = () if drawn else _candidates(trie, ranked[:n_best], scores.leaves[ranked[:n_best]])
    # Answers that do not exclude each other may add up to more.
    coverage = min(1.0, float(np.exp(scores.leaves).sum()))
    return Decision(
        trie[leaf].name, leaf, trie[leaf].tokens, float(scores.leaves[leaf]), stats, candidates, 0.0, p, coverage, trie
    )


def _search(
    handle: StreamHandle,
    trie: TokenTrie,
    prompt: list[int],
    end: End,
    n_best: int,
    beam_width: int,
    max_nodes: int,
) -> Decision:
    handle._hold(trie)
    clock = _Clock(handle, prompt)
    found = search_leaves(handle, trie, n_best, end=end, beam_width=beam_width, max_nodes=max_nodes)
    if len(found.leaves) == 0:
        raise InternalError("the model gives no answer of the set a finite score")
    stats = clock.stats(n_passes=found.n_passes, n_evaluated=found.n_evaluated)
    candidates = _candidates(trie, found.leaves, found.logprobs)
    best = candidates[0]
    return Decision(
        best.value, best.leaf, trie[best.leaf].tokens, best.logprob, stats, candidates, found.gap, trie=trie
    )


def _candidates(
    trie: TokenTrie, leaves: npt.NDArray[np.int64], logprobs: npt.NDArray[np.float64]
) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(trie[leaf].name, leaf, logprob)
        for leaf, logprob in zip(leaves.tolist(), logprobs.tolist(), strict=True)
    )


class _Clock:
    """Evaluates the prompt and measures it apart from what follows."""

    def __init__(self, handle: StreamHandle, prompt: list[int]) -> None:
        self._n_prompt = len(prompt)
        self._started = time.perf_counter()
        handle.prefill(prompt)
        self._evaluated = time.perf_counter()

    def stats(self, n_branches: int = 0, n_forced: int = 0, n_passes: int = 0, n_evaluated: int = 0) -> Stats:
        ended = time.perf_counter()
        return Stats(
            n_prompt=self._n_prompt,
            n_branches=n_branches,
            n_forced=n_forced,
            n_passes=n_passes,
            prompt_ms=(self._evaluated - self._started) * 1e3,
            decide_ms=(ended - self._evaluated) * 1e3,
            n_evaluated=n_evaluated,
        )


def _check_counts(**options: int) -> None:
    for name, value in options.items():
        if not isinstance(value, (int, np.integer)) or not 0 < value < 2**31:
            raise ArgumentError(f"{name}: {value!r} is not a count from 1 to 2,147,483,647")


def _check_numbers(**options: float) -> None:
    for name, value in options.items():
        if not isinstance(value, Real):
            raise ArgumentError(f"{name}: {type(value).__name__} where a number belongs")
