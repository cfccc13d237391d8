"""How questions are asked: options of `decide`, named forms, profiles of models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, get_args

from token_trie.decisions.calibration import NAMED, CalibrationName, Calibrator, calibrator_of, fingerprint
from token_trie.decisions.options import Think, check_think
from token_trie.errors import ArgumentError, CalibrationError
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.files import write_whole
from token_trie.native.lifetime import attachment, lease
from token_trie.native.llama_facts import model_of
from token_trie.native.loaded import users_cache
from token_trie.native.options import Options, check_counts, check_flags, check_name
from token_trie.questions.examples import Examples
from token_trie.questions.form import Form, lists_options
from token_trie.questions.question import Choice, Predicate, Question, is_searched
from token_trie.sets.prompt import has_chat_template

if TYPE_CHECKING:
    from typing_extensions import Self

FormName: TypeAlias = Literal["unlisted", "listed", "letters"]
Effort: TypeAlias = Literal["fast", "default", "best"]

_OPTIONS = """\
{% for option in options %}
- {{ option.name }}{% if option.description != option.name %}: {{ option.description }}{% endif %}

{% endfor %}
"""
LIST = f"{{{{ instructions }}}}\n{_OPTIONS}"
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

_BEST_ORDERS = 4


@dataclass(frozen=True, kw_only=True)
class DecideOptions(Options):
    """Options of `decide`.

    Parameters
    ----------
    form : {"unlisted", "listed", "letters"}, Form or tuple of Form, optional
        How questions are written; see `FORMS`. The log-weights of several forms are averaged. By default, the forms of
        the model's profile, or "unlisted" on a handle; see `Profile`.
    effort : {"fast", "default", "best"}
        How much is read for an answer: only the first form, all forms, or all forms in four orders of the options.
    calibration : {"contextual"} or Calibration, optional
        "contextual", the default: the scores of the options without a state are subtracted from their scores with the
        state (contextual calibration, Zhao et al. 2021). They are computed once for each question and remembered. A
        `Calibration` that was fitted for this question gives its probabilities. For `decide_many` also "batch", or a
        `BatchPrior`: the mean scores over the states are subtracted, and answers are yielded in windows. None: the
        model's own probabilities, which are far too extreme.
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
            check_name(self.form, FORMS, "form")
        check_name(self.effort, get_args(Effort), "effort")
        calibrator = self.calibrator
        is_own = calibrator is not None and (calibrator.binding is not None or calibrator.window is not None)
        if self.calibration is not None and not is_own:
            check_name(self.calibration, NAMED, "calibration")
        check_counts(orders=self.orders)
        check_flags(reproducible=self.reproducible)
        if calibrator is not None and calibrator.needs_state and self.reproducible:
            raise ArgumentError("reproducible: goes without a head, as hidden states round with what is beside them")
        given = self.examples
        for one in given.values() if isinstance(given, Mapping) else () if given is None else (given,):
            if not isinstance(one, Examples):
                raise ArgumentError(f"examples: {type(one).__name__} where Examples belong")
        check_think(self.think)
        if self.think is not None and calibrator is not None and calibrator.binding is not None:
            raise ArgumentError("calibration: was fitted on answers without a thought, which think puts before them")
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


MEASURED = "measured"
_FORMAT, _VERSION = "token-trie profile", 1
_MAX_LISTED = 4000
"""Characters of options up to which a profile lists them."""


@dataclass(frozen=True)
class Profile:
    """The forms in which a model is asked.

    Parameters
    ----------
    name : str
        The name, which answers report.
    choice, predicate, score : tuple of Form
        The forms of each type of question, whose log-weights are averaged. The first form is the best one alone.
    """

    name: str
    choice: tuple[Form, ...]
    predicate: tuple[Form, ...]
    score: tuple[Form, ...]

    def forms(self, question: Question) -> tuple[Form, ...]:
        """Return the forms of a question; of one with a set or very long options, only forms that do not list them."""
        if isinstance(question, Predicate):
            return self.predicate
        forms = self.choice if isinstance(question, Choice) else self.score
        n_characters = sum(len(option.name) + len(option.texts[0]) for option in question.wording)
        if n_characters <= _MAX_LISTED and not is_searched(question):
            return forms
        return tuple(form for form in forms if not lists_options(form)) or PROFILES["plain"].choice


