from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelling import CHOICES, PROMPT, Cli, Done
from token_trie import Calibration, Contextual, choose_many
from token_trie.sets.prompt import Filled

TEXTS = [f"{'Pizza' if i % 2 else 'Paris'} {i}" for i in range(60)]
TEMPLATE = PROMPT.replace("\\n", "\n")
GOLD = [CHOICES[i % 3] for i in range(60)]


def gold_table(cli: Cli) -> Path:
    path = cli.folder / "gold.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "gold"], *zip(TEXTS, GOLD, strict=True)])
    return path


def evaluated_of(cli: Cli, *options: str) -> Done:
    chosen = [part for text in CHOICES for part in ("-c", text)]
    asked = ["evaluate", str(gold_table(cli)), "--gold", "gold", *chosen, "-m", str(cli.model), "--n-ctx", "512"]
    done = cli.call([*asked, "--folds", "3", "--no-cache", "--fit", str(cli.folder / "f.json"), *options])
    assert done.code == 0, done.err
    return done


def fit(cli: Cli, *options: str) -> Path:
    evaluated_of(cli, *(options or ("-p", PROMPT)))
    return cli.folder / "f.json"


def prompts() -> list[Any]:
    return [Filled([("Review: ", text), ("\nAnswer:", "")]) for text in TEXTS]


@pytest.mark.parametrize("named", ["raw", "contextual", "batch", "bias", "head"])
def test_labels_are_those_of_choose_many_with_the_same_calibration(cli: Cli, tiny: Any, named: str) -> None:
    calibration: Any = {"raw": None, "contextual": Contextual("Review: N/A\nAnswer:"), "batch": "batch"}.get(named)
    given = named
    if named in ("bias", "head"):
        given = str(fit(cli, "-p", PROMPT, "--way", named))
        calibration = Calibration.load(given)
    done = cli.label(cli.table(TEXTS), "--calibration", given)
    assert done.code == 0, done.err
    again = cli.label(cli.table(TEXTS), "--calibration", given)
    assert (again.code, "depends on all rows together" in again.err) == ((1, True) if named == "batch" else (0, False))
    expected = choose_many(tiny, prompts(), CHOICES, calibration=calibration, probabilities=True)
    for row, decision in zip(cli.rows(), expected, strict=True):
        assert row["answer"] == decision.text
        assert decision.probabilities is not None
        assert float(row["probability"]) == pytest.approx(float(np.max(decision.probabilities)), rel=0.05)


def test_rows_below_the_gate_are_left_for_review(cli: Cli) -> None:
    done = cli.label(cli.table(TEXTS), "--calibration", str(fit(cli)), "--target-accuracy", "0.4")
    assert done.code == 0, done.err
    gate = Calibration.load(cli.folder / "f.json").gate(0.4)
    assert f"the gate: {gate}" in done.err
    evaluated = evaluated_of(cli, "-p", PROMPT, "--target-accuracy", "0.4", "--json")
    assert json.loads(evaluated.out)["gate"] == vars(gate)
    for row in cli.rows():
        below = gate.threshold is None or float(row["probability"]) < gate.threshold
        assert row["review"] == str(int(below))


@pytest.mark.parametrize("asked", [["-p", PROMPT], ["-q", "Which?", "-p", "{text}"]], ids=["prompt", "question"])
@pytest.mark.parametrize("named", ["raw", "contextual", "file"])
def test_rows_with_labels_are_compared_and_kept_for_the_evaluation(
    cli: Cli, asked: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    given = str(fit(cli, *asked)) if named == "file" else named
    chosen = [part for text in CHOICES for part in ("-c", text)]
    more = [*chosen, "-m", str(cli.model), "--n-ctx", "512"]
    label = ["label", str(gold_table(cli)), *asked, *more, "--calibration", given]
    found = []
    for gold in ([], ["--gold", "gold"]):
        cli.out = cli.folder / f"{len(gold)}.csv"
        done = cli.call([*label, *gold, "-o", str(cli.out)])
        assert done.code == 0, done.err
        found.append(cli.rows())
    column = "value" if asked[0] == "-q" else "answer"
    assert [row[column] for row in found[0]] == [row[column] for row in found[1]]
    for plain, kept in zip(*found, strict=True):
        for name in ("probability", "mass", "confidence" if asked[0] == "-q" else "margin"):
            assert float(kept[name]) == pytest.approx(float(plain[name]), rel=0.05, abs=1e-3)
    n_right = sum(row[column] == row["gold"] for row in found[1])
    assert f"{n_right} of 60 with a label in 'gold' are right, {n_right / 60:.1%}" in " ".join(done.err.split())
    done = cli.call(["evaluate", str(gold_table(cli)), "--gold", "gold", "--folds", "3", *asked, *more, "--json"])
    assert done.code == 0, done.err
    # The prompt without a row is read for the way contextual.
    assert json.loads(done.out)["n_read"] == int(asked[0] == "-p" and named != "contextual")


@pytest.mark.parametrize("named", ["raw", "batch", "file"])
def test_a_question_is_calibrated_too(cli: Cli, named: str) -> None:
    given = str(fit(cli, "-q", "Which?", "-p", "{text}")) if named == "file" else named
    chosen = [part for text in CHOICES for part in ("-c", text)]
    asked = ["label", str(cli.table(TEXTS)), "-q", "Which?", "-p", "{text}", *chosen, "-m", str(cli.model)]
    done = cli.call([*asked, "--n-ctx", "512", "-o", str(cli.out), "--calibration", given, "--probabilities"])
    assert done.code == 0, done.err
    for row in cli.rows():
        assert sum(float(row[f"p_{text}"]) for text in CHOICES) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--calibration", "batch", "--target-accuracy", "0.9"], "--target-accuracy: needs --calibration"),
        (["--target-accuracy", "0.9"], "--target-accuracy: needs --calibration"),
        (["--calibration", "batch", "--mode", "greedy"], "--calibration: only with --mode exact"),
        (["--calibration", "missing.json"], "missing.json"),
    ],
)
def test_what_does_not_go_together_is_refused(cli: Cli, options: list[str], message: str) -> None:
    done = cli.label(cli.table(TEXTS[:2]), *options)
    assert done.code != 0
    assert message in " ".join(done.err.split())
    assert not cli.out.exists()


