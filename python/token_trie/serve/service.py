"""A server's configuration, and what its requests are answered by: a model, its sets and its calibrations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from token_trie.decisions.calibration import fingerprint
from token_trie.errors import CalibrationError
from token_trie.native.core import Llama, _core
from token_trie.questions.form import PreparedQuestion
from token_trie.questions.options import DecideOptions
from token_trie.questions.scores import LEAF_END
from token_trie.questions.searched import Prepared
from token_trie.serve.engine import Engine
from token_trie.serve.limits import Limits
from token_trie.serve.sets import Sets
from token_trie.trust.calibration import Calibration


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Options of a server; see ``token-trie serve --help``."""

    load: Callable[[], Llama]
    """Loads the model."""
    name: str
    """The name of the model in answers."""
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    allow_host: tuple[str, ...] = ()
    n_parallel: int = 0
    reproducible: bool = False
    sets: Path | None = None
    calibrations: tuple[Path, ...] = ()
    limits: Limits = field(default_factory=Limits)


class Calibrations:
    """Calibrations that were fitted on questions, by which the server answers them.

    CalibrationError for a file that is none, OSError for one that cannot be read.
    """

    def __init__(self, files: Iterable[Path] = ()) -> None:
        self._loaded = [(file, Calibration.load(file)) for file in files]
        self._of = {(one.binding.wording, one.classes): one for _, one in self._loaded}

    def require_fitting(self, llm: Llama) -> None:
        """Check them; CalibrationError for one of another model or llama.cpp, or of no question."""
        for file, one in self._loaded:
            try:
                parts = _question(one.binding.wording)
                if len(parts) < 2:
                    raise CalibrationError("was fitted on prompts; a server answers questions")
                if len(parts) > 2:
                    raise CalibrationError("was fitted with examples before the row, which a server does not have")
                own = (fingerprint(llm), _core.llama_loaded(), one.binding.wording, one.classes, LEAF_END)
                one.binding.require(type(one.binding)(*own))
            except CalibrationError as error:
                raise CalibrationError(f"{file}: {error}") from error

    def apply(self, question: Prepared, options: DecideOptions) -> Prepared:
        """Return a question with the calibration that was fitted on it, unless the options exclude it."""
        if not isinstance(question, PreparedQuestion) or options.calibration != DecideOptions.calibration:
            return question
        found = self._of.get((question.wording, question.classes)) if self._of else None
        if found is None or (found.needs_state and options.reproducible):
            return question
        return replace(question, calibrator=found)


def _question(wording: str) -> list[object]:
    """Return the orders and options of the question in a binding, and its examples if any; empty for prompts."""
    try:
        read = json.loads(wording)
    except ValueError:
        return []
    return [part for part in read if not isinstance(part, dict)] if isinstance(read, list) else []  # without forms


@dataclass(frozen=True)
class Service:
    """Answers requests."""

    config: ServerConfig
    engine: Engine
    sets: Sets
    calibrations: Calibrations

    @classmethod
    def start(cls, config: ServerConfig) -> Service:
        """Load the model, its sets and calibrations; TokenTrieError or OSError if one of them cannot be used."""
        calibrations, llm = Calibrations(config.calibrations), config.load()
        calibrations.require_fitting(llm)
        sets = Sets() if config.sets is None else Sets.read(llm, config.sets)
        engine = Engine(llm, n_parallel=config.n_parallel, reproducible=config.reproducible)
        return cls(config, engine, sets, calibrations)
