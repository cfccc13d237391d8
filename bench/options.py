"""What the command line decides."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The same for every mode; a mode reads what concerns it."""

    mode: str
    models: list[str]
    output: Path | None
    rounds: int | None  # None: the mode's own
    limit_s: float
    prompt: str | None
    descriptor: Path | None
    n_gpu_layers: int
    device: str | None  # None: where llama.cpp puts the layers
    threads: int
    prompts: int
    members: list[int] | None = None  # None: the mode's own
