"""Records for the rows of a table; the tiny model writes at random, and always the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from commands import Command
from labelling import TEXTS, Cli
from token_trie import fill
from token_trie.sets.prompt import text_of

N_ROWS = int(os.environ.get("ROWS", "160"))
N_KILLS = int(os.environ.get("KILLS", "5"))
SCHEMA = {
    "$defs": {"Team": {"enum": ["sales", "support"]}},
    "type": "object",
    "properties": {
        "team": {"$ref": "#/$defs/Team"},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "late": {"type": "boolean"},
        "share": {"enum": [0.5, 1, None]},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "truncated": {"type": "string", "maxLength": 4},
    },
    "required": ["team", "n", "tags", "share", "truncated"],
    "additionalProperties": False,
}
PROMPT = "Mail: {text}\\nOrder:"
FIELDS = ["team", "n", "late", "share", "tags", "truncated"]


def arguments(cli: Cli, table: Path, output: Path, *options: str, schema: object = SCHEMA) -> list[str]:
    file = cli.folder / "schema.json"
    file.write_text(json.dumps(schema))
    asked = ["extract", str(table), "--schema", str(file), "-p", PROMPT, "-m", str(cli.model), "--n-ctx", "512"]
    return [*asked, "-o", str(output), "--mode", "greedy", "--max-tokens", "8", *options]


def expected(model: llama_cpp.Llama, text: str, schema: object = SCHEMA) -> dict[str, Any]:
    record = fill(model, f"Mail: {text}\nOrder:", schema, mode="greedy", max_tokens=8)
    assert isinstance(record.value, dict)
    return record.value


def test_each_row_gets_the_record_that_fill_writes(cli: Cli, tiny: llama_cpp.Llama) -> None:
    output = cli.folder / "out.jsonl"
    done = cli.call(arguments(cli, cli.table(TEXTS), output))
    assert (done.code, done.out) == (0, ""), done.err
    rows = cli.rows(output)
    assert [row["text"] for row in rows] == TEXTS
    for row in rows:
        record = expected(tiny, row["text"])
        assert {name: row[name] for name in FIELDS} == {name: record.get(name) for name in FIELDS}
        assert list(row)[-1] == "_truncated"
    assert f"{len(TEXTS)} records extracted" in done.err
    n_absent = sum(row["late"] is None for row in rows)
    assert any(line.split() == ["late", str(n_absent), f"{100 * n_absent / 8:.1f}"] for line in done.err.splitlines())


def test_verbatim_values_are_of_the_columns_in_the_prompt(cli: Cli) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "x_verbatim": True}}, "required": ["a"]}
    output = cli.folder / "out.jsonl"
    assert cli.call(arguments(cli, cli.table(["Åse", "Bo"]), output, schema=schema)).code == 0
    assert [row["a"] for row in cli.rows(output)] == ["Åse", "Bo"]


def test_flat_fields_are_their_texts_in_csv_and_others_are_json(cli: Cli) -> None:
    lines, output = cli.folder / "out.jsonl", cli.folder / "out.csv"
    table = cli.table(TEXTS)
    for path in (lines, output):
        assert cli.call(arguments(cli, table, path)).code == 0
    for row, record in zip(cli.rows(output), cli.rows(lines), strict=True):
        assert [row[name] for name in FIELDS] == [text_of(record[name]) for name in FIELDS]


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_a_run_that_is_killed_again_and_again_has_each_row_once(cli: Cli, name: str) -> None:
    output = cli.folder / name
    texts = [f"{text} {i}" for i in range(N_ROWS // len(TEXTS)) for text in TEXTS]
    table = cli.table(texts)
    command = arguments(cli, table, output)
    n_killed = 0
    while n_killed < (N_KILLS if name == "out.jsonl" else 2):
        size = output.stat().st_size if output.exists() else 0
        with Command(command, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 300
            while not output.exists() or output.stat().st_size < size + len(texts) // 4:
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
        n_killed += 1
        with output.open("ab") as file:
            file.write(b'{"id": "half a ro')
    done = cli.call(arguments(cli, table, output))
    assert done.code == 0, done.err
    assert [row["text"] for row in cli.rows(output)] == texts
    assert "records extracted" in done.err
    assert "were there already" in done.err


def test_a_type_is_read_from_a_module_and_what_it_refuses_is_left_out(cli: Cli, monkeypatch: Any) -> None:
    pytest.importorskip("pydantic")
    (cli.folder / "its_shop.py").write_text(
        "from typing import Literal\n"
        "import pydantic\n"
        "class Order(pydantic.BaseModel):\n"
        "    team: Literal['sales', 'support']\n"
        "    @pydantic.field_validator('team')\n"
        "    @classmethod\n"
        "    def refuse(cls, team):\n"
        "        raise ValueError('never')\n"
        "class Raising(Order):\n"
        "    @pydantic.field_validator('team')\n"
        "    @classmethod\n"
        "    def refuse(cls, team):\n"
        "        raise KeyError('of no table')\n"
        "class Team(pydantic.BaseModel):\n"
        "    team: Literal['sales', 'support'] | None\n"
    )
    monkeypatch.chdir(cli.folder)
    output = cli.folder / "out.jsonl"

    def extract(kind: str, *options: str) -> Any:
        asked = ["extract", str(cli.table(TEXTS)), "--type", kind, "-p", PROMPT, "-m", str(cli.model), "--n-ctx", "512"]
        return cli.call([*asked, "-o", str(output), *options])

    refused = extract("its_shop:Order", "--on-error", "skip")
    assert refused.code == 0
    assert "0 records extracted, 8 left out (8 refused by the type)" in refused.err
    raising = extract("its_shop:Raising", "--on-error", "skip")
    assert "0 records extracted, 8 left out (8 refused by the type)" in raising.err
    assert "KeyError('of no table')" in raising.err
    assert extract("its_shop:Order").code == 1
    assert output.read_bytes() == b""
    assert extract("its_shop:Team").code == 0
    assert {row["team"] for row in cli.rows(output)} <= {"sales", "support", None}
    assert "ModuleNotFoundError" in extract("nowhere:Order").err
    assert "'its_shop' is not MODULE:CLASS" in extract("its_shop").err


def test_values_that_end_early_are_named(cli: Cli) -> None:
    output = cli.folder / "out.csv"
    schema = {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]}
    done = cli.call(arguments(cli, cli.table(TEXTS), output, schema=schema))
    assert done.code == 0, done.err
    truncated = [row["truncated"] for row in cli.rows(output)]
    assert set(truncated) <= {"", "/note"}
    assert f"{truncated.count('/note')} of them with a truncated value" in done.err


def test_rows_without_a_record_are_left_out_with_their_lines(cli: Cli) -> None:
    table = cli.table(["good", "word " * 2000, "fine"])
    done = cli.call(arguments(cli, table, cli.out, "--on-error", "skip"))
    assert done.code == 0, done.err
    assert f"{table}, line 3: " in done.err
    assert "prompts[" not in done.err
    assert "2 records extracted, 1 left out" in done.err
    assert [row["text"] for row in cli.rows()] == ["good", "fine"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--type", "a:b"], "--schema and --type: use exactly one of them"),
        (["--prompt-file", "p.txt"], "--prompt and --prompt-file: use only one of them"),
        (["-p", "{nothing}"], "no column 'nothing', which the prompt has; there are id, text"),
    ],
)
def test_options_that_do_not_fit_are_refused(cli: Cli, options: list[str], message: str) -> None:
    done = cli.call(arguments(cli, cli.table(TEXTS), cli.out, *options))
    assert (done.code, message in done.err, cli.out.exists()) == (1, True, False)


def test_a_schema_that_cannot_be_kept_is_refused_before_the_model_is_loaded(cli: Cli) -> None:
    done = cli.call(arguments(cli, cli.table(TEXTS), cli.out, "-m", "nowhere.gguf", schema={"not": {}}))
    assert (done.code, "not" in done.err, "nowhere.gguf" in done.err) == (1, True, False)
