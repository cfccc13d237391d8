"""Choices bound to what they follow: the leaves of a trie, in the caller's own values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.decisions.binding import fingerprint
from token_trie.errors import ArgumentError, ContextError
from token_trie.llama.chooser import check_fits, n_ctx_of
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.lease import attachment
from token_trie.sets.choices import Choices, ChoicesLike, read_choices
from token_trie.sets.prompt import Prompt, tokenize_prompt
from token_trie.sets.spelling import Tokenization
from token_trie.sets.tokens import check_start
from token_trie.sets.trie import TokenTrie, fit

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class BoundChoices(Generic[T]):
    """What the leaves of a trie stand for: choices in the order given, or the leaves' own names."""

    trie: TokenTrie
    choices: Choices[T] | None = None
    leaf_of: npt.NDArray[np.int64] | None = None
    """Leaf of each choice; equal ones have one."""

    def __len__(self) -> int:
        return self.trie.core.n_leaves if self.choices is None else len(self.choices)

    def index(self, leaf: int) -> int:
        """Return the position of a leaf among the choices: of equal ones, the first."""
        if self.leaf_of is None or len(self.leaf_of) == self.trie.core.n_leaves:
            return leaf
        return int(np.flatnonzero(self.leaf_of == leaf)[0])

    def text(self, index: int) -> str:
        """Return the text of a choice."""
        return self.trie.core.name(index) if self.choices is None else self.choices.texts[index]

    def value(self, index: int) -> T:
        """Return what the caller gave for it."""
        if self.choices is None:
            name: Any = self.trie.core.name(index)
            value: T = name
            return value
        return self.choices.values[index]

    def find(self, choice: object) -> int:
        """Return the position of a choice, given as its value or text; ArgumentError: it is none of them."""
        n = len(self)
        for at in (self.value, self.text):
            for i in range(n):
                if is_same(at(i), choice):
                    return i
        raise ArgumentError(f"choice: {choice!r} is none of the {n:,}")

    def aligned(self, of_leaves: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return figures of the leaves in the order of the choices."""
        return of_leaves if self.leaf_of is None else of_leaves[self.leaf_of]

    def of_left(self, of_leaves: npt.NDArray[np.float64], out: float) -> npt.NDArray[np.float64]:
        """Return figures of the leaves, with another for those that are filtered out."""
        return np.where(self.trie.core.left(), of_leaves, out) if self.trie.core.is_view else of_leaves

    def left(self) -> npt.NDArray[np.int64]:
        """Return the positions of the choices that are not filtered out, ascending."""
        return np.arange(len(self)) if self.leaf_of is not None else np.flatnonzero(self.trie.core.left())

    def ranked(self, of_leaves: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the leaves that are left, those of larger figures first.

        Of equal ones by their tokens, so that the order in which the choices were given changes nothing.
        """
        leaves = np.flatnonzero(self.trie.core.left())
        return leaves[np.lexsort((self.trie.core.leaf_nodes()[leaves], -of_leaves[leaves]))]

    def firsts(self) -> npt.NDArray[np.int64]:
        """Return the position of each leaf among the choices, in the order of the leaves."""
        return np.arange(len(self)) if self.leaf_of is None else np.unique(self.leaf_of, return_index=True)[1]


def is_same(a: object, b: object) -> bool:
    """Whether two values are one or equal; those that cannot tell are not."""
    try:
        return a is b or bool(a == b)
    except Exception:
        return False


def read_set(
    choices: ChoicesLike, tokenization: Tokenization = "canonical", heal: bool = False
) -> TokenTrie | Choices[Any]:
    """Read choices that are spelled so; ArgumentError for a trie and another spelling than its own."""
    if not isinstance(choices, TokenTrie):
        return read_choices(choices)
    if heal or tokenization != "canonical":
        raise ArgumentError("tokenization and heal go with choices given as texts; a TokenTrie has its own tokens")
    return choices


def check_scorable(tokenization: Tokenization) -> None:
    """Raise ArgumentError for sets whose members have no one spelling to score."""
    if tokenization != "canonical":
        raise ArgumentError(
            'choices: whole answers are scored in one spelling; make the set with tokenization="canonical"'
        )


def check_finite(scores: npt.NDArray[np.float64]) -> None:
    """Raise ContextError where no score is finite, so that nothing could be decided by them."""
    if not np.isfinite(scores).any():
        raise ContextError("the model gives no answer of the set a finite score")


class Reader(NamedTuple):
    """What prompts and choices are tokenized by, as long as the model's lease is held."""

    vocab: _core.Vocab
    known: dict[object, Any]
    """What is remembered of the model."""
    tokenize: Callable[[Prompt], list[int]]
    n_ctx: int
    """In tokens."""
    model: Callable[[], str]
    """Its fingerprint, which takes a moment for the first time; CalibrationError where there is none."""
    owner: str = "Llama"
    """Whose n_ctx it is, for messages; none where who has it checks."""


def reader_of(llm: Llama, n_ctx: int | None = None) -> Reader:
    """Return a Llama's, for its own context, or for so many tokens of another's; the caller holds a lease."""
    vocab, known = vocab_of(llm), attachment(llm).known
    if n_ctx is None:
        own = n_ctx_of(llm)
        return Reader(vocab, known, lambda prompt: tokenize_prompt(llm, prompt, own), own, partial(fingerprint, llm))
    return Reader(
        vocab, known, lambda prompt: tokenize_prompt(llm, prompt, n_ctx), n_ctx, partial(fingerprint, llm), ""
    )


def bind(
    reader: Reader,
    prompt: list[int],
    choices: TokenTrie | Choices[T],
    leading_space: bool | None = None,
    tokenization: Tokenization = "canonical",
    heal: bool = False,
) -> tuple[list[int], BoundChoices[T]]:
    """Bind choices to a prompt; return what of that stands before them. Errors are those of `Request.bind`."""
    if isinstance(choices, TokenTrie):
        check_start(prompt, choices.start_token)
        bound = BoundChoices[T](choices)
    else:
        fitted = fit(reader.vocab, reader.known, prompt, choices.texts, leading_space, tokenization, heal)
        if len(fitted.trie) < len(choices) and not choices.are_texts:
            _require_one_value_a_leaf(choices, fitted.leaf_of)
        bound = BoundChoices(fitted.trie, choices, fitted.leaf_of)
        prompt = prompt[: len(prompt) - fitted.n_moved]
    if reader.owner:
        check_fits(reader.n_ctx, len(prompt), bound.trie, reader.owner)
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
