"""What calibrates the labels of a table, and which of them a person is to look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from token_trie.cli.written import digest
from token_trie.errors import ArgumentError
from token_trie.trust.calibration import Calibration
from token_trie.trust.gate import Gate

Named: TypeAlias = Literal["raw", "contextual", "batch"]

_NAMES: dict[str, Named] = {"raw": "raw", "contextual": "contextual", "batch": "batch"}


@dataclass(frozen=True)
class Calibrating:
    """What calibrates, and from which probability on labels are decided."""

    given: Named | Calibration | None = None
    """None: what is usual of a prompt, or of a question."""
    gate: Gate | None = None

    @classmethod
    def read(cls, calibration: str | None, target_accuracy: float | None) -> Calibrating:
        """Read options of the command line.

        Raises
        ------
        ArgumentError, CalibrationError
            They are none, or do not fit each other.
        OSError
            A file cannot be read.
        """
        if calibration is None or calibration in _NAMES:
            if target_accuracy is not None:
                raise ArgumentError(
                    "--target-accuracy: needs --calibration FILE, a file from token-trie evaluate --fit"
                )
            return cls(None if calibration is None else _NAMES[calibration])
        found = Calibration.load(Path(calibration))
        return cls(found, None if target_accuracy is None else found.gate(target_accuracy))

    @property
    def columns(self) -> list[str]:
        """Those that it adds to a table."""
        return [] if self.gate is None else ["review"]

    def figures(self, probability: float) -> list[float]:
        """Return what stands in them: 1 where a person is to look."""
        return [] if self.gate is None else [float(not self.gate.decides(probability))]

    @property
    def marks(self) -> list[Any]:
        """What identifies it, where it is not the usual."""
        if self.given is None:
            return []
        given = self.given if isinstance(self.given, str) else digest(self.given.to_dict())
        return ["calibration", given, None if self.gate is None else self.gate.threshold]
