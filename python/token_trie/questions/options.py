"""How questions are asked: options of `decide`, named forms, and the default forms by a model's size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from token_trie.decisions.calibration import CalibrationName, Calibrator, calibrator_of
from token_trie.errors import ArgumentError
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.lifetime import attachment
from token_trie.native.llama_facts import model_of
from token_trie.native.options import Options, check_counts, check_flags, check_name
from token_trie.questions.form import Form, Forms, lists_options
from token_trie.questions.question import MAX_WHOLE, Choice, Examples, Predicate, Question, Score, is_searched
from token_trie.sets.prompt import has_chat_template

if TYPE_CHECKING:
    from typing_extensions import Self

FormName: TypeAlias = Literal["unlisted", "listed", "letters"]

_OPTIONS = """\
{% for option in options %}
- {{ option.name }}{% if option.description != option.name %}: {{ option.description }}{% endif %}

{% endfor %}
"""
_QUESTION = "{{ state }}\n\nQuestion: {{ instructions }}\n"
_LETTERED = _OPTIONS.replace("\n- ", "\n{{ option.letter }}. ")

FORMS: dict[FormName, Form] = {
    "unlisted": Form(f"{_QUESTION}Answer:"),
    "listed": Form(f"{_QUESTION}{_OPTIONS}Answer:", reads="names"),
    "letters": Form(f"{_QUESTION}{_LETTERED}Answer:", reads="letters"),
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


@dataclass(frozen=True, kw_only=True)
class DecideOptions(Options):
    """Options of `decide`.

    Parameters
    ----------
    form : {"unlisted", "listed", "letters"} or Form, optional
        How questions are written; see `FORMS`. By default, in the forms of the model's profile, whose log-weights are
        averaged, or "unlisted" on a handle; see `PROFILES`.
    calibration : {"contextual"} or Calibration, optional
        "contextual", the default: the scores of the options without a state are subtracted from their scores with the
        state (contextual calibration, Zhao et al. 2021). They are computed once for each question and remembered. A
        `Calibration` that was fitted for this question gives its probabilities. For `decide_many` also "batch": the
        mean scores over the states are subtracted, and answers are yielded in windows. None: the model's own
        probabilities, which are far too extreme.
    orders : int
        If the form lists the options: the number of cyclic orders over which to average.
    examples : Examples or mapping of names to Examples, optional
        States with known answers, which the model reads before this state; for several questions, by their names.
    reproducible : bool
        Whether the answer has to be the same, bit by bit, whatever else is asked, and in which order. Each question is
        then evaluated on an empty sequence, state included, which takes longer. Otherwise, scores of a quantized model
        change by some tenths of a nat with what is in the same batch.
    """

    form: FormName | Form | None = None
    calibration: CalibrationName | Calibrator | None = "contextual"
    orders: int = 1
    examples: Examples | Mapping[str, Examples] | None = None
    reproducible: bool = False

    def __post_init__(self) -> None:
        if self.form is not None and not isinstance(self.form, Form):
            check_name(self.form, FORMS, "form")
        calibrator = self.calibrator
        if self.calibration is not None and (calibrator is None or calibrator.binding is None):
            check_name(self.calibration, ("contextual", "batch"), "calibration")
        check_counts(orders=self.orders)
        check_flags(reproducible=self.reproducible)
        if calibrator is not None and calibrator.needs_state and self.reproducible:
            raise ArgumentError("reproducible: goes without a head, as hidden states round with what is beside them")
        given = self.examples
        for one in given.values() if isinstance(given, Mapping) else () if given is None else (given,):
            if not isinstance(one, Examples):
                raise ArgumentError(f"examples must be Examples, not {type(one).__name__}")

    @cached_property
    def calibrator(self) -> Calibrator | None:
        """The calibration, by its name or itself."""
        return calibrator_of(self.calibration)

    def of(self, name: str | None) -> Self:
        """Return the options for the question of a name."""
        given = self.examples
        return replace(self, examples=given.get(name or "")) if isinstance(given, Mapping) else self


_MAX_LISTED = 4000
"""Characters of options up to which they are listed by default."""

ProfileName: TypeAlias = Literal["plain", "instruct", "large instruct"]

_PLAIN, _LISTED, _LETTERS = FORMS["unlisted"], FORMS["listed"], FORMS["letters"]
_ASKED_FOR = Form("{{ instructions }}\nRequest: {{ state }}\nAnswer:")
_ABOUT_A_TEXT = "Text:\n{{ state }}\n\n{{ instructions }}\n"
_BRIEFLY = Form(f"{_ABOUT_A_TEXT}Answer in one or two words.", chat=True)
_FROM_LIST = Form(
    f"{_ABOUT_A_TEXT}Options:\n{_OPTIONS}Answer with one of the options.", reads="names", chat=True, absent="..."
)

PROFILES: dict[ProfileName, dict[type[Question], Forms]] = {
    "plain": {Choice: {_PLAIN: 1.0}, Predicate: {_PLAIN: 1.0}, Score: {_PLAIN: 1.0}},
    "instruct": {Choice: {_BRIEFLY: 1.0}, Predicate: {_PLAIN: 1.0}, Score: {_PLAIN: 1.0}},
    "large instruct": {
        Choice: {_FROM_LIST: 3.0, replace(_BRIEFLY, absent="..."): 1.0},
        Predicate: {replace(form, absent="...", temperature=0.7): 1.0 for form in (_PLAIN, _LISTED)},
        Score: {_LETTERS: 1.0, _LISTED: 1.0},
    },
}
"""The forms of each type of question by default, with their weights in the mean.

