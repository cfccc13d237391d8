"""What comes back from `fill`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Record(Generic[T]):
    """A record that is valid by its schema.

    Attributes
    ----------
    value : object
        An instance of the given model or type; for a JSON Schema, the result of `json.loads`.
    text : str
        The JSON that was written.
    probabilities : dict of str to float
        The probability of every value that was chosen, by its JSON pointer (``"/unit"``, ``"/tags/0"``). In exact mode
        it is the model's own probability of the value's text; it includes the end of the value only if another value
        continues from there. In the modes that go step by step, and for integers in every mode, it is the product of
        the probabilities of its tokens among the allowed ones. The pointer of an object or list (``""`` for the whole
        record) has the probability of the choice of its fields, or of its number of items.
    truncated : tuple of str
        Pointers of values that were ended because they reached `max_tokens`.
    stats : RecordStats
        What the record cost.
    thought : str or None
        What the model wrote before the record, up to the marker; None without `think`.
    """

    value: T
    text: str
    probabilities: dict[str, float] = field(default_factory=dict, compare=False)
    truncated: tuple[str, ...] = ()
    stats: RecordStats | None = field(default=None, compare=False)
    thought: str | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class RecordStats:
    """What one record cost."""

    n_prompt: int
    """Tokens before it."""
    n_tokens: int
    """Tokens of it."""
    n_choices: int
    """Decisions: values, and which fields and items there are."""
    n_branches: int
    """Branch points passed, in the modes that go step by step: where two or more tokens were allowed."""
    n_free: int
    """Tokens that were generated under a grammar, those that only told where a value ends among them."""
    n_passes: int
    """Forward passes of the model behind what was evaluated before and, by `fill`, together with the prompt: step by
    step as many as branch points and free tokens, those apart that stand right behind what is evaluated."""
    n_evaluated: int
    """Nodes of tries that the model was asked about, in exact mode."""
    n_unproved: int
    """Decisions of exact mode that ended with `max_nodes` before it was proved that nothing else is more probable."""
    fill_ms: float
    """Time it took, that of a prompt and a thought included."""