def test_a_file_of_another_prompt_is_refused_before_a_row_is_read(cli: Cli) -> None:
    done = cli.label(cli.table(TEXTS), "--calibration", str(fit(cli)), prompt="{text}?\\nAnswer:")
    assert done.code != 0
    assert "was fitted with another question" in " ".join(done.err.split())
    assert not cli.out.exists()
    broken = cli.folder / "broken.json"
    broken.write_text("{}")
    done = cli.label(cli.table(TEXTS), "--calibration", str(broken))
    assert done.code != 0
    assert "format: missing" in " ".join(done.err.split())


@pytest.mark.parametrize("kind", ["bias", "head"])
def test_choose_answers_by_a_file_too(cli: Cli, kind: str) -> None:
    chosen = [part for text in CHOICES for part in ("-c", text)]
    asked = ["choose", "-p", "Review: Pizza 1\nAnswer:", *chosen, "-m", str(cli.model), "--n-ctx", "512"]
    asked += ["--calibration", str(fit(cli, "-p", PROMPT, "--way", kind))]
    done = cli.call([*asked, "--json"])
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["calibration"] == kind
    assert "The model gives the whole set" in cli.call([*asked, "--top", "2"]).out
    shown = cli.call([*asked, "--max-nodes", "1"]).out
    assert ("An answer left out may be more probable." in shown) == (kind == "bias")
    done = cli.call([*asked, "--contextual", "Review:\nAnswer:"])
    assert "--contextual and --calibration: use only one of them" in " ".join(done.err.split())


def test_a_calibration_of_a_question_is_for_the_columns_that_it_was_fitted_on(cli: Cli) -> None:
    own = ["-q", "Which?", *(part for text in CHOICES for part in ("-c", text)), "-m", str(cli.model)]
    rows = [{"text": f"{text} {i}", "n": i, "team": CHOICES[i % 2]} for i, text in enumerate(TEXTS * 3)]

    def table(name: str, *columns: str) -> str:
        path = cli.folder / name
        kept = [{column: row[column] for column in columns if column in row} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
        return str(path)

    gold, fitted, both = table("gold.jsonl", "text", "n", "team"), str(cli.folder / "q.json"), ["text", "n"]
    named = [part for column in both for part in ("--column", column)]
    asked = ["evaluate", gold, *own, *named, "--gold", "team", "--fit", fitted, "--n-ctx", "512", "--no-cache"]
    done = cli.call([*asked, "--folds", "3"])
    assert done.code == 0, done.err
    for i, (columns, read, is_same) in enumerate(
        (
            (("text", "n"), named, True),
            (("text", "n", "team"), named, True),
            (("text",), ["--column", "text"], False),
            (("text", "n"), ["--column", "text"], False),
            (("text", "n"), ["-p", "{text}"], False),
        )
    ):
        output = cli.folder / f"{i}.jsonl"
        asked = ["label", table("new.jsonl", *columns), *own, *read, "--calibration", fitted, "-o", str(output)]
        done = cli.call([*asked, "--n-ctx", "512"])
        assert done.code == (0 if is_same else 1), done.err
        assert ("was fitted with other columns of the table" in " ".join(done.err.split())) != is_same
        assert output.exists() == is_same