plain
    The question follows the state, and the options are not listed. For small models and those without a chat template.
    Where the options are a set of more than 255 members, the state follows the question, next to the answer that
    resembles it; after the text of a handle it cannot.
instruct
    The same for choices, through the model's chat template. From 400 million parameters.
large instruct
    The mean of two forms. Choices, through the chat template: listed, with weight 3, and not listed. Predicates: not
    listed, and listed, with a temperature of 0.7. "..." is the absent state of both. Scores: levels with letters, and
    listed. From a billion parameters.
"""


def forms_of(profile: ProfileName, question: Question, *, is_after_text: bool) -> Forms:
    """Return the forms of a question; of one with a set or very long options, only forms that do not list them."""
    if profile == "plain" and is_searched(question) and len(question.members or ()) > MAX_WHOLE and not is_after_text:
        return {_ASKED_FOR: 1.0}
    forms = PROFILES[profile][type(question)]
    n_characters = sum(len(option.name) + len(option.texts[0]) for option in question.wording)
    if isinstance(question, Predicate) or (n_characters <= _MAX_LISTED and not is_searched(question)):
        return forms
    return {form: weight for form, weight in forms.items() if not lists_options(form)} or {_PLAIN: 1.0}


def name_of(n_params: int, *, has_chat_template: bool) -> ProfileName:
    """Return the name of the profile of a model with so many parameters."""
    if n_params < 400_000_000 or not has_chat_template:
        return "plain"
    return "instruct" if n_params < 1_000_000_000 else "large instruct"


def profile_of(llm: Llama) -> ProfileName:
    """Return the name of a model's profile, by what its file says."""
    known = attachment(llm).known
    if "profile" not in known:
        n_params = llama_cpp.llama_model_n_params(model_of(llm).model)
        known["profile"] = name_of(n_params, has_chat_template=has_chat_template(llm))
    name: ProfileName = known["profile"]
    return name


if TYPE_CHECKING:  # by scripts/keywords

    class DecideKeywords(TypedDict, total=False):
        """Keywords of `DecideOptions`."""

        form: FormName | Form | None
        calibration: CalibrationName | Calibrator | None
        orders: int
        examples: Examples | Mapping[str, Examples] | None
        reproducible: bool
