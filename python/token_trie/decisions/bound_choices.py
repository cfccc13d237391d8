"""Choices and calibrations bound to the leaves of a trie, in the caller's own values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats, States
from token_trie.decisions.calibration import (
    Binding,
    Calibrator,
    Contextual,
    calibrator_of,
    fingerprint,
    refuse_batch,
    spelled_as,
)
from token_trie.decisions.options import ChooseOptions, ScoreOptions
from token_trie.errors import ArgumentError, CalibrationError, ContextError
from token_trie.llama.query import Ask, AskBeside, LeafEnd, Query
from token_trie.native.core import _core
from token_trie.plan import Model
from token_trie.sets.choices import Choices, ChoicesLike, read_choices
from token_trie.sets.tokenization import check_start, joined
from token_trie.sets.trie import TokenTrie, fit

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class BoundChoices(Generic[T]):
    """The choices that the leaves of a trie represent, in the order given; or the leaves' names."""

    trie: TokenTrie
    choices: Choices[T] | None = None
    leaf_of: npt.NDArray[np.int64] | None = None
    """Leaf of each choice; equal choices share one."""

    def __len__(self) -> int:
        return self.trie.core.n_leaves if self.choices is None else len(self.choices)

    def index(self, leaf: int) -> int:
        """Return the position of a leaf's choice, the first one of equal choices."""
        if self.leaf_of is None or len(self.leaf_of) == self.trie.core.n_leaves:
            return leaf
        return int(np.flatnonzero(self.leaf_of == leaf)[0])

    def text(self, index: int) -> str:
        """Return the text of a choice."""
        return self.trie.core.name(index) if self.choices is None else self.choices.texts[index]

    def value(self, index: int) -> T:
        """Return the value that the caller gave for a choice."""
        return self.member(index)[0]

    def member(self, index: int) -> tuple[T, str]:
        """Return the value and the text of a choice."""
        if self.choices is None:
            name: Any = self.trie.core.name(index)
            return name, name
        return self.choices.values[index], self.choices.texts[index]

    def find(self, choice: object) -> int:
        """Return the position of a choice, given as its value or text; ArgumentError if it is not one of them."""
        n = len(self)
        for at in (self.value, self.text):
            for i in range(n):
                if is_same(at(i), choice):
                    return i
        raise ArgumentError(f"choice: {choice!r} is none of the {n:,}")

    def aligned(self, of_leaves: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return per-leaf figures in the order of the choices."""
        return of_leaves if self.leaf_of is None else of_leaves[self.leaf_of]

    def of_left(self, of_leaves: npt.NDArray[np.float64], out: float) -> npt.NDArray[np.float64]:
        """Return per-leaf figures, with `out` for leaves that are filtered out."""
        return of_leaves if len(self.trie) == len(of_leaves) else np.where(self.trie.core.left(), of_leaves, out)

    def left(self) -> npt.NDArray[np.int64]:
        """Return the positions of the choices that are not filtered out, ascending."""
        return np.arange(len(self)) if self.leaf_of is not None else np.flatnonzero(self.trie.core.left())

    def few(self, leaves: npt.NDArray[np.int64]) -> TokenTrie:
        """Return a set of some leaves, in this order, with the scores that they have here.

        After them come what continues them here by one token, because the score of an answer is without those.
        """
        core = self.trie.core
        rows = [core.sequence(leaf) for leaf in leaves.tolist()]
        longer = [np.append(row, token) for row in rows for token in self.trie.children(row)]
        names = [str(i) for i in range(len(rows) + len(longer))]
        return TokenTrie.of_core(_core.Trie.build(*joined([*rows, *longer]), names, core.vocab))

    def spelled(self, leaf: int) -> tuple[bytes, bytes]:
        """Return what decides a leaf's score after a prompt: its tokens, and those that continue it here."""
        row = self.trie.core.sequence(leaf)
        return row.tobytes(), self.trie.children(row).tobytes()

    def ranked(self, of_leaves: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the leaves that are not filtered out, by descending figure.

        Ties are broken by tokens, so that the order in which the choices were given changes nothing.
        """
        leaves = np.flatnonzero(self.trie.core.left())
        return leaves[np.lexsort((self.trie.core.leaf_nodes()[leaves], -of_leaves[leaves]))]

    def firsts(self) -> npt.NDArray[np.int64]:
        """Return the position of each leaf among the choices, in the order of the leaves."""
        return np.arange(len(self)) if self.leaf_of is None else np.unique(self.leaf_of, return_index=True)[1]


def is_same(a: object, b: object) -> bool:
    """Whether two values are identical or equal; False if they cannot be compared."""
    try:
        return a is b or bool(a == b)
    except Exception:
        return False


def read_set(choices: ChoicesLike, leading_space: bool | None = None) -> TokenTrie | Choices[Any]:
    """Return a trie as it is, and other choices as read; ArgumentError for `leading_space` with a trie."""
    if not isinstance(choices, TokenTrie):
        return read_choices(choices)
    if leading_space is not None:
        raise ArgumentError("leading_space: has no effect on a TokenTrie, whose tokens are given")
    return choices


def n_scored(trie: TokenTrie, max_scored: int | None) -> int:
    """Return the number of nodes that are evaluated to score a set whole; 0 if it is not above the limit."""
    if max_scored is None or trie.n_nodes <= max_scored:
        return 0
    n_nodes = min(trie.n_nodes, len(trie) * trie.max_tokens + 1)  # a filter leaves fewer
    return n_nodes if n_nodes > max_scored else 0


def check_size(trie: TokenTrie, max_scored: int | None) -> None:
    """Raise ArgumentError for a set that is too large to be scored whole; None: no set is."""
    if n_nodes := n_scored(trie, max_scored):
        raise ArgumentError(
            f"choices: to score all of {len(trie):,} members, {n_nodes:,} nodes are evaluated, which can take minutes; "
            "choose with n_best (--n-best) finds the best ones by a search; max_scored=None (--max-scored 0) scores all"
        )


def check_finite(scores: npt.NDArray[np.float64]) -> None:
    """Raise ContextError if no score is finite, because nothing can be decided then."""
    if not np.isfinite(scores).any():
        raise ContextError("the model gives no answer of the set a finite score")


def bind(
    model: Model,
    prompt: list[int],
    choices: TokenTrie | Choices[T],
    leading_space: bool | None = None,
) -> tuple[list[int], BoundChoices[T]]:
    """Bind choices to a prompt; return the prompt's tokens before them.

    ArgumentError if the prompt lacks the set's start token, or one answer has two values; VocabularyError if a choice
    cannot be spelled here; ContextError if the longest does not fit.
    """
    if isinstance(choices, TokenTrie):
        check_start(prompt, choices.start_token)
        bound = BoundChoices[T](choices)
    else:
        trie, leaf_of, n_moved = fit(model.vocab, model.known, prompt, choices.texts, leading_space)
        if len(trie) < len(choices) and not choices.are_texts:
            _require_one_value_a_leaf(choices, leaf_of)
        bound = BoundChoices(trie, choices, leaf_of)
        prompt = prompt[: len(prompt) - n_moved]
    model.check_room(len(prompt), bound.trie.max_tokens)
    return prompt, bound


def _require_one_value_a_leaf(choices: Choices[Any], leaf_of: npt.NDArray[np.int64]) -> None:
    first: dict[int, int] = {}
    for i, leaf in enumerate(leaf_of.tolist()):
        j = first.setdefault(leaf, i)
        if not is_same(choices.values[i], choices.values[j]):
            raise ArgumentError(
                f"choices: {choices.texts[j]!r} and {choices.texts[i]!r} are the same answer here, and stand for "
                f"different values, {choices.values[j]!r} and {choices.values[i]!r}; keep one of them"
            )


class Prior(NamedTuple):
    """A prompt without content, and the choices after it, whose scores are subtracted."""

    tokens: list[int]
    choices: BoundChoices[Any]
    leaf_end: LeafEnd = "longest"

    @property
    def step(self) -> Ask:
        """The step for the scores of all leaves."""
        query = Query("scores", self.choices.trie, leaf_end=self.leaf_end)
        return Ask(self.tokens, query, (self.choices.trie, tuple(self.tokens), self.leaf_end))

    def of_found(self, indices: npt.NDArray[np.int64]) -> Ask:
        """Return the step for the scores of the choices at some positions, which a search found."""
        choices = self.choices
        leaves = indices if choices.leaf_of is None else choices.leaf_of[indices]
        query = Query("scores", choices.few(leaves), leaf_end=self.leaf_end)
        spelled = tuple(map(choices.spelled, leaves.tolist()))
        return AskBeside(self.tokens, query, (spelled, tuple(self.tokens), self.leaf_end))


class BoundCalibration:
    """A calibration of the leaves of a set.

    The classes of the calibrator are at the positions `classes` among the choices; None: all, in their order. `prior`
    is subtracted from the scores of the choices, where it is finite; `unscored` has to be scored first, for
    `with_prior`. `weights` are added to each leaf's score, which fixes the leaves' order; None if not
    known in advance.
    """

    def __init__(
        self,
        calibrator: Calibrator,
        choices: BoundChoices[Any],
        classes: npt.NDArray[np.int64] | None = None,
        prior: Floats | None = None,
        unscored: Prior | None = None,
    ) -> None:
        self.kind, self.needs_state = calibrator.kind, calibrator.needs_state
        self.unscored = unscored
        self._calibrator, self._choices = calibrator, choices
        self._classes: npt.NDArray[np.int64] | slice = slice(None) if classes is None else classes
        self._prior: Floats | float = 0.0
        if prior is not None:
            own = prior[self._classes]
            self._prior = np.where(np.isfinite(own), own, 0.0)  # choices that are filtered out have none
        added = calibrator.weights
        if added is not None and prior is not None:
            added = added - self._prior
        self.weights = None if added is None or unscored else self._of_leaves(added)

    def with_prior(self, of_leaves: Floats) -> BoundCalibration:
        """Return the calibration with the scores after its prompt."""
        assert self.unscored is not None
        return BoundCalibration(self._calibrator, self._choices, None, self.unscored.choices.aligned(of_leaves))

    def log_weights(self, leaves: Floats, state: States | None) -> Floats:
        """Return log-weights of the leaves; their softmax gives the probabilities."""
        scores = (self._choices.aligned(leaves)[self._classes] - self._prior)[None]
        return self._of_leaves(self._calibrator.log_weights(scores, None if state is None else state[None])[0])

    def _of_leaves(self, of_classes: Floats) -> Floats:
        n = len(self._choices)
        if self._choices.leaf_of is None and of_classes.shape == (n,):
            return of_classes  # all choices, which are the leaves
        of_choices = np.zeros(n)
        of_choices[self._classes] = of_classes
        of_leaves: Floats = of_choices[self._choices.firsts()]
        return of_leaves


def bind_calibration(
    model: Model,
    options: ChooseOptions | ScoreOptions,
    given: TokenTrie | Choices[Any],
    bound: BoundChoices[Any],
) -> BoundCalibration | None:
    """Bind a calibration to choices that are bound to a prompt.

    ArgumentError if it has another number of weights than there are choices; CalibrationError if it was fitted on
    another binding.
    """
    calibrator = calibrator_of(options.calibration)
    if calibrator is None:
        return None
    refuse_batch(options.calibration)
    if calibrator.binding is not None:
        return _fitted(model, calibrator, calibrator.binding, given, bound, options)
    if calibrator.weights is not None and calibrator.weights.ndim:
        _check_weights(calibrator.weights, bound)
    if not isinstance(calibrator, Contextual):
        return BoundCalibration(calibrator, bound)
    assert calibrator.prompt is not None
    unscored = bind(model, model.tokenize(calibrator.prompt), given, options.leading_space)
    return BoundCalibration(calibrator, bound, unscored=Prior(*unscored, options.leaf_end))


def _check_weights(added: Floats, bound: BoundChoices[Any]) -> None:
    if len(added) != len(bound):
        raise ArgumentError(f"calibration: {len(added):,} weights for {len(bound):,} choices")
    firsts = bound.firsts()
    first_of = firsts if bound.leaf_of is None else firsts[bound.leaf_of]
    others = np.flatnonzero(added != added[first_of]).tolist()
    if others:
        i, first = others[0], first_of[others[0]]
        raise ArgumentError(
            f"calibration: values[{i}] adds {added[i]:g} to {bound.text(i)!r} and values[{first}] {added[first]:g} to "
            f"{bound.text(first)!r}, which are the same answer here"
        )


def _fitted(
    model: Model,
    calibrator: Calibrator,
    binding: Binding,
    given: TokenTrie | Choices[Any],
    bound: BoundChoices[Any],
    options: ChooseOptions | ScoreOptions,
) -> BoundCalibration:
    """Bind a fitted calibration to all of its choices, or to those that a filter leaves."""
    left = bound.left()
    classes = left if len(binding.classes) == len(left) else np.arange(len(bound))
    texts = tuple(map(bound.text, classes.tolist()))
    tokens = spelled_as(given, options.leading_space, with_filtered=classes is not left)
    binding.require(Binding(fingerprint(model.llm), _core.llama_loaded(), "", texts, options.leaf_end, tokens))
    if calibrator.needs_state and len(left) < len(classes):
        raise CalibrationError(
            "calibration: was fitted with the scores of all answers beside the hidden state, and some of them are "
            "filtered out; fit it anew"
        )
    return BoundCalibration(calibrator, bound, classes)
