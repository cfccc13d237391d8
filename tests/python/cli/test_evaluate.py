"""The command evaluate, called in this process."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
import token_trie
from labelling import Cli, Done
from token_trie.trust.evaluate import EvaluationRows

FRUITS, CARS = ["apple", "pear", "plum", "fig"], ["van", "bus", "tram", "lorry"]
TEXTS = [f"{a} {b}" for words in (FRUITS, CARS) for a in words for b in words if a != b]
GOLD = ["yes"] * 12 + ["no"] * 12
PROMPT = "{text}: yes or no?"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


BOTH = ("--column", "id", "--column", "text")


def table(cli: Cli, gold: list[Any], texts: list[str] = TEXTS, name: str = "gold.csv") -> Path:
    path = cli.folder / name
    rows = [{"id": i, "text": text, "team": label} for i, (text, label) in enumerate(zip(texts, gold, strict=True))]
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".csv":
            writer = csv.DictWriter(file, ["id", "text", "team"])
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def evaluate(cli: Cli, given: Path, *options: str, asked: tuple[str, ...] = ("-p", PROMPT)) -> Done:
    chosen = ["-c", "yes", "-c", "no", "-m", str(cli.model), "--n-ctx", "512"]
    return cli.call(["evaluate", str(given), *asked, "--gold", "team", *chosen, "--folds", "3", *options])


def told(done: Done) -> Any:
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_an_answer_that_no_row_has_is_reported(cli: Cli) -> None:
    done = evaluate(cli, table(cli, GOLD), "-c", "maybe", "--way", "exact")
    assert done.code == 0
    assert "no row is 'maybe'" in done.out


def test_a_question_is_measured_after_examples(cli: Cli, tiny: Any) -> None:
    known = table(cli, ["yes", "no"], ["quince", "ship"], "known.csv")
    asked = ("-q", "Is it a fruit?", "-p", "{text}", "--examples", str(known))
    found = told(evaluate(cli, table(cli, GOLD), "--json", "--way", "exact", asked=asked))
    own = token_trie.evaluate(
        tiny,
        TEXTS,
        GOLD,
        token_trie.Choice("Is it a fruit?", ["yes", "no"]),
        ways=["exact"],
        examples=token_trie.Examples(["quince", "ship"], ["yes", "no"]),
    )
    assert found["ways"]["exact"]["log_loss"] == pytest.approx(own.ways[0].figures.log_loss, rel=0.02)
    both = evaluate(cli, table(cli, GOLD), asked=("-q", "Is it?", *BOTH, "--examples", str(table(cli, GOLD))))
    assert both.code == 1
    assert "line 2: is among the examples" in " ".join(both.err.split())


def test_a_table_is_measured_as_python_measures_it(cli: Cli, tiny: Any) -> None:
    found = told(evaluate(cli, table(cli, GOLD), "--json"))
    own = token_trie.evaluate(
        tiny,
        [PROMPT.format(text=text) for text in TEXTS],
        GOLD,
        ["yes", "no"],
        empty=PROMPT.format(text="N/A"),
        texts=TEXTS,
        n_folds=3,
    )
    assert list(found["ways"]) == [way.name for way in own.ways]
    for way in own.ways:
        for name in ("accuracy", "log_loss", "ece"):
            assert found["ways"][way.name][name] == pytest.approx(getattr(way.figures, name), rel=0.02, abs=0.02), (
                way.name
            )
    assert found["n_rows"] == 24


def test_a_second_look_reads_no_row(cli: Cli) -> None:
    given = table(cli, GOLD)
    done = evaluate(cli, given, "--json")
    assert told(done)["n_read"] == 25  # and the prompt without content
    assert f"what the model said of the rows is in {cli.folder / 'cache' / 'token-trie' / 'readings'}" in done.err
    picture, fitted = cli.folder / "picture.png", cli.folder / "fitted.json"
    again = evaluate(cli, given, "--plot", str(picture), "--fit", str(fitted), "--way", "head", "--way", "exact")
    assert again.code == 0, again.err
    assert "24 rows, 2 choices; 0 rows read by the model" in again.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(fitted.read_text())
    assert told(evaluate(cli, given, "--json", "--no-cache"))["n_read"] == 25
    assert told(evaluate(cli, given, "--json", "--cache", str(cli.folder / "own")))["n_read"] == 25
    assert [*(cli.folder / "own").iterdir()]


def test_the_gold_column_is_not_what_a_question_is_about(cli: Cli, tiny: Any) -> None:
    found = told(
        evaluate(cli, table(cli, GOLD), "--json", "--way", "contextual", asked=("-q", "Is it a fruit?", *BOTH))
    )
    question = token_trie.Choice("Is it a fruit?", ["yes", "no"])
    states = [{"id": str(i), "text": text} for i, text in enumerate(TEXTS)]
    answers: Any = list(token_trie.decide_many(tiny, states, question))
    right = [answer.value == gold for answer, gold in zip(answers, GOLD, strict=True)]
    assert found["ways"]["contextual"]["accuracy"] == pytest.approx(sum(right) / 24, abs=0.05)


def test_the_terminal_has_a_row_a_way(cli: Cli) -> None:
    done = evaluate(cli, table(cli, GOLD), "--way", "exact", "--way", "majority", "--way", "words")
    lines = [line.split() for line in done.out.splitlines() if line.strip()]
    at = [line[0] for line in lines].index("exact")
    assert [line[0] for line in lines[at : at + 3]] == ["exact", "majority", "words"]
    assert lines[at + 1][1:3] == ["50.0", "31–69"]
    assert [line[0] for line in lines].count("row") == 3


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({3: "maybe"}, "line 5: team: 'maybe' is none of the 2 choices"),
        (
            {3: "Yes", 7: "No", 9: "nope"},
            "line 5: team: 'Yes' is none of the 2 choices; did you mean 'yes'?; so are 2 more",
        ),
        ({0: "1"}, "line 2: team: '1' is none"),
    ],
)
def test_a_label_that_is_none_of_the_choices_is_reported_by_its_line(cli: Cli, labels: Any, message: str) -> None:
    given = table(cli, [labels.get(i, label) for i, label in enumerate(GOLD)])
    done = evaluate(cli, given)
    assert done.code == 1
    assert message in done.err
    assert "(--on-error skip leaves such rows out)" in done.err
    skipped = evaluate(cli, given, "--on-error", "skip", "--json", "--way", "exact")
    assert told(skipped)["n_rows"] == 24 - len(labels)
    assert f"{len(labels)} rows of no use are left out" in skipped.err


@pytest.mark.parametrize("nothing", ["", "  ", None, float("nan")])
def test_rows_without_a_label_are_left_out_and_counted(cli: Cli, nothing: Any) -> None:
    name = "gold.csv" if isinstance(nothing, str) else "gold.jsonl"
    given = table(cli, [*GOLD[:-2], nothing, nothing], name=name)
    if nothing != nothing:  # which JSON does not have
        assert "NaN is not JSON" in evaluate(cli, given).err
        return
    done = evaluate(cli, given, "--json", "--way", "exact")
    assert told(done)["n_rows"] == 22
    assert "2 rows without a label are left out" in done.err


def test_labels_of_another_type_are_read_as_prompts_read_them(cli: Cli) -> None:
    labels: list[Any] = [True, 1] * 12
    done = evaluate(cli, table(cli, labels, name="gold.jsonl"), "-c", "true", "-c", "1", "--json", "--way", "majority")
    assert told(done)["ways"]["majority"]["accuracy"] == 0.5
    done = evaluate(cli, table(cli, labels, name="gold.jsonl"))
    assert "line 1: team: 'true' is none of the 2 choices" in done.err


@pytest.mark.parametrize(
    ("way", "asked", "options"),
    [
        ("exact", ("-p", PROMPT), "--calibration raw"),
        ("any", ("-p", PROMPT), "--calibration raw --leaf-end any"),
        ("greedy", ("-p", PROMPT), "--mode greedy"),
        ("batch", ("-q", "Is it a fruit?", "-p", "{text}"), "--calibration batch"),
        ("letters", ("-q", "Is it a fruit?", "-p", "{text}"), "--form letters"),
        ("orders", ("-q", "Is it a fruit?", "-p", "{text}"), "--form listed --orders 4"),
    ],
)
def test_the_best_way_is_reported_with_the_options_that_label_by_it(
    cli: Cli, way: str, asked: tuple[str, ...], options: str
) -> None:
    gold = table(cli, GOLD)
    found = evaluate(cli, gold, "--way", way, "--json", asked=asked)
    assert f"label by {way}: token-trie label TABLE, with the same model, choices and" in found.err
    assert f"question, and {options}\n" in found.err
    own = ["-c", "yes", "-c", "no", "-m", str(cli.model), "--n-ctx", "512"]
    done = cli.call(["label", str(gold), *asked, *own, *options.split(), "-o", str(cli.out)])
    assert done.code == 0, done.err
    column = "value" if "-q" in asked else "answer"
    right = sum(row[column] == row["team"] for row in cli.rows())
    assert right / len(GOLD) == pytest.approx(told(found)["ways"][way]["accuracy"], abs=0.06)


def test_a_way_of_labels_is_reported_with_the_file_that_was_written(cli: Cli) -> None:
    fitted = str(cli.folder / "f.json")
    for fit, file in (([], "FILE, which evaluate --fit FILE writes"), (["--fit", fitted], fitted)):
        done = evaluate(cli, table(cli, GOLD), "--way", "bias", *fit)
        assert f"and --calibration {file}" in " ".join(done.err.split())


def test_a_row_without_a_column_of_the_prompt_is_reported_by_its_line(cli: Cli) -> None:
    path = table(cli, GOLD, name="gold.jsonl")
    path.write_text(path.read_text() + '{"id": 24, "team": "yes"}\n')
    done = evaluate(cli, path)
    assert (done.code, "line 25: no column 'text', which the prompt has" in done.err) == (1, True)
    skipped = evaluate(cli, path, "--on-error", "skip", "--way", "exact", "--json")
    assert told(skipped)["n_rows"] == 24


def test_a_row_that_is_too_long_is_reported_by_its_line_or_left_out(cli: Cli) -> None:
    texts = [*TEXTS[:5], "word " * 2000, *TEXTS[6:]]
    given = table(cli, GOLD, texts)
    done = evaluate(cli, given, "--way", "exact")
    assert done.code == 1
    assert f"{given}, line 7: " in done.err
    skipped = evaluate(cli, given, "--way", "exact", "--on-error", "skip", "--json")
    assert told(skipped)["n_rows"] == 23


@pytest.mark.parametrize("way", ["exact", "greedy"])
def test_all_rows_that_are_too_long_are_left_out_at_once(cli: Cli, monkeypatch: Any, way: str) -> None:
    long = "word " * 2000
    expected = told(evaluate(cli, table(cli, GOLD), "--way", way, "--json", "--no-cache"))
    n_made, begin = [0], EvaluationRows.__init__

    def counted(*given: Any, **more: Any) -> None:
        n_made[0] += 1
        begin(*given, **more)

    monkeypatch.setattr(EvaluationRows, "__init__", counted)
    given = table(cli, ["yes", "no", *GOLD, "no"], [long, long, *TEXTS, f"{long}2"])
    done = evaluate(cli, given, "--way", way, "--on-error", "skip", "--json", "--no-cache")
    assert (told(done)["ways"], n_made) == (expected["ways"], [2])
    assert [done.err.count(f"line {i}: ") for i in (2, 3, 28)] == [1, 1, 1]
    assert "3 rows of no use are left out" in done.err


@pytest.mark.parametrize(
    ("options", "asked", "message"),
    [
        (["--gold", "teem"], ("-p", PROMPT), "no column 'teem', which --gold names; the columns are id, text, team"),
        ([], ("-p", "{text} {team}"), "--gold: column 'team' must not be in the prompt"),
        ([], ("-p", "{txt}"), "no column 'txt'"),
        ([], (), "use --question, --prompt or --prompt-file"),
        ([], ("-q", "Is it?"), "name the column to read with --column; the columns are id, text"),
        ([], ("-q", "Is it?", "--column", "team"), "--gold: column 'team' must not be among --column"),
        (["--way", "best"], ("-p", PROMPT), "ways must be among exact, "),
        (["--form", "listed"], ("-p", PROMPT), "--form: only with --question"),
        (["--leaf-end", "any"], ("-q", "Is it?"), "--leaf-end: not with --question"),
        (["--target-accuracy", "1"], ("-p", PROMPT), "--target-accuracy: 1.0 is not between 0 and 1"),
        (["--cache", "x", "--no-cache"], ("-p", PROMPT), "--cache and --no-cache: use only one of them"),
    ],
)
def test_what_cannot_be_measured_is_refused(cli: Cli, options: list[str], asked: Any, message: str) -> None:
    done = evaluate(cli, table(cli, GOLD), *options, asked=asked)
    assert done.code == 1
    assert message in done.err.replace("\n", " ")


def test_what_cannot_be_fitted_is_reported_after_the_results(cli: Cli) -> None:
    done = evaluate(
        cli, table(cli, GOLD[6:18], TEXTS[6:18]), "--way", "exact", "--way", "bias", "--fit", str(cli.folder / "f.json")
    )
    assert (done.code, "12 different rows, and at least 20 are needed" in done.err) == (1, True)
    assert "12 rows, 2 choices" in done.out


def test_a_file_that_cannot_be_written_or_is_read_is_refused_before(cli: Cli) -> None:
    given, choices, picture = table(cli, GOLD), cli.folder / "choices.txt", str(cli.folder / "r.png")
    choices.write_text("yes\nno\n")
    before = given.read_bytes()
    for options, message in (
        (["--plot", str(cli.folder / "none" / "r.png")], f"--plot: no folder '{cli.folder / 'none'}'"),
        (["--fit", str(cli.folder)], f"--fit: '{cli.folder}' is not a file"),
        (["--fit", os.devnull], f"--fit: '{os.devnull}' is not a file"),
        (["--fit", str(given)], f"--fit: '{given}' is another file of this command"),
        (["--plot", str(choices), "--choices-file", str(choices)], f"--plot: '{choices}' is another file"),
        (["--plot", picture, "--fit", picture], f"--fit: '{picture}' is another file of this command"),
    ):
        done = evaluate(cli, given, *options)
        assert (done.code, done.out) == (1, "")
        assert message in done.err.replace("\n", " ")
    assert given.read_bytes() == before
    assert choices.read_text() == "yes\nno\n"


def test_an_empty_row_that_cannot_be_read_is_not_taken_for_one_of_the_table(cli: Cli) -> None:
    prompt = ("-p", "{text}" * 350)  # N/A, which stands for an empty cell, is longer than the cells
    given = table(cli, GOLD, [*"abcdefghijklmnopqrstuvwx"])
    for option in ("stop", "skip"):
        options = ["--json", "--way", "exact", "--way", "contextual", "--on-error", option]
        done = evaluate(cli, given, *options, asked=prompt)
        assert (told(done)["n_rows"], list(told(done)["ways"])) == (24, ["exact"])


def test_a_confidence_is_reported_for_a_target(cli: Cli) -> None:
    given = table(cli, GOLD)
    gate = told(evaluate(cli, given, "--json", "--target-accuracy", "0.9", "--way", "words"))["gate"]
    assert gate is not None
    assert evaluate(cli, given, "--target-accuracy", "0.9", "--way", "words").code == 0
