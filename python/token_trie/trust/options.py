"""How rows are asked: the options that evaluation, calibration and classifiers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

from token_trie.decisions.calibrator import BatchPrior
from token_trie.decisions.questions.examples import Examples
from token_trie.decisions.questions.forms import Form
from token_trie.decisions.questions.options import DecideOptions, FormName
from token_trie.errors import ArgumentError
from token_trie.llama.query import LEAF_ENDS, LeafEnd
from token_trie.native.arguments import check_counts, encode, lookup
from token_trie.native.options import Options

FitKind: TypeAlias = Literal["auto", "contextual", "batch", "domain", "mean", "temperature", "bias", "head"]

KINDS: tuple[str, ...] = get_args(FitKind)[1:]
_KINDS = dict.fromkeys(get_args(FitKind), 0)


@dataclass(frozen=True, kw_only=True)
class RowOptions(Options):
    """How rows are written for the model.

    Parameters
    ----------
    template : str
        For your own prompts: the template from which they are made, such as the text with ``{text}`` in it. It is saved
        with a calibration, and compared if both sides have one.
    leaf_end : {"longest", "any", "follow"}
        For your own prompts, as for `choose`.
    leading_space : bool, optional
        For your own prompts, as for `choose`.
    form : {"unlisted", "listed", "letters", "both"} or Form, optional
        For a question, as for `decide`.
    orders : int
        For a question, as for `decide`.
    examples : Examples, optional
        For a question, as for `decide`. A row that is an example cannot be a row, too.
    """

    template: str = ""
    leaf_end: LeafEnd = "longest"
    leading_space: bool | None = None
    form: FormName | Form | None = None
    orders: int = 1
    examples: Examples | None = None

    def __post_init__(self) -> None:
        encode(self.template, "template")
        lookup(self.leaf_end, LEAF_ENDS, "leaf_end")
        check_counts(orders=self.orders)
        self.of_question()

    def of_question(self) -> DecideOptions:
        """Return those of a question; ArgumentError where they are none."""
        return DecideOptions(form=self.form, orders=self.orders, examples=self.examples)

    def require_for(self, *, is_question: bool) -> None:
        """Raise ArgumentError where some are for what is not asked."""
        if is_question and (self.template or self.leaf_end != "longest" or self.leading_space is not None):
            raise ArgumentError("template, leaf_end and leading_space: go with choices behind prompts of one's own")
        if not is_question and (self.form is not None or self.orders != 1 or self.examples is not None):
            raise ArgumentError("form, orders and examples: go with a Choice, a Predicate or a Score")


@dataclass(frozen=True, kw_only=True)
class FitOptions(Options):
    """Options of `Calibration.fit`.

    Parameters
    ----------
    kind : {"auto", "contextual", "batch", "domain", "mean", "temperature", "bias", "head"}
        The kind of calibration; see `Calibration`. "auto": with labels, the kind with the lowest log loss on held-out
        rows; without labels, "mean".
    frequencies : mapping of values to float, optional
        For kinds without labels: how frequent each answer is, if they are not equally frequent.
    n_folds : int
        Number of parts of the rows. Each part is answered by a calibration that was fitted on the other parts.
    template, leaf_end, leading_space, form, orders, examples
        As for `RowOptions`.
    """

    kind: FitKind = "auto"
    frequencies: Mapping[Any, float] | None = None
    n_folds: int = 10
    template: str = ""
    leaf_end: LeafEnd = "longest"
    leading_space: bool | None = None
    form: FormName | Form | None = None
    orders: int = 1
    examples: Examples | None = None

    def __post_init__(self) -> None:
        lookup(self.kind, _KINDS, "kind")
        BatchPrior(self.frequencies)
        check_counts(2, n_folds=self.n_folds)
        self.of_rows()

    def of_rows(self) -> RowOptions:
        """Return how rows are asked; ArgumentError where that is none."""
        return RowOptions(**{field.name: getattr(self, field.name) for field in fields(RowOptions)})


if TYPE_CHECKING:  # by scripts/keywords

    class RowKeywords(TypedDict, total=False):
        """Those of `RowOptions`."""

        template: str
        leaf_end: LeafEnd
        leading_space: bool | None
        form: FormName | Form | None
        orders: int
        examples: Examples | None

    class FitKeywords(TypedDict, total=False):
        """Those of `FitOptions`."""

        kind: FitKind
        frequencies: Mapping[Any, float] | None
        n_folds: int
        template: str
        leaf_end: LeafEnd
        leading_space: bool | None
        form: FormName | Form | None
        orders: int
        examples: Examples | None