_ABOUT_A_TEXT = "Text:\n{{ state }}\n\n{{ instructions }}\n"
BRIEFLY = Form(f"{_ABOUT_A_TEXT}Answer in one or two words.", chat=True)
FROM_LIST = Form(
    f"{_ABOUT_A_TEXT}Options:\n{_OPTIONS}Answer with one of the options.", reads="names", chat=True, absent="..."
)

_PLAIN = FORMS["unlisted"]

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("plain", (_PLAIN,), (_PLAIN,), (_PLAIN,)),
        Profile("instruct", (BRIEFLY,), (_PLAIN,), (_PLAIN,)),
        Profile(
            "large instruct",
            (replace(FROM_LIST, weight=3), replace(BRIEFLY, absent="...")),
            tuple(replace(form, absent="...", temperature=0.7) for form in (_PLAIN, FORMS["listed"])),
            (FORMS["letters"], FORMS["listed"]),
        ),
    )
}
"""Profiles by name.

plain
    The question follows the state, and the options are not listed. For small models and those without a chat template.
instruct
    The same for choices, through the model's chat template. From 400 million parameters.
large instruct
    The mean of two forms. Choices, through the chat template: listed, with weight 3, and not listed. Predicates: not
    listed, and listed, with a temperature of 0.7. "..." is the absent state of both. Scores: levels with letters, and
    listed. From a billion parameters.
"""


def name_of(n_params: int, *, has_chat_template: bool) -> str:
    """Return the name of the profile of a model with so many parameters."""
    if n_params < 400_000_000 or not has_chat_template:
        return "plain"
    return "instruct" if n_params < 1_000_000_000 else "large instruct"


def profile_by_file(llm: Llama) -> Profile:
    """Return a model's profile by what its file says."""
    with lease(llm):
        n_params = llama_cpp.llama_model_n_params(model_of(llm).model)
    return PROFILES[name_of(n_params, has_chat_template=has_chat_template(llm))]


def profile_of(llm: Llama) -> Profile:
    """Return a model's profile: the measured one if there is one, or by what its file says.

    ArgumentError if the file of the measured profile is damaged.
    """
    known = attachment(llm).known
    if "profile" not in known:
        known["profile"] = _measured(llm) or profile_by_file(llm)
    found: Profile = known["profile"]
    return found


def keep_profile(llm: Llama, profile: Profile) -> Path:
    """Keep a measured profile for this model in the user's cache; return its file.

    CalibrationError if the files of the model are not known; OSError if the file cannot be written.
    """
    path = _path(llm)
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {"format": _FORMAT, "version": _VERSION, **asdict(profile)}
    write_whole(path, json.dumps(stored, indent=1).encode())
    attachment(llm).known["profile"] = profile
    return path


def _path(llm: Llama) -> Path:
    return _folder() / f"{hashlib.sha256(fingerprint(llm).encode()).hexdigest()[:32]}.json"


def _folder() -> Path:
    return users_cache() / "profiles"


def _measured(llm: Llama) -> Profile | None:
    if not _folder().is_dir():
        return None  # without reading the model's files
    try:
        path = _path(llm)
        read = json.loads(path.read_text(encoding="utf-8"))
    except (CalibrationError, FileNotFoundError):
        return None
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{_folder()}: {error}; measure again with token-trie doctor --profile") from error
    try:
        if (read["format"], read["version"]) != (_FORMAT, _VERSION):
            raise ArgumentError(f"no {_FORMAT} of version {_VERSION}")
        forms = {kind: tuple(Form(**form) for form in read[kind]) for kind in ("choice", "predicate", "score")}
        if not all(forms.values()):
            raise ArgumentError("no forms")
        return Profile(MEASURED, **forms)
    except (KeyError, TypeError, ArgumentError) as error:
        raise ArgumentError(f"{path}: {error}; measure again with token-trie doctor --profile") from error


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
