from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from labelling import CHOICES, COMMAND, PROMPT, TEXTS, Cli, without_figures
from token_trie import choose


def test_each_row_gets_what_choose_answers(cli: Cli, tiny: llama_cpp.Llama) -> None:
    done = cli.label(cli.table(TEXTS), "--probabilities")
    assert (done.code, done.out) == (0, "")
    rows = cli.rows()
    assert [row["text"] for row in rows] == TEXTS
    for row in rows:
        alone = choose(tiny, f"Review: {row['text']}\nAnswer:", CHOICES, probabilities=True)
        assert alone.probabilities is not None
        assert row["answer"] == alone.value
        expected = [alone.probability(alone.value), alone.margin, alone.mass, *alone.probabilities]
        figures = [row["probability"], row["margin"], row["mass"], *(row[f"p_{text}"] for text in CHOICES)]
        assert [float(figure) for figure in figures] == pytest.approx(expected, rel=0.02, abs=1e-4)
    counts = {text: sum(row["answer"] == text for row in rows) for text in CHOICES}
    for text, n in counts.items():
        assert not n or f"{text} " in done.err
    assert f"{len(TEXTS)} rows labelled" in done.err


@pytest.mark.parametrize("to", ["csv", "jsonl"])
@pytest.mark.parametrize("of", ["csv", "jsonl"])
def test_every_format_becomes_every_other(cli: Cli, of: str, to: str) -> None:
    cli.label(cli.table(TEXTS))
    expected = without_figures(cli.rows())
    table, output = cli.folder / f"in.{of}", cli.folder / f"labels.{to}"
    records = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    if of == "jsonl":
        table.write_text("\n".join(map(json.dumps, records)))
    options = ["--prefix", "its_"] if to == "jsonl" else []
    assert cli.label(table, *options, output=output).code == 0
    rows = cli.rows(output)
    if to == "jsonl":
        assert [row["id"] for row in rows] == [str(i) if of == "csv" else i for i in range(len(TEXTS))]
    plain = [{name.removeprefix("its_"): str(value) for name, value in row.items()} for row in rows]
    assert without_figures(plain) == expected


def test_a_line_break_at_the_end_of_a_prompts_file_is_no_part_of_the_prompt(cli: Cli) -> None:
    table, asked = cli.table(TEXTS[:3]), cli.folder / "ask.txt"
    assert cli.label(table).code == 0
    whole = cli.rows()
    asked.write_bytes(PROMPT.replace("\\n", "\r\n").encode() + b"\r\n")
    arguments = cli.arguments(table, "--prompt-file", str(asked), output=cli.folder / "out.jsonl")
    at = arguments.index("-p")
    assert cli.call(arguments[:at] + arguments[at + 2 :]).code == 0
    rows = cli.rows(cli.folder / "out.jsonl")
    assert [row["mass"] for row in rows] == [float(row["mass"]) for row in whole]


def test_standard_input_and_output_are_a_table_each(cli: Cli, monkeypatch: Any) -> None:
    lines = "\ufeff" + "".join(json.dumps({"text": text, "n": [1, None]}) + "\r\n\n" for text in TEXTS)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    done = cli.label("-", "--input-format", "jsonl", output=Path("-"))
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [(row["text"], row["n"]) for row in rows] == [(text, [1, None]) for text in TEXTS]
    assert "rows labelled" in done.err


def test_a_chat_is_asked_by_its_template(cli: Cli, tiny: llama_cpp.Llama) -> None:
    cli.label(cli.table(TEXTS), "--chat", prompt="{{{text}}}")
    for row in cli.rows():
        messages = [{"role": "user", "content": "{" + row["text"] + "}"}]
        assert row["answer"] == choose(tiny, messages, CHOICES).value


def test_a_cell_is_text_whatever_it_spells(cli: Cli, tiny: llama_cpp.Llama) -> None:
    texts = ["fine</s><s>", "poor<s> yes</s>", "good"]
    cli.label(cli.table(texts), "--probabilities", prompt="<s>Review: {text}</s>Answer:")
    for row in cli.rows():
        tokens = tiny.tokenize(b"<s>", add_bos=True, special=True)
        tokens += tiny.tokenize(b"Review: " + row["text"].encode(), add_bos=False, special=False)
        tokens += tiny.tokenize(b"</s>Answer:", add_bos=False, special=True)
        alone = choose(tiny, tokens, CHOICES, probabilities=True)
        assert row["answer"] == alone.value
        assert float(row["mass"]) == pytest.approx(alone.mass, rel=0.02, abs=1e-4)


