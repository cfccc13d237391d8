"""How a question is asked of a model."""

from __future__ import annotations

from dataclasses import replace

from token_trie.decisions.binding import Binding, fingerprint
from token_trie.decisions.calibrator import Calibrator
from token_trie.decisions.questions.asked import Asked
from token_trie.decisions.questions.examples import Examples
from token_trie.decisions.questions.formed import FormAsked
from token_trie.decisions.questions.options import DecideOptions
from token_trie.decisions.questions.question import Question
from token_trie.decisions.questions.scores import LEAF_END
from token_trie.decisions.questions.trained import TrainedAsked, trained_of
from token_trie.errors import ArgumentError
from token_trie.native.core import Llama, _core


def asked_of(question: Question, options: DecideOptions, llm: Llama | None) -> Asked:
    """Return how a question is asked: as the model was trained for it, if it was; in a form, if one is given.

    Raises
    ------
    ArgumentError
        The model was trained for it in a way that cannot be had here, or not with these options.
    CalibrationError
        The options have a calibration of something else.
    """
    trained = None if llm is None or options.form is not None else trained_of(llm)
    if llm is None or trained is None:
        return _in_form(question, options, llm)
    if options.think is not None:
        raise ArgumentError("think: the model was trained to decide without; give a form, and it is asked in that")
    if options.examples is not None:
        raise ArgumentError("examples: the model was trained to decide without; give a form")
    if isinstance(options.calibration, Calibrator):
        raise ArgumentError("calibration: the model was trained to decide, by temperatures of its own; give a form")
    return TrainedAsked.of(llm, question, trained)


def _in_form(question: Question, options: DecideOptions, llm: Llama | None) -> FormAsked:
    examples = options.examples if isinstance(options.examples, Examples) else None
    asked = FormAsked(question, options.form_of(question), options.orders, examples=examples)
    calibrator = options.calibration
    if not isinstance(calibrator, Calibrator):
        return asked
    calibrator.binding.require(Binding(fingerprint(llm), _core.llama_loaded(), asked.asked, asked.classes, LEAF_END))
    return replace(asked, calibrator=calibrator)
