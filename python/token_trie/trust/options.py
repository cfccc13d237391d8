"""How rows are asked: the options that evaluation, calibration and classifiers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

from token_trie.decisions.calibrator import BatchPrior
from token_trie.decisions.options import LEAF_ENDS, LeafEnd
from token_trie.decisions.questions.examples import Examples
from token_trie.decisions.questions.forms import Form
from token_trie.decisions.questions.options import DecideOptions, FormName
from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_counts, encode, lookup
from token_trie.native.options import Options

FitKind: TypeAlias = Literal["auto", "contextual", "batch", "domain", "mean", "temperature", "bias", "head"]

KINDS: tuple[str, ...] = get_args(FitKind)[1:]
_KINDS = dict.fromkeys(get_args(FitKind), 0)


@dataclass(frozen=True, kw_only=True)
class RowOptions(Options):
    """How rows are asked.

    Parameters
    ----------
    template : str
        Of prompts of one's own: what they are made of, such as the text with ``{text}`` in it. It is kept with what is
        fitted, and compared where both sides tell it; prompts themselves do not tell it.
    leaf_end : {"longest", "any", "follow"}
        Of prompts of one's own, as of `choose`.
    leading_space : bool, optional
        Likewise.
    form : {"unlisted", "listed", "letters", "both"} or Form, optional
        Of a question, as of `decide`.
    orders : int
        Likewise.
    examples : Examples, optional
        Likewise; rows that stand among them cannot be rows, too.
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
        What is fitted; see `Calibration`. "auto": with labels what has the least log loss on rows held out; without,
        "mean".
    frequencies : mapping of values to float, optional
        Of what takes no labels: how frequent each answer is, where they are not all alike.
    n_folds : int
        Parts that the rows are cut into, each of which is answered by what is fitted on the others.
    template, leaf_end, leading_space, form, orders, examples
        As of `RowOptions`: how rows are asked.
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
