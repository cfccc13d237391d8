"""Options of a decision, checked, and the decision by them."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.decisions.answers import Answers
from token_trie.decisions.decision import Decision
from token_trie.decisions.native_scores import ENDS, End, check_scorable
from token_trie.decisions.think import Think, check_think
from token_trie.decisions.ways import score_whole, search, walk
from token_trie.errors import ArgumentError
from token_trie.llama.stream import StreamHandle
from token_trie.native.arguments import check_counts, check_draws, check_flags, check_numbers, lookup
from token_trie.sets.choices import Choices, ChoicesLike, read_choices
from token_trie.sets.prompt import Prompt
from token_trie.sets.spelling import Tokenization, check_tokenization
from token_trie.sets.trie import TokenTrie

T = TypeVar("T")
Mode: TypeAlias = Literal["greedy", "sampled", "exact", "aligned", "beam"]
MODES = {"greedy": 0, "sampled": 1, "exact": 2, "aligned": 3, "beam": 4}

ANY_SEED = 0xFFFFFFFF

MAX_NODES = 128
"""Nodes that a search evaluates by default."""
LONGEST = 2_000_000
"""Seconds of a timeout at most."""


class HandleOptions(TypedDict, total=False):
    """Options of `StreamHandle.choose`."""

    mode: Mode | None
    probabilities: bool
    temperature: float
    top_p: float
    seed: int | None
    end: End
    n_best: int
    beam_width: int
    max_nodes: int | None
    timeout: float | None
    leading_space: bool | None
    tokenization: Tokenization
    heal: bool
    think: Think | None


class Options(HandleOptions, total=False):
    """Options of `choose`."""

    calibrate: Prompt | None


@dataclass(frozen=True)
class How:
    """How to decide."""

    mode: Mode
    is_whole: bool
    """Whether the whole set is scored."""
    temperature: float
    top_p: float
    seed: int | None
    end: End
    n_best: int
    beam_width: int
    max_nodes: int | None
    timeout: float | None
    leading_space: bool | None
    tokenization: Tokenization
    heal: bool
    think: Think | None

    @property
    def bounds(self) -> dict[str, Any]:
        """What ends a search, as struct token_trie_score_params has it."""
        is_exact = self.mode == "exact"
        return {
            "beam_width": self.beam_width if self.mode == "beam" else 0,
            "max_nodes": (self.max_nodes or 0) if is_exact else 0,
            "timeout_ms": math.ceil(1000 * self.timeout) if is_exact and self.timeout is not None else 0,
        }


def read_options(
    choices: ChoicesLike,
    *,
    mode: Mode | None = None,
    probabilities: bool = False,
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
    is_calibrated: bool = False,
) -> tuple[TokenTrie | Choices[Any], How]:
    """Read choices, and the options of `choose`.

    Raises
    ------
    ArgumentError
        They fit neither each other nor the choices.
    """
    check_tokenization(tokenization)
    check_flags(probabilities=probabilities, heal=heal)
    read: TokenTrie | Choices[Any] = choices if isinstance(choices, TokenTrie) else read_choices(choices)
    if isinstance(read, TokenTrie):
        if heal or tokenization != "canonical":
            raise ArgumentError("tokenization and heal go with choices given as texts; a TokenTrie has its own tokens")
        tokenization = read.tokenization
    if heal and tokenization != "any":
        raise ArgumentError('heal goes with tokenization="any"; the canonical one mends the seam by itself')
    if mode is None:
        mode = "greedy" if tokenization == "any" else "exact"
    lookup(mode, MODES, "mode")
    lookup(end, ENDS, "end")
    check_draws(temperature, top_p, seed)
    check_counts(n_best=n_best, beam_width=beam_width, max_nodes=1 if max_nodes is None else max_nodes)
    is_whole = mode == "aligned" or probabilities or is_calibrated
    is_bounded = max_nodes not in (None, MAX_NODES) or timeout is not None
    if is_whole and (mode not in ("exact", "aligned") or is_bounded):
        raise ArgumentError(
            "probabilities and calibrate score the whole set: they go with mode='exact' without max_nodes and timeout, "
            "or 'aligned'"
        )
    if timeout is not None:
        check_numbers(timeout=timeout)
        if not 0 < timeout <= LONGEST:
            raise ArgumentError(f"timeout: {timeout} is not in (0, {LONGEST:,}] seconds")
    check_think(think)
    if think is not None and is_calibrated:
        raise ArgumentError("calibrate weighs answers behind the prompt itself, and think puts a thought between them")
    drawn = temperature, top_p, seed
    spelled = leading_space, tokenization, heal
    return read, How(mode, is_whole, *drawn, end, n_best, beam_width, max_nodes, timeout, *spelled, think)


def check_decidable(answers: Answers[Any], how: How) -> None:
    """Raise ArgumentError for a set that cannot be decided this way."""
    if how.mode not in ("greedy", "sampled"):
        check_scorable(answers.trie)


def decide(
    handle: StreamHandle,
    answers: Answers[T],
    prompt: list[int],
    how: How,
    prior: npt.NDArray[np.float64] | None = None,
) -> Decision[T]:
    """Decide behind a prompt, which becomes the handle's sequence; the trie of the handle is then any."""
    if how.mode == "greedy" or how.mode == "sampled":
        if how.mode == "sampled" and how.seed is not None:
            handle.set_seed(int(how.seed))
        return walk(handle, answers, prompt, how.mode, how.temperature, how.top_p)
    if not how.is_whole:
        decision = search(handle, answers, prompt, how.end, n_best=how.n_best, **how.bounds)
        if how.mode == "exact":
            warn_where_unproved(decision)
        return decision
    decision = score_whole(
        handle,
        answers,
        prompt,
        how.end,
        n_best=how.n_best,
        prior=prior,
        drawn=how.mode == "aligned",
        seed=how.seed,
    )
    warn_where_unfit(decision)
    return decision


_unproved = logging.getLogger("token_trie.search")
_warned_of_search = False


def warn_where_unproved(decision: Decision[Any]) -> None:
    """Say once a process that a search was ended before its proof."""
    global _warned_of_search
    if not (_warned_of_search or decision.proved):
        _warned_of_search = True
        _unproved.warning(
            "a search ended after %d nodes with the best answer until then: another may be up to %.2g nats more "
            "probable. max_nodes=None goes on to the proof. (Said once a process; decision.proved tells for each.)",
            decision.stats.n_evaluated,
            decision.gap,
        )


_unfit = logging.getLogger("token_trie.fits")
_warned = False


def warn_where_unfit(decision: Decision[Any]) -> None:
    """Say once a process that none of the answers may fit a prompt, of a decision by the scores of all."""
    global _warned
    if not (_warned or decision.fits):
        _warned = True
        _unfit.warning(
            "the model gives all answers together %.2g %% of what it could write here: none may fit the prompt. Let it "
            "show some questions with their answers. (Said once a process; decision.fits tells for each.)",
            100 * (decision.coverage or 0.0),
        )
