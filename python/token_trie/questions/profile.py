"""Profiles: how a model is asked, by type of question."""

from __future__ import annotations

from dataclasses import dataclass, replace

from token_trie.native.core import Llama, llama_cpp
from token_trie.native.lifetime import attachment, lease
from token_trie.native.llama_facts import model_of
from token_trie.questions.form import Form
from token_trie.questions.options import FORMS
from token_trie.questions.question import Choice, Predicate, Question
from token_trie.sets.prompt import has_chat_template

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
        The forms of each type of question, whose log-weights are averaged. The first form is the best one alone, and
        does not list the options.
    """

    name: str
    choice: tuple[Form, ...]
    predicate: tuple[Form, ...]
    score: tuple[Form, ...]

    def forms(self, question: Question) -> tuple[Form, ...]:
        """Return the forms of a question; of one with very long options, only forms that do not list them."""
        if isinstance(question, Predicate):
            return self.predicate
        forms = self.choice if isinstance(question, Choice) else self.score
        n_characters = sum(len(option.name) + len(option.texts[0]) for option in question.wording)
        return forms if n_characters <= _MAX_LISTED else forms[:1]


_BRIEFLY = Form("Text:\n{{ state }}\n\n{{ instructions }}\nAnswer in one or two words.", chat=True)
_FROM_LIST = Form(
    """\
{{ instructions }}
{% for option in options %}
- {{ option.name }}{% if option.description != option.name %}: {{ option.description }}{% endif %}

{% endfor %}

Text:
{{ state }}

Answer with one of the names above alone.""",
    reads="names",
    chat=True,
    prior=False,
)

_PLAIN, _LISTED, _BRIEFLY_RAW = FORMS["unlisted"], replace(FORMS["listed"], prior=False), replace(_BRIEFLY, prior=False)

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("plain", (_PLAIN,), (_PLAIN,), (_PLAIN,)),
        Profile("instruct", (_BRIEFLY,), (_PLAIN,), (_PLAIN,)),
        Profile(
            "large instruct", (replace(_BRIEFLY, weight=2.0), _FROM_LIST, _LISTED), (_PLAIN, _BRIEFLY_RAW), (_PLAIN,)
        ),
    )
}
"""Profiles by name.

plain
    The question follows the state, and the options are not listed. For small models and those without a chat template.
instruct
    The same for choices, through the model's chat template. From 400 million parameters.
large instruct
    The mean of three forms for choices: not listed, with the weight of the others together; listed before the state, so
    that the list is read once for many states; and listed after it. From a billion parameters.
"""


def name_of(n_params: int, *, has_chat_template: bool) -> str:
    """Return the name of the profile of a model with so many parameters."""
    if n_params < 400_000_000 or not has_chat_template:
        return "plain"
    return "instruct" if n_params < 1_000_000_000 else "large instruct"


def profile_of(llm: Llama) -> Profile:
    """Return a model's profile, by what its file says."""
    known = attachment(llm).known
    if "profile" not in known:
        with lease(llm):
            n_params = llama_cpp.llama_model_n_params(model_of(llm).model)
        known["profile"] = PROFILES[name_of(n_params, has_chat_template=has_chat_template(llm))]
    found: Profile = known["profile"]
    return found
