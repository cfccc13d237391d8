"""Results of any mode, and their JSON."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from token_trie.llama.devices import devices
from token_trie.native.core import _core

from bench.native import Samples

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")

SCHEMA = "token-trie-bench/1"
_PACKAGES = ["token-trie", "llama-cpp-python", "llguidance", "xgrammar", "torch", "numpy"]


@dataclass(frozen=True)
class Row:
    """One contender, one quantity: microseconds, or the reason why there are none."""

    model: str
    n_vocab: int
    set: str
    leaves: int
    branching: int  # tokens that an answer can begin with
    contender: str
    quantity: str
    n: int = 0
    p10_us: float | None = None
    median_us: float | None = None
    p90_us: float | None = None
    failed: str | None = None
    rows: int = 1  # of logits, in one call

    @staticmethod
    def of(samples: Samples, **where: Any) -> "Row":
        """Return the row of some nanoseconds."""
        p10, median, p90 = (round(float(v) / 1000, 4) for v in np.percentile(samples, [10, 50, 90]))
        return Row(**where, n=len(samples), p10_us=p10, median_us=median, p90_us=p90)


@dataclass(frozen=True)
class Bar:
    """A bar, and what was measured: the ratio has to be at least, or at most, the limit."""

    text: str
    ratio: float | None  # None: could not be measured
    at_least: bool
    limit: float
    unit: str = "x"  # "%": both are shares of one; "": both are counts

    @property
    def met(self) -> bool | None:
        """Return whether the bar is met; None if unknown."""
        if self.ratio is None:
            return None
        return self.ratio >= self.limit if self.at_least else self.ratio <= self.limit


@dataclass
class Results(Generic[R]):
    """What one run measured."""

    mode: str
    settings: dict[str, Any]
    rows: list[R] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def save(self, path: Path, tables: Sequence[dict[str, Any]] = ()) -> None:
        """Write the JSON, with the machine and the versions; a single row is also at the top level.

        tables: what people were shown, each with its title, columns and rows of texts.
        """
        document = {
            **(asdict(self.rows[0]) if len(self.rows) == 1 else {}),
            "schema": SCHEMA,
            "mode": self.mode,
            "command": shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": versions(),
            "settings": self.settings,
            "bars": [asdict(bar) | {"met": bar.met} for bar in self.bars],
            "checks": self.checks,
            "rows": [asdict(row) for row in self.rows],
            "tables": list(tables),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Return what the numbers depend on, without anything that names the machine."""
    cpuinfo = Path("/proc/cpuinfo")
    cpu = platform.processor() or platform.machine()
    if cpuinfo.exists():
        lines = (line.partition(":") for line in cpuinfo.read_text(encoding="utf-8").splitlines())
        cpu = next((value.strip() for key, _, value in lines if key.strip() == "model name"), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "devices": [{"backend": each.backend, "name": each.description} for each in devices()],
    }


def versions() -> dict[str, str]:
    """Return the versions of all that took part."""
    out = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            continue
    return out | {"ggml": _core.llama_loaded()}