def test_an_empty_table_becomes_an_empty_table(cli: Cli) -> None:
    done = cli.label(cli.table([]))
    assert (done.code, cli.out.read_text()) == (0, "id,text,answer,probability,margin,mass\n")
    assert "0 rows labelled" in done.err
    nothing = cli.folder / "in.jsonl"
    nothing.touch()
    assert cli.label(nothing, output=cli.folder / "out.jsonl").code == 0
    assert (cli.folder / "out.jsonl").read_bytes() == b""


def test_memory_does_not_grow_with_the_table(cli: Cli) -> None:
    peaks = []
    for n in (300, 2000):
        table, out = cli.table(["x" * 40] * n), cli.folder / f"{n}.csv"
        code = "import sys; sys.argv[0] = 'token-trie'\nfrom token_trie.cli import main\ntry:\n    main()\nfinally:\n"
        code += "    import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        done = subprocess.run(
            [sys.executable, "-c", code, *cli.arguments(table, output=out)],
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] * 1.1


def test_greedy_answers_are_those_of_choose_and_have_no_figures(cli: Cli, tiny: llama_cpp.Llama) -> None:
    assert cli.label(cli.table(TEXTS), "--mode", "greedy", "--threads", "1").code == 0
    for row in cli.rows():
        assert row["answer"] == choose(tiny, f"Review: {row['text']}\nAnswer:", CHOICES, mode="greedy").value
        assert list(row) == ["id", "text", "answer"]
    done = cli.label(cli.table(TEXTS), "--mode", "greedy", "--probabilities")
    assert (done.code, "only with --mode exact" in done.err) == (1, True)


def test_a_run_says_what_it_does_before_and_between_rows(cli: Cli, monkeypatch: Any) -> None:
    monkeypatch.setattr("token_trie.progress.SILENT_SECONDS", 1e-9)
    monkeypatch.setattr("token_trie.progress.SECONDS_BETWEEN_LINES", 0.0)
    lines = cli.label(cli.table(TEXTS)).err.splitlines()
    assert lines[0].startswith("labelling ")
    assert lines[0].endswith("in.csv")
    assert [line.split(",")[0] for line in lines[1 : 1 + len(TEXTS)]] == [f"{n + 1} rows" for n in range(len(TEXTS))]


def test_output_that_is_closed_is_refused_before_any_file_is_opened(cli: Cli) -> None:
    arguments = cli.arguments(cli.table(TEXTS), output=Path("-"))
    script = 'exec "$@" >&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, *arguments], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, "standard output is closed" in done.stderr) == (1, True)


def test_a_context_beyond_all_counts_is_refused_at_once(cli: Cli) -> None:
    done = cli.label(cli.table(TEXTS), "--n-ctx", "99999999999")
    assert (done.code, "--n-ctx" in done.err, cli.out.exists()) == (2, True, False)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (["yes"], "one choice, 'yes': each row would get it; give at least two"),
        (["yes", "yes"], "one choice, 'yes'"),
        (["billing=payments and charges", "sales"], "'billing=payments and charges': a description needs --question"),
        (["billing=payments", "sales=orders"], "'billing=payments': a description needs --question"),
        (["x=1", "x=2"], ""),
        (["a == b", "a"], ""),
    ],
)
def test_choices_that_cannot_work_are_refused(cli: Cli, choices: list[str], message: str) -> None:
    chosen = [part for text in choices for part in ("-c", text)]
    asked = ["label", str(cli.table(TEXTS[:2])), "-p", "{text}:", *chosen, "-m", str(cli.model), "--n-ctx", "512"]
    done = cli.call([*asked, "-o", str(cli.out)])
    assert done.code == bool(message)
    assert message in " ".join(done.err.split())
    assert cli.out.exists() == (not message)


def test_thousands_of_choices_are_labelled_step_by_step(cli: Cli) -> None:
    choices = cli.folder / "choices.txt"
    choices.write_text("".join(f"{i:05} {i * 7919 % 100_003:06}\n" for i in range(12_000)))
    asked = ["label", str(cli.table(TEXTS[:1])), "-p", "{text}:", "--choices-file", str(choices), "-m", str(cli.model)]
    refused = cli.call([*asked, "-o", str(cli.out)])
    assert refused.code == 1
    assert "12,000 choices: --mode exact evaluates" in refused.err
    assert "use --mode greedy" in " ".join(refused.err.split())
    assert cli.call([*asked, "-o", str(cli.out), "--mode", "greedy"]).code == 0
