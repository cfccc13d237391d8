"""Options of `decide`, and the named forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, get_args

from token_trie.decisions.calibration import NAMED, CalibrationName, Calibrator, calibrator_of
from token_trie.decisions.options import Think, check_think
from token_trie.errors import ArgumentError
from token_trie.native.checks import check_counts, check_flags, lookup
from token_trie.native.options import Options
from token_trie.questions.examples import Examples
from token_trie.questions.form import Form

if TYPE_CHECKING:
    from typing_extensions import Self

FormName: TypeAlias = Literal["unlisted", "listed", "letters"]
Effort: TypeAlias = Literal["fast", "default", "best"]

LIST = """\
{{ instructions }}
{% for option in options %}
- {{ option.name }}{% if option.description != option.name %}: {{ option.description }}{% endif %}

{% endfor %}
"""
"""Template of a question and its options, one a line."""
_LISTED = f"{{{{ state }}}}\n\nQuestion: {LIST}Answer:"
_LETTERED = _LISTED.replace("\n- ", "\n{{ option.letter }}. ")
_UNLISTED = "{{ state }}\n\nQuestion: {{ instructions }}\nAnswer:"

FORMS: dict[FormName, Form] = {
    "unlisted": Form(_UNLISTED),
    "listed": Form(_LISTED, reads="names"),
    "letters": Form(_LETTERED, reads="letters"),
}
"""Forms by name.

unlisted
    The question alone; each option's description is scored as the answer. Best for small models and models without
    instruction tuning.
listed
    The options are listed below the question; their names are scored.
letters
    The listed options have letters; several spellings of these are scored. For large models.
"""

_NAMES = dict.fromkeys(get_args(FormName), 0)
_EFFORTS = dict.fromkeys(get_args(Effort), 0)
_BEST_ORDERS = 4


@dataclass(frozen=True, kw_only=True)
class DecideOptions(Options):
    """Options of `decide`.

    Parameters
    ----------
    form : {"unlisted", "listed", "letters"}, Form or tuple of Form, optional
        How questions are written; see `FORMS`. The log-weights of several forms are averaged. By default, the forms of
        the model's profile, or "unlisted" on a handle; see `Profile`. If the GGUF file says that the model was trained
        for decisions, its own template is the default; each question is then asked alone, and `calibration`, `effort`
        and `orders` have no effect.
    effort : {"fast", "default", "best"}
        How much is read for an answer: only the first form, all forms, or all forms in four orders of the options.
    calibration : {"contextual"} or Calibration, optional
        "contextual", the default: the scores of the options without a state are subtracted from their scores with the
        state (contextual calibration, Zhao et al. 2021). They are computed once for each question and remembered. A
        `Calibration` that was fitted for this question gives its probabilities. For `decide_many` also "batch", or a
        `BatchPrior`: the mean scores over the states are subtracted, and answers are yielded in windows. None: the
        model's own probabilities, which are far too extreme in models that were not trained for decisions.
    orders : int
        If the form lists the options: the number of cyclic orders over which to average.
    think : Think, optional
        Lets the model think before it answers a close question, within the share of the `Think`. The thought follows
        the question, the answer follows the marker, and the text is the answer's `thought`.
    examples : Examples or mapping of names to Examples, optional
        States with known answers, which the model reads before this state; for several questions, by their names.
    reproducible : bool
        Whether the answer has to be the same, bit by bit, whatever else is asked, and in which order. Each text is then
        evaluated alone, which takes longer. Otherwise, scores of a quantized model change by some tenths of a nat with
        the other texts of a batch.
    """

    form: FormName | Form | tuple[Form, ...] | None = None
    effort: Effort = "default"
    calibration: CalibrationName | Calibrator | None = "contextual"
    orders: int = 1
    think: Think | None = None
    examples: Examples | Mapping[str, Examples] | None = None
    reproducible: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.form, tuple):
            if not self.form or not all(isinstance(one, Form) for one in self.form):
                raise ArgumentError("form: a tuple of one or more Forms belongs here")
        elif self.form is not None and not isinstance(self.form, Form):
            lookup(self.form, _NAMES, "form")
        lookup(self.effort, _EFFORTS, "effort")
        calibrator = self.calibrator
        is_own = calibrator is not None and (calibrator.binding is not None or calibrator.window is not None)
        if self.calibration is not None and not is_own:
            lookup(self.calibration, dict.fromkeys(NAMED, 0), "calibration")  # type: ignore[arg-type]
        check_counts(orders=self.orders)
        check_flags(reproducible=self.reproducible)
        if calibrator is not None and calibrator.needs_state and self.reproducible:
            raise ArgumentError("reproducible: goes without a head, as hidden states round with what is beside them")
        given = self.examples
        for one in given.values() if isinstance(given, Mapping) else () if given is None else (given,):
            if not isinstance(one, Examples):
                raise ArgumentError(f"examples: {type(one).__name__} where Examples belong")
        check_think(self.think)
        if self.think is not None and self.reproducible:
            raise ArgumentError("reproducible: goes without think, as who may think depends on what was asked before")

    @cached_property
    def calibrator(self) -> Calibrator | None:
        """The calibration, by its name or itself."""
        return calibrator_of(self.calibration)

    def of(self, name: str | None) -> Self:
        """Return the options for the question of a name."""
        given = self.examples
        return replace(self, examples=given.get(name or "")) if isinstance(given, Mapping) else self

    def forms(self, of_profile: tuple[Form, ...]) -> tuple[Form, ...]:
        """Return the forms to read: the given ones, or those of the model's profile."""
        forms = of_profile if self.form is None else self.form
        forms = FORMS[forms] if isinstance(forms, str) else forms
        forms = (forms,) if isinstance(forms, Form) else forms
        return forms[:1] if self.effort == "fast" else forms

    @property
    def n_orders(self) -> int:
        """Number of orders to read."""
        return _BEST_ORDERS if self.effort == "best" and self.orders == 1 else self.orders


if TYPE_CHECKING:  # by scripts/keywords

    class DecideKeywords(TypedDict, total=False):
        """Keywords of `DecideOptions`."""

        form: FormName | Form | tuple[Form, ...] | None
        effort: Effort
        calibration: CalibrationName | Calibrator | None
        orders: int
        think: Think | None
        examples: Examples | Mapping[str, Examples] | None
        reproducible: bool
