"""Results of a run: tables on the screen, JSON, and the page of benchmarks that is made of the JSON."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import track
from token_trie.native.core import _core

T = TypeVar("T")

_PACKAGES = ["llama-cpp-python", "llguidance", "xgrammar", "torch", "numpy"]
_TITLES = {
    "sampler": ("A token", "What the constraint costs at each sampling step, and to build the set."),
    "strict-guided": ("By a grammar", "The requests of an agent, decided by llama.cpp's GBNF."),
    "strict-trie-ffi": ("Over the C ABI", "The requests of an agent, decided by a stream that is called over cffi."),
    "decide": ("A decision", "Requests of an agent, their prompts evaluated already."),
    "score": ("Every probability", "Whole answers: as one tree, one by one, and the most probable of many."),
    "record": ("Tool calls", "Whole calls with their arguments."),
    "questions": ("Questions about a state", "Many questions at once, beside bare passes for the same tokens."),
    "many": ("Many prompts", "1 to 512 prompts at once."),
    "mask": ("Masks of batches", "Bits on the host and tensors on a device."),
    "states": ("Models with states", "What shared beginnings cost hybrids, of random weights in real shapes."),
    "serve": ("Servers", "Answers over HTTP, beside llama.cpp's own server."),
    "catalogue": ("Catalogues", "Ids and titles by the million."),
    "bfcl": ("Calls on a public suite", "The Berkeley Function Calling Leaderboard, version 4, by its own checker."),
    "verbatim": (
        "Verbatim values",
        "Fields of templated documents: invoices, reminders, mails, leases, notes, orders.",
    ),
    "sysone": ("Decisions on a public suite", "sysone-bench, version 2: classes, yes or no, and levels."),
    "schemas": (
        "Schemas",
        "The JSON Schema Test Suite, beside other engines: schemas, and values that the suite has for them.",
    ),
}


class Share(float):
    """A share of 1, shown in percent."""


def figure(value: float) -> str:
    """Return a number with three digits: 0.071, 12.5, 839, 71.1k, 1.07M."""
    if abs(value) >= 999_500:
        return f"{value / 1e6:.2f}M"
    if abs(value) >= 999.5:
        return f"{value / 1e3:.3g}k"
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3}f}"


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, Share):
        return f"{value:.1%}".replace("%", " %")
    return f"{value:,}" if isinstance(value, int) else figure(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Table:
    """A table: rows map headings to cells. Columns whose heading begins with > are flush right."""

    title: str
    rows: list[dict[str, Any]]
    caption: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the table in texts."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        rows = [[_text(row.get(name)) for name in columns] for row in self.rows]
        return {"title": self.title, "columns": columns, "rows": rows, "caption": self.caption}


def progress(items: Sequence[T], description: str) -> Iterable[T]:
    """Iterate with a progress bar, on a terminal."""
    return track(items, description, transient=True, disable=not sys.stdout.isatty())


@dataclass
class Results:
    """The results of one run."""

    mode: str
    tables: list[Table] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Raw figures of the picture."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Figures of the whole run, which are keys of the JSON."""

    def finish(self, output: Path | None, plot: Callable[[list[dict[str, Any]], Any], None] | None = None) -> None:
        """Print the tables and, if an output is given, write the JSON and the picture that a plot draws of the rows."""
        tables = [table.to_dict() for table in self.tables]
        console = Console()
        if not console.is_terminal:
            console.width = 190
        for table in tables:
            console.print(Markdown(_titled(table)))
        if output is None:
            return
        document = {
            "mode": self.mode,
            **self.figures,
            "command": shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "machine": _machine(),
            "versions": _versions(),
            "tables": tables,
            "rows": self.rows,
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(_lines(document) + "\n", encoding="utf-8")
        if plot is not None:
            from matplotlib.figure import Figure

            picture = Figure(layout="constrained")
            plot(self.rows, picture)
            picture.savefig(output.with_suffix(".png"), dpi=130)
        console.print(f"Written: {output}")


def _lines(value: Any) -> str:
    """Return JSON with a line for each member of what has lists inside."""
    if isinstance(value, dict) and any(isinstance(each, (list, dict)) for each in value.values()):
        return "{" + ",\n".join(f"{json.dumps(key)}: {_lines(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        return "[\n" + ",\n".join(map(_lines, value)) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def _machine() -> dict[str, Any]:
    """Return what the numbers depend on, without anything that names the machine."""
    cpuinfo = Path("/proc/cpuinfo")
    cpu = platform.processor() or platform.machine()
    if cpuinfo.exists():
        lines = (line.partition(":") for line in cpuinfo.read_text(encoding="utf-8").splitlines())
        cpu = next((value.strip() for key, _, value in lines if key.strip() == "model name"), cpu)
    return {"cpu": cpu, "cores": os.cpu_count()}


def _versions() -> dict[str, str]:
    out = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            continue
    return out | {"ggml": str(_core.llama_loaded())}


def page(paths: Sequence[Path], folder: Path) -> str:
    """Return the page of benchmarks in Markdown: of each run its command, its machine, its picture and its tables.

    folder: the folder of the page, from which pictures are linked.
    """
    runs = {path: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    parts = [
        "# Benchmarks",
        "`python -m bench page docs/results/*.json` makes this page from the JSON that the commands below wrote. All\n"
        "contenders of a table ran side by side in one run. `python -m bench --help` says what each mode measures.\n"
        "Where nothing else is said, prompts are plain text with examples, without a chat template.",
    ]
    for mode, (title, about) in _TITLES.items():
        for path, run in runs.items():
            if run["mode"] == mode:
                versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
                machine = f"{run['machine']['cores']} cores of {run['machine']['cpu']}"
                tables = run["tables"]
                title_of_one = f" **{tables[0]['title']}:**" if len(tables) == 1 else ""
                made = f"`{run['command']}`, {run['date'][:10]}, {machine}; {versions}."
                parts.append(f"## {title}\n{about} {made}{title_of_one}")
                if (picture := path.with_suffix(".png")).exists():
                    parts.append(f"![{mode}]({os.path.relpath(picture, folder)})")
                shown = _markdown if title_of_one else _titled
                for table, after in zip(tables, [*tables[1:], {}], strict=True):
                    is_last = table["caption"] != after.get("caption")
                    parts.append(shown(table if is_last else table | {"caption": ""}))
    return "\n\n".join(parts) + "\n"


def _titled(table: dict[str, Any]) -> str:
    return f"**{table['title']}**\n\n{_markdown(table)}"


def _markdown(table: dict[str, Any]) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ', ') for cell in cells)} |"

    lines = [
        line(column.removeprefix(">") for column in table["columns"]),
        f"|{'|'.join('---:' if column.startswith('>') else '---' for column in table['columns'])}|",
        *map(line, table["rows"]),
    ]
    return "\n".join([*lines, "", table["caption"].replace("\n", "  \n")] if table["caption"] else lines)
