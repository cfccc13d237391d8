"""An evaluation as a table, and as a picture."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from token_trie import ArgumentError
from token_trie.show.evaluation import Evaluation
from token_trie.trust.evaluate import EvaluatedWay
from token_trie.trust.metrics import figures_of

CLASSES = ("billing", "\u202egnp", "technical")


def made(n: int = 200) -> Evaluation:
    """Return an evaluation of rows drawn at random, with a way that is right and one without probabilities."""
    draw, k = np.random.default_rng(0), len(CLASSES)
    p = draw.dirichlet(np.full(k, 0.5), n)
    gold = np.array([draw.choice(k, p=one) for one in p])
    answers = p.argmax(axis=1)
    right = np.eye(k)[gold]
    ways = [("exact", "model", answers, p), ("greedy", "model", answers, None), ("head", "labels", gold, right)]
    return Evaluation(
        classes=CLASSES,
        gold=gold,
        texts=tuple(f"{i} \x1b[31m [red]" for i in range(n)),
        numbers=tuple(range(1, n + 1)),
        ways=tuple(EvaluatedWay(name, of, a, q, figures_of(k, gold, a, q, np.full(n, 0.5))) for name, of, a, q in ways),
        notes=("no row is '\u202egnp'",),
        n_read=n,
        groups=np.arange(n),
        calibrations={},
        n_ways=len(ways),
    )


def test_the_table_has_all_figures_in_80_columns() -> None:
    lines = str(made()).splitlines()
    assert max(map(len, lines[:4])) <= 80
    assert re.sub(" +", " ", lines[0]) == "way right % 95 % bal. % F1 log loss Brier ECE risk unfit %"
    figures = made()["exact"].figures
    row: Any = lines[1].split()
    assert row[:2] == ["exact", f"{100 * figures.accuracy:.1f}"]
    assert [float(one) for one in row[5:9]] == pytest.approx(
        [figures.log_loss, figures.brier, figures.ece, figures.risk_area], abs=5e-4
    )
    assert lines[2].split()[5:9] == ["–"] * 4


def test_what_others_wrote_is_text_and_rich_draws_the_same() -> None:
    console = Console(width=160, file=io.StringIO())
    with console.capture() as captured:
        console.print(made())
    assert [line.rstrip() for line in captured.get().splitlines()] == str(made()).splitlines()
    assert "\u202e" not in str(made())
    assert "\x1b" not in str(made())


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a", b"\x89PNG")])
def test_a_picture_is_drawn_in_the_format_of_its_name(tmp_path: Path, name: str, begin: bytes) -> None:
    made().plot(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)


def test_a_picture_that_cannot_be_drawn_is_refused_by_name(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(ArgumentError, match="plot: Format 'abc' is not supported"):
        made().plot(tmp_path / "a.abc")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ArgumentError, match=r"pip install 'token-trie\[plot\]'"):
        made().plot(tmp_path / "a.png")
    assert [*tmp_path.iterdir()] == []
