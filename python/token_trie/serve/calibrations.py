"""Calibrations that a server has, by the questions that they were fitted on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from token_trie.decisions.binding import fingerprint
from token_trie.decisions.questions.asked import Asked
from token_trie.decisions.questions.formed import FormAsked
from token_trie.decisions.questions.options import DecideOptions
from token_trie.decisions.questions.scores import LEAF_END
from token_trie.errors import CalibrationError
from token_trie.native.core import Llama, _core
from token_trie.serve.running import Running
from token_trie.trust.calibration import Calibration


class Calibrations:
    """Those of some files.

    Parameters
    ----------
    files : iterable of Path
    running : Running, optional
        The priors of all other questions, where they run along.

    Raises
    ------
    CalibrationError
        A file is none; OSError: it cannot be read.
    """

    def __init__(self, files: Iterable[Path] = (), running: Running | None = None) -> None:
        self.running = running
        self._loaded = [(file, Calibration.load(file)) for file in files]
        self._of = {(one.binding.asked, one.classes): one for _, one in self._loaded}

    def load(self, llm: Llama) -> None:
        """Let them be a model's.

        Raises
        ------
        CalibrationError
            One was fitted on another model or llama.cpp, or on no question.
        """
        if self.running is not None:
            self.running.load(llm)
        for file, one in self._loaded:
            try:
                asked = _question(one.binding.asked)
                if len(asked) < 3:
                    raise CalibrationError("was fitted on prompts; a server answers questions")
                if len(asked) > 3:
                    raise CalibrationError("was fitted behind examples, which a server has not")
                own = (fingerprint(llm), _core.llama_loaded(), one.binding.asked, one.classes, LEAF_END)
                one.binding.require(type(one.binding)(*own))
            except CalibrationError as error:
                raise CalibrationError(f"{file}: {error}") from error

    def apply(self, asked: Asked, options: DecideOptions) -> Asked:
        """Return a question with what was fitted on it, unless it is asked for as it is."""
        if not isinstance(asked, FormAsked) or options.calibration != "contextual" or options.think is not None:
            return asked
        found = self._of.get((asked.asked, asked.classes)) if self._of else None
        if found is None or (found.needs_state and options.reproducible):
            return asked
        return asked.calibrated(found)


def _question(asked: str) -> list[object]:
    """Return the form, orders and options of a question that something was fitted on; nothing for prompts."""
    try:
        read = json.loads(asked)
    except ValueError:
        return []
    return read if isinstance(read, list) else []
