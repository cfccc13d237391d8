"""How a question is asked of a model."""

from __future__ import annotations

from token_trie.decisions.questions.asked import Asked
from token_trie.decisions.questions.formed import FormAsked
from token_trie.decisions.questions.options import DecideOptions
from token_trie.decisions.questions.question import Question
from token_trie.decisions.questions.trained import TrainedAsked, trained_of
from token_trie.errors import ArgumentError
from token_trie.native.core import Llama


def asked_of(question: Question, options: DecideOptions, llm: Llama | None) -> Asked:
    """Return how a question is asked: as the model was trained for it, if it was; in a form, if one is given.

    Raises
    ------
    ArgumentError
        The model was trained for it in a way that cannot be had here, or not with these options.
    """
    trained = None if llm is None or options.form is not None else trained_of(llm)
    if llm is None or trained is None:
        return FormAsked(question, options.form_of(question), options.orders)
    if options.think is not None:
        raise ArgumentError("think: the model was trained to decide without; give a form, and it is asked in that")
    return TrainedAsked.of(llm, question, trained)
