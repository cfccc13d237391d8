"""Options of decisions about a state, and the forms that there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, get_args

from token_trie.decisions.calibrator import BatchPrior, Calibrator
from token_trie.decisions.questions.examples import Examples
from token_trie.decisions.questions.forms import Form
from token_trie.decisions.questions.question import Question
from token_trie.decisions.think import Think, check_think
from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_counts, check_flags, lookup
from token_trie.native.options import Options

if TYPE_CHECKING:
    from typing_extensions import Self

FormName: TypeAlias = Literal["unlisted", "listed", "letters", "both"]

_LISTED = """\
{{ state }}

Question: {{ instructions }}
{% for option in options %}
- {{ option.name }}{% if option.description != option.name %}: {{ option.description }}{% endif %}

{% endfor %}
Answer:"""
_LETTERED = """\
{{ state }}

Question: {{ instructions }}
{% for option in options %}
{{ option.letter }}. {{ option.name }}{% if option.description != option.name %}: {{ option.description }}{% endif %}

{% endfor %}
Answer:"""

_UNLISTED = "{{ state }}\n\nQuestion: {{ instructions }}\nAnswer:"

FORMS: dict[FormName, Form] = {
    "unlisted": Form(_UNLISTED),
    "listed": Form(_LISTED, reads="names"),
    "letters": Form(_LETTERED, reads="letters"),
    "both": Form(_UNLISTED, negation="Is the answer to this question no? {{ instructions }}"),
}
"""The forms by their names.

unlisted
    The question alone; what each option means is scored as its answer. Best of small models, and of those without
    instruction tuning.
listed
    The options stand below the question; their names are scored.
letters
    They have letters, which are scored, in several spellings. For large models, and those trained for it.
both
    As unlisted, and a `Predicate` is asked together with its opposite.
"""

_NAMES = dict.fromkeys(get_args(FormName), 0)


@dataclass(frozen=True, kw_only=True)
class DecideOptions(Options):
    """Options of `decide`.

    Parameters
    ----------
    form : {"unlisted", "listed", "letters", "both"} or Form, optional
        How questions are put; see `FORMS`. By default unlisted; a model whose GGUF says that it was trained for
        decisions is asked as it says, each question alone, and then `calibration` and `orders` do nothing.
    calibration : {"contextual"} or Calibration, optional
        "contextual", the default: what a question gives its options without a state is taken out of what it gives them
        with one (contextual calibration, Zhao et al. 2021). It is evaluated once a question and remembered. A
        `Calibration` that was fitted for this very question: its probabilities. Of `decide_many` also "batch", or a
        `BatchPrior`: what the states themselves give the options in the mean is taken out, and answers are handed out
        by windows. None: the model's own, which of models that were not trained for it are far too sure of themselves.
    orders : int or "auto"
        Where the form lists the options: over how many cyclic orders of them to average; "auto": two, and more, up to
        eight, until the two best are far apart.
    instead : bool
        Whether to tell what the model would write if it were free to, which is where the rest of the mass is; that
        takes some tokens a question.
    think : Think, optional
        Lets the model write before it answers where its answer is close, as far as the share of a `Think` goes; what it
        wrote is the answer's `thought`. It writes behind the question, and the answer is read behind its marker.
    examples : Examples or mapping of names to Examples, optional
        States whose right answers are known, which the model reads before this one; of several questions, by name.
    reproducible : bool
        Whether the answer is to be the same bit by bit whatever is asked beside it, before and in which order; each
        text is evaluated by itself then, which takes longer. Otherwise a quantized model's scores move by some tenths
        of a nat with what is evaluated together.
    """

    form: FormName | Form | None = None
    calibration: Literal["contextual", "batch"] | BatchPrior | Calibrator | None = "contextual"
    orders: int | Literal["auto"] = 1
    instead: bool = False
    think: Think | None = None
    examples: Examples | Mapping[str, Examples] | None = None
    reproducible: bool = False

    def __post_init__(self) -> None:
        if self.form is not None and not isinstance(self.form, Form):
            lookup(self.form, _NAMES, "form")
        if self.calibration is not None and not isinstance(self.calibration, (BatchPrior, Calibrator)):
            lookup(self.calibration, {"contextual": 0, "batch": 0}, "calibration")
        if self.orders != "auto":
            check_counts(orders=self.orders)
        check_flags(instead=self.instead, reproducible=self.reproducible)
        if isinstance(self.calibration, Calibrator) and self.calibration.needs_state and self.reproducible:
            raise ArgumentError("reproducible: goes without a head, as hidden states round with what is beside them")
        given = self.examples
        for one in given.values() if isinstance(given, Mapping) else () if given is None else (given,):
            if not isinstance(one, Examples):
                raise ArgumentError(f"examples: {type(one).__name__} where Examples belong")
        check_think(self.think)
        if self.think is not None and self.reproducible:
            raise ArgumentError("reproducible: goes without think, as who may think depends on what was asked before")

    @property
    def takes_prior(self) -> bool:
        """Whether what questions give without a state is taken out."""
        given = self.calibration
        return given.base == "contextual" if isinstance(given, Calibrator) else given == "contextual"

    def of(self, name: str | None) -> Self:
        """Return those of a question by its name."""
        given = self.examples
        return replace(self, examples=given.get(name or "")) if isinstance(given, Mapping) else self

    def form_of(self, question: Question) -> Form:
        """Return how a question is put."""
        if isinstance(self.form, Form):
            return self.form
        return FORMS[self.form or "unlisted"]


if TYPE_CHECKING:  # by scripts/keywords

    class DecideKeywords(TypedDict, total=False):
        """Those of `DecideOptions`."""

        form: FormName | Form | None
        calibration: Literal["contextual", "batch"] | BatchPrior | Calibrator | None
        orders: int | Literal["auto"]
        instead: bool
        think: Think | None
        examples: Examples | Mapping[str, Examples] | None
        reproducible: bool
