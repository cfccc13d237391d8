"""A set as it was asked for: the answers of its leaves, in the caller's own values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError
from token_trie.llama.chooser import room_of
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lease import attachment
from token_trie.sets.choices import Choices, ChoicesLike, read_choices
from token_trie.sets.prompt import Prompt, tokenize_prompt
from token_trie.sets.spelling import Tokenization
from token_trie.sets.tokens import check_start
from token_trie.sets.trie import FittedSet, TokenTrie, fit

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Answers(Generic[T]):
    """What the leaves of a trie stand for: choices in the order given, or the leaves' own names."""

    trie: TokenTrie
    choices: Choices[T] | None = None
    leaf_of: npt.NDArray[np.int64] | None = None
    """Leaf of each choice; equal ones have one."""

    def __len__(self) -> int:
        return len(self.trie) if self.choices is None else len(self.choices)

    def index(self, leaf: int) -> int:
        """Return the place of a leaf among the choices: of equal ones, the first."""
        if self.leaf_of is None or len(self.leaf_of) == len(self.trie):
            return leaf
        return int(np.flatnonzero(self.leaf_of == leaf)[0])

    def text(self, index: int) -> str:
        """Return the text of a choice."""
        return self.trie[index].name if self.choices is None else self.choices.texts[index]

    def value(self, index: int) -> T:
        """Return what the caller gave for it."""
        if self.choices is None:
            name: Any = self.trie[index].name
            value: T = name
            return value
        return self.choices.values[index]

    def find(self, choice: object) -> int:
        """Return the place of a choice, given as its value or its text.

        Raises
        ------
        ArgumentError
            It is none of them.
        """
        n = len(self)
        for at in (self.value, self.text):
            for i in range(n):
                if is_same(at(i), choice):
                    return i
        raise ArgumentError(f"choice: {choice!r} is none of the {n:,}")

    def aligned(self, of_leaves: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return figures of the leaves in the order of the choices."""
        return of_leaves if self.leaf_of is None else of_leaves[self.leaf_of]

    def firsts(self) -> npt.NDArray[np.int64]:
        """Return the place of each leaf among the choices, in the order of the leaves."""
        return np.arange(len(self)) if self.leaf_of is None else np.unique(self.leaf_of, return_index=True)[1]


def is_same(a: object, b: object) -> bool:
    """Whether two values are one or equal; those that cannot tell are not."""
    try:
        return a is b or bool(a == b)
    except Exception:
        return False


def ask(
    llm: Llama,
    prompt: Prompt,
    choices: ChoicesLike,
    *,
    leading_space: bool | None = None,
    tokenization: Tokenization = "canonical",
    heal: bool = False,
    room: int | None = None,
) -> tuple[list[int], Answers[Any]]:
    """Return the tokens of a prompt, and the set of choices that its sequences follow.

    The caller holds a lease. `room` is in tokens; by default the Llama's.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        For choices or prompts that fit neither each other nor the model.
    """
    room = room_of(llm) if room is None else room
    if isinstance(choices, TokenTrie):
        tokens = tokenize_prompt(llm, prompt, room)
        check_start(tokens, choices.start_token)
        return tokens, Answers(choices)
    read = read_choices(choices)
    tokens = tokenize_prompt(llm, prompt, room)
    fitted = fit(vocab_of(llm), attachment(llm).known, tokens, read.texts, leading_space, tokenization, heal)
    return tokens[: len(tokens) - fitted.n_moved], answers_of(read, fitted)


def answers_of(choices: Choices[Any], fitted: FittedSet) -> Answers[Any]:
    """Return the answers that choices are.

    Raises
    ------
    ArgumentError
        Two of them are one answer, and stand for different values.
    """
    if len(fitted.trie) < len(choices) and not choices.are_texts:
        _require_one_value_a_leaf(choices, fitted.leaf_of)
    return Answers(fitted.trie, choices, fitted.leaf_of)


def _require_one_value_a_leaf(choices: Choices[Any], leaf_of: npt.NDArray[np.int64]) -> None:
    first: dict[int, int] = {}
    for i, leaf in enumerate(leaf_of.tolist()):
        j = first.setdefault(leaf, i)
        if not is_same(choices.values[i], choices.values[j]):
            raise ArgumentError(
                f"choices: {choices.texts[j]!r} and {choices.texts[i]!r} are the same answer here, and stand for "
                f"different values, {choices.values[j]!r} and {choices.values[i]!r}; keep one of them"
            )
