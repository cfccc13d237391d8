"""The command label, called in this process; the tiny model answers at random, and always the same."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from token_trie.cli import main

TEXTS = ["Pizza", 'say "yes", or no', "two\nlines", "?", "Paris; Pizza,", " spaces ", "naïve café", "no no no"]
PROMPT = "Review: {text}\\nAnswer:"
CHOICES = ["yes", "no", "Paris, Pizza"]
FIGURES = {"probability", "margin", "mass"}


# A shell's background job, as a test run may be, ignores the interrupt unless told otherwise.
_HEAR = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{_HEAR}; from token_trie.cli import main; main()"]


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Cli:
    """Calls the command in this process."""

    def __init__(self, folder: Path, model: Path, monkeypatch: Any, capfd: Any) -> None:
        self.folder, self.model, self._monkeypatch, self._capfd = folder, model, monkeypatch, capfd
        self.out = folder / "out.csv"

    def table(self, texts: list[str], name: str = "in.csv") -> Path:
        path = self.folder / name
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerows([["id", "text"], *([str(i), text] for i, text in enumerate(texts))])
        return path

    def arguments(self, table: object, *options: str, prompt: str = PROMPT, output: Path | None = None) -> list[str]:
        chosen = [part for text in CHOICES for part in ("-c", text)]
        asked = ["label", str(table), "-p", prompt, *chosen, "-m", str(self.model), "--n-ctx", "512"]
        return [*asked, "-o", str(output or self.out), *options]

    def label(self, table: object, *options: str, **more: Any) -> Done:
        return self.call(self.arguments(table, *options, **more))

    def call(self, arguments: list[str]) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["token-trie", *arguments])
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *self._capfd.readouterr())

    def rows(self, path: Path | None = None) -> list[dict[str, Any]]:
        path = path or self.out
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


def without_figures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in FIGURES} for row in rows]
