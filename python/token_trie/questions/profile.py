"""Profiles: how a model is asked, by type of question."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from token_trie.decisions.calibration import fingerprint
from token_trie.errors import ArgumentError, CalibrationError
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.files import write_whole
from token_trie.native.lifetime import attachment, lease
from token_trie.native.llama_facts import model_of
from token_trie.native.loaded import users_cache
from token_trie.questions.form import Form, lists_options
from token_trie.questions.options import FORMS, LIST
from token_trie.questions.question import Choice, Predicate, Question, is_searched
from token_trie.sets.prompt import has_chat_template

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


BRIEFLY = Form("Text:\n{{ state }}\n\n{{ instructions }}\nAnswer in one or two words.", chat=True)
FROM_LIST = Form(
    f"{LIST}\nText:\n{{{{ state }}}}\n\nAnswer with one of the names above alone.",
    reads="names",
    chat=True,
    prior=False,
)
# It begins as `BRIEFLY` does, so that both together read the state once.
BY_NAME = Form(
    f"Text:\n{{{{ state }}}}\n\n{LIST}\nAnswer with the name of one option.", reads="names", chat=True, prior=False
)

_PLAIN, _BRIEFLY_RAW = FORMS["unlisted"], replace(BRIEFLY, prior=False)

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("plain", (_PLAIN,), (_PLAIN,), (_PLAIN,)),
        Profile("instruct", (BRIEFLY,), (_PLAIN,), (_PLAIN,)),
        Profile("large instruct", (BRIEFLY, BY_NAME), (_PLAIN, _BRIEFLY_RAW), (_PLAIN,)),
    )
}
"""Profiles by name.

plain
    The question follows the state, and the options are not listed. For small models and those without a chat template.
instruct
    The same for choices, through the model's chat template. From 400 million parameters.
large instruct
    The mean of two forms for choices, not listed and listed, both after the state, which is read once for both. From a
    billion parameters.
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
