"""What the command line decides."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The same for every mode; a mode reads what concerns it."""

    models: list[str]
    output: Path | None
    rounds: int
    limit_s: float
