"""Rows labelled by the answer to a question."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from labelling import TEXTS, Cli
from tiny_model import write_tiny_model
from token_trie import Choice, Examples, decide
from token_trie.questions.options import FORMS

QUESTION = "Which team?"
TEAMS = {"billing": "yes Paris", "sales": None, "other": "Pizza = food"}
GIVEN = [f"{name}={text}" if text else name for name, text in TEAMS.items()]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)
FIGURES = ("probability", "confidence", "mass")
BOTH = ("--column", "id", "--column", "text")
TEXT = ("--column", "text")


def label(cli: Cli, table: Path, *options: str, given: list[str] = GIVEN, output: Path | None = None) -> Any:
    chosen = [part for one in given for part in ("-c", one)]
    asked = ["label", str(table), "-q", QUESTION, *chosen, "-m", str(cli.model), "--n-ctx", "1024"]
    return cli.call([*asked, "-o", str(output or cli.out), *options])


@pytest.mark.parametrize("form", [None, "listed"])
def test_each_row_gets_what_decide_answers(cli: Cli, tiny: llama_cpp.Llama, form: Any) -> None:
    done = label(cli, cli.table(TEXTS), *BOTH, "--probabilities", *(["--form", form] if form else []))
    assert (done.code, done.out) == (0, "")
    rows = cli.rows()
    assert list(rows[0])[2:6] == ["value", *FIGURES]
    for i, (row, text) in enumerate(zip(rows, TEXTS, strict=True)):
        alone = decide(tiny, {"id": str(i), "text": text}, Choice(QUESTION, TEAMS), form=form)
        assert row["value"] == alone.value
        expected = [alone.probabilities[alone.value], alone.confidence, alone.mass, *alone.probabilities.values()]
        figures = [row[name] for name in (*FIGURES, *(f"p_{team}" for team in TEAMS))]
        assert [float(figure) for figure in figures] == pytest.approx(expected, rel=0.05, abs=1e-3)
    assert f"{len(TEXTS)} rows labelled" in done.err
    assert "less than 1 %" not in done.err


def test_examples_of_a_table_stand_before_each_row(cli: Cli, tiny: llama_cpp.Llama) -> None:
    known = cli.folder / "known.jsonl"
    rows = [{"text": text, "team": team} for text, team in [("Pizza yes", "other"), ("I paid", "billing")]]
    known.write_text("\n".join(json.dumps(row) for row in [*rows, {"text": "no answer", "team": ""}]))
    done = label(cli, cli.table(TEXTS), "-p", "{text}", "--examples", str(known), "--gold", "team")
    assert done.code == 0, done.err
    examples = Examples([row["text"] for row in rows], [row["team"] for row in rows])
    for row, text in zip(cli.rows(), TEXTS, strict=True):
        alone = decide(tiny, text, Choice(QUESTION, TEAMS), examples=examples)
        assert float(row["probability"]) == pytest.approx(alone.probabilities[row["value"]], rel=0.05)


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        (None, ["--examples-each", "2"], "only with --examples"),
        (['{"text": "a", "team": "billing"}'], [], "needs --gold"),
        (
            ['{"text": "a", "team": "billing"}', '{"text": "b", "team": "none"}'],
            ["--gold", "team"],
            "'none' is none of",
        ),
        (['{"text": "a", "team": "billing"}', "{"], ["--gold", "team"], "known.jsonl, line 2"),
        ([], ["--gold", "team"], "no row with an answer"),
    ],
)
def test_invalid_examples_are_refused(cli: Cli, rows: list[str] | None, options: list[str], told: str) -> None:
    known = cli.folder / "known.jsonl"
    known.write_text("\n".join(rows or []))
    done = label(cli, cli.table(TEXTS), *TEXT, *options, *(["--examples", str(known)] if rows is not None else []))
    assert done.code == 1
    assert told in " ".join(done.err.split())
    assert not cli.out.exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--mode", "greedy"], "--mode: not with --question"),
        (["--leaf-end", "any"], "--leaf-end: not with --question"),
        (["-c", "billing=else"], "'billing' is given twice"),
        (["-c", "=else"], "no name before the ="),
        (["--orders", "2"], "--orders: needs --form listed or letters"),
        (["-p", "{nothing}"], "no column 'nothing'"),
        (["--column", "nothing"], "no column 'nothing', which --column names; the columns are id, text"),
        (["--column", "text", "-p", "{text}"], "--column and --prompt: use only one of them"),
        (["--gold", "tem"], "no column 'tem', which --gold names; the columns are id, text"),
        (["--calibration", "bacth"], "--calibration: 'bacth' is none of raw, contextual, batch, and no file"),
    ],
)
def test_options_that_exclude_each_other_are_refused(cli: Cli, options: list[str], told: str) -> None:
    read = () if {"-p", "--column"} & {*options} else TEXT
    done = label(cli, cli.table(TEXTS), *read, *options)
    assert done.code == 1
    assert told in done.err
    assert not cli.out.exists()


def test_a_name_and_its_description_are_read_without_the_spaces_around_them(cli: Cli) -> None:
    assert label(cli, cli.table(TEXTS), *TEXT, given=[part.replace("=", " = ", 1) for part in GIVEN]).code == 0
    before = cli.out.read_bytes()
    cli.out.unlink()
    assert label(cli, cli.table(TEXTS), *TEXT).code == 0
    assert cli.out.read_bytes() == before


def test_a_form_wants_a_question(cli: Cli) -> None:
    for option, value in (("--form", "listed"), ("--orders", "2")):
        done = cli.label(cli.table(TEXTS), option, value)
        assert (done.code, f"{option}: only with --question" in done.err) == (1, True)


def test_a_model_without_a_chat_template_is_not_asked_by_one(cli: Cli) -> None:
    done = label(cli, cli.table(TEXTS), *TEXT, "--chat")
    assert (done.code, "--chat: this model's file has no chat template" in done.err) == (1, True)
    assert not cli.out.exists()


@pytest.mark.parametrize(
    ("form", "orders", "chat"), [(None, 1, True), ("letters", 3, False), ("letters", 1, True), ("listed", 2, True)]
)
def test_forms_orders_and_chat_are_those_of_decide(cli: Cli, form: Any, orders: int, chat: bool) -> None:
    cli.model = cli.folder / "chat.gguf"
    write_tiny_model(cli.model, said={"tokenizer.chat_template": TEMPLATE})
    llm = llama_cpp.Llama(str(cli.model), n_ctx=1024, verbose=False)
    options = [*(["--form", form] if form else []), "--orders", str(orders), *(["--chat"] if chat else [])]
    assert label(cli, cli.table(TEXTS), "-p", "A review: {text}", *options).code == 0
    for row, text in zip(cli.rows(), TEXTS, strict=True):
        put = replace(FORMS[form or "unlisted"], chat=chat)
        alone = decide(llm, f"A review: {text}", Choice(QUESTION, TEAMS), form=put, orders=orders)
        assert float(row["probability"]) == pytest.approx(alone.probabilities[row["value"]], rel=0.05)


def test_the_columns_that_are_named_are_read(cli: Cli, tiny: llama_cpp.Llama) -> None:
    table = cli.folder / "in.jsonl"
    table.write_text("".join(json.dumps({"text": text, "team": "sales"}) + "\n" for text in TEXTS))
    assert label(cli, table, "--column", "text").code == 0
    for row, text in zip(cli.rows(), TEXTS, strict=True):
        alone = decide(tiny, text, Choice(QUESTION, TEAMS))
        assert float(row["probability"]) == pytest.approx(alone.probabilities[alone.value], rel=0.05)
    done = label(cli, table, output=cli.folder / "other.csv")
    assert done.code == 1
    assert "name the column to read with --column; the columns are text, team" in " ".join(done.err.split())


def test_the_summary_names_choices_that_no_row_got(cli: Cli) -> None:
    done = label(cli, cli.table(TEXTS[:1]), *TEXT, "--calibration", "raw")
    (value,) = {row["value"] for row in cli.rows()}
    assert f"no row got: {', '.join(team for team in TEAMS if team != value)}" in done.err


def test_the_summary_says_if_rows_are_too_few_for_their_mean(cli: Cli) -> None:
    done = label(cli, cli.table(TEXTS[:7]), *TEXT, "--calibration", "batch")
    assert "fewer than 8 rows are too few for --calibration batch: the probabilities are the model's own" in done.err
