"""An evaluation, on the page and in the terminal, as a person finds it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Tab
from rich.console import Console
from token_trie import Evaluation
from token_trie.show.evaluation import N_MATRIX, N_POINTS, N_WRONG
from token_trie.trust.evaluate import EvaluatedWay
from token_trie.trust.metrics import figures_of

AXE = "axe.run().then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html + n.failureSummary)]))"
HOSTILE = (
    "<img src=x onerror=\"document.title='taken'\">",
    "</script><script>document.title='taken'</script>",
    "\u202egnp",
)
CLASSES = ("billing", HOSTILE[0], "technical")


def made(n: int = 200, classes: tuple[str, ...] = CLASSES, seed: int = 0) -> Evaluation:
    """Return an evaluation of rows drawn at random, with a way that is right and one without probabilities."""
    draw, k = np.random.default_rng(seed), len(classes)
    p = draw.dirichlet(np.full(k, 0.5), n)
    gold = np.array([draw.choice(k, p=one) for one in p])
    answers = p.argmax(axis=1)
    right = np.eye(k)[gold]
    ways = [("exact", "model", answers, p), ("greedy", "model", answers, None), ("fitted", "labels", gold, right)]
    return Evaluation(
        classes=classes,
        gold=gold,
        texts=tuple(f"{i} {HOSTILE[1]} {HOSTILE[2]}" for i in range(n)),
        numbers=tuple(range(1, n + 1)),
        ways=tuple(
            EvaluatedWay(name, "as it is", of, a, q, figures_of(classes, gold, a, q, np.full(n, 0.5)))
            for name, of, a, q in ways
        ),
        notes=(f"no row is {HOSTILE[0]}",),
        n_read=n,
        readings=None,
        groups=np.arange(n),
        n_folds=5,
        fitted=None,
    )


@pytest.fixture
def page(browser: Tab, tmp_path: Path) -> Iterator[Tab]:
    file = tmp_path / "page.html"
    file.write_text(made().html(), encoding="utf-8")
    browser.events.clear()
    browser.size(1280, 900)
    browser.prefer()
    browser.open(file.as_uri())
    browser.run(
        "document.querySelector('#way').value = 0; document.querySelector('#way').dispatchEvent(new Event('change'))"
    )
    yield browser
    assert browser.complaints() == []
    assert [address for _, address in browser.requested()] == [file.as_uri()]


def shown(page: Tab, selector: str) -> str:
    return str(page.run(f"document.querySelector('.way:not([hidden]) {selector}').textContent")).replace("\u00a0", " ")


def test_the_slider_tells_what_a_confidence_decides(page: Tab) -> None:
    found = made()["exact"]
    assert found.confidence is not None
    right = found.answers == made().gold
    page.run("document.querySelector('.way:not([hidden]) input').focus()")
    for key in ("End", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.press(key)
    for at in (0.985, 0.6, 0.0):
        if at != 0.985:
            page.run(
                f"(s => {{ s.value = {at}; s.dispatchEvent(new Event('input')); }})"
                "(document.querySelector('.way:not([hidden]) input'))"
            )
        decided = found.confidence >= at
        told = shown(page, "output")
        assert f"{decided.sum()} of 200 rows are decided" in told, at
        assert f"{100 * right[decided].mean():.1f} % of these are right" in told.replace("100 %", "100.0 %"), at
        spoken = page.run("document.querySelector('.way:not([hidden]) input').getAttribute('aria-valuetext')")
        assert told.split("on: ")[1] in spoken.replace("\u00a0", " ")


def test_another_way_is_looked_at_by_the_keyboard(page: Tab) -> None:
    page.run("document.querySelector('#way').focus()")
    names = []
    for _ in range(3):
        names.append(page.run("document.querySelector('.way:not([hidden])').getAttribute('aria-label')"))
        assert page.run("document.querySelectorAll('.way:not([hidden])').length") == 1
        page.press("ArrowDown")
    assert names == ["exact", "greedy", "fitted"]
    assert "No row." in shown(page, "")


def test_what_others_wrote_is_text(page: Tab) -> None:
    assert page.run("document.title").startswith("100 % of 200 rows")
    assert page.run("document.querySelectorAll('img').length") == 0
    assert HOSTILE[0][:39] in shown(page, ".matrix tbody tr:nth-child(2) th")
    assert HOSTILE[1] in shown(page, ".wrong .text")
    assert "\u202e" not in made().html()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 320)])
def test_axe_finds_nothing(page: Tab, scheme: str, width: int) -> None:
    page.size(width, 900, is_phone=width < 500)
    page.prefer(prefers_color_scheme=scheme)
    page.run(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8") + "; 0")
    assert page.run(AXE) == []
    assert page.run("document.documentElement.scrollWidth") == width


def test_the_matrix_has_the_counts(page: Tab) -> None:
    cells = page.run(
        "[...document.querySelectorAll('.way:not([hidden]) .matrix tbody tr')]"
        ".map(row => [...row.querySelectorAll('td')].map(cell => Number(cell.textContent)))"
    )
    assert cells == [list(row) for row in made()["exact"].figures.confusion]


def test_the_page_of_a_large_table_is_not_large() -> None:
    found = made(5_000, tuple(f"class {i}" for i in range(N_MATRIX + 1)))
    html = found.html()
    assert len(html) < 1_000_000
    assert '<table class="matrix">' not in html
    assert re.search(r"<bdi>class \d+</bdi> for <bdi>class \d+</bdi> \(\d+\)", html)
    assert html.count('<td class="text"') == 2 * N_WRONG
    data = json.loads(re.search(r'id="data">(.*?)</script>', html).group(1))  # type: ignore[union-attr]
    assert (len(data["points"][0]), data["points"][0][-1][1]) == (N_POINTS, 5_000)


def test_the_terminal_has_all_figures_in_80_columns() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(made())
    lines = console.export_text().splitlines()
    assert re.sub(" +", " ", lines[0]) == "way right % 95 % bal. % F1 log loss Brier ECE risk unfit % "
    figures = made()["exact"].figures
    row: Any = lines[1].split()
    assert row[:2] == ["exact", f"{100 * figures.accuracy:.1f}"]
    assert [float(one) for one in row[5:9]] == pytest.approx(
        [figures.log_loss, figures.brier, figures.ece, figures.risk_area], abs=5e-4
    )
    assert lines[2].split()[5:9] == ["–"] * 4
    assert "\u202e" not in console.export_text()
