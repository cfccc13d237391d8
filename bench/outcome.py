"""What a run ends with: tables on the screen, and the same in its JSON, from which the page of benchmarks is made."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.results import Results
from bench.table import bars_table

_TITLES = {
    "sampler": ("A token", "What the constraint costs at each sampling step, and to build the set."),
    "decide": ("A decision", "Requests of an agent, their prompts evaluated already."),
    "score": ("Every probability", "Whole answers: as one tree, one by one, and the most probable of many."),
    "record": ("Tool calls", "Whole calls with their arguments."),
    "questions": ("Questions about a state", "Many questions at once, beside bare passes for the same tokens."),
    "many": ("Many prompts", "1 to 512 prompts at once."),
    "mask": ("Masks of batches", "Bits on the host and tensors on a device."),
    "any": ("Any tokenization", "All tokens that spell a member."),
    "catalogue": ("Catalogues", "Ids and titles by the million."),
}


def show(console: Console, tables: Iterable[Table], results: Results[Any], output: Path | None) -> None:
    """Print tables and bars; write them and the results, where a file is given."""
    shown = [*tables, *([bars_table(results.bars)] if results.bars else [])]
    for table in shown:
        console.print(table)
    if output is not None:
        results.save(output, [_texts(table) for table in shown])
        console.print(f"Written: {output}")


def page(paths: Sequence[Path], folder: Path) -> str:
    """Return the page of benchmarks, in Markdown: of each run its command, its machine, its picture and its tables.

    folder: of the page, from which pictures are linked.
    """
    runs = {json.loads(path.read_text(encoding="utf-8"))["mode"]: path for path in paths}
    parts = [
        "# Benchmarks",
        "`python -m bench page docs/results/*.json` makes this page from the JSON that the commands below wrote. All\n"
        "contenders of a table ran side by side in one run. `python -m bench --help` says what each mode measures.",
    ]
    for mode, (title, about) in _TITLES.items():
        if mode in runs:
            parts += [f"## {title}", about, *_section(runs[mode], folder)]
    return "\n\n".join(parts) + "\n"


def _section(path: Path, folder: Path) -> list[str]:
    run = json.loads(path.read_text(encoding="utf-8"))
    machine = run["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items() if name != "token-trie")
    where = f"{run['date'][:10]}, {machine['cores']} cores of {machine['cpu']}; {versions}."
    picture = path.with_suffix(".png")
    pictures = [f"![{run['mode']}]({os.path.relpath(picture, folder)})"] if picture.exists() else []
    return [f"```sh\n{run['command']}\n```", where, *pictures, *map(_markdown, run["tables"])]


def _texts(table: Table) -> dict[str, Any]:
    def plain(text: Any) -> str:
        return "\n".join(line.strip() for line in Text.from_markup(str(text or "")).plain.splitlines())

    return {
        "title": plain(table.title),
        "columns": [(">" if column.justify == "right" else "") + plain(column.header) for column in table.columns],
        "rows": [list(row) for row in zip(*(map(plain, column.cells) for column in table.columns), strict=True)],
        "caption": plain(table.caption),
    }


def _markdown(table: dict[str, Any]) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ', ') for cell in cells)} |"

    lines = [
        f"**{table['title']}**",
        "",
        line(column.removeprefix(">") for column in table["columns"]),
        f"|{'|'.join('---:' if column.startswith('>') else '---' for column in table['columns'])}|",
        *map(line, table["rows"]),
    ]
    return "\n".join([*lines, "", table["caption"].replace("\n", "  \n")] if table["caption"] else lines)
