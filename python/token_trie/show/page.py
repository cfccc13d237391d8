"""Explanations and evaluations as HTML pages: this module computes positions, the templates have the layout."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from token_trie.decisions.decision import LOW_MASS
from token_trie.questions.explain import Explained
from token_trie.show.branches import Branch, branches_of, describe_mass, sentence_of
from token_trie.show.trie import clip, percent
from token_trie.trust.evaluate import Comparison, EvaluatedWay
from token_trie.trust.metrics import N_BINS, Figures, Point

ROW, BAND, GAP = 46.0, 32.0, 48.0
"""Pixels: the height of an answer without its band, the height of a band of 100 %, and the gap between columns."""
FOLDED_ROW = 26.0
CHAR, SMALL_CHAR, BOLD_CHAR = 7.9, 6.7, 8.7
"""Pixels: the widths of characters in the fonts of the page."""
MIN_WIDTH = 1040.0
N_RANKED = 12


@dataclass
class Placed:
    """A branch on the page; with branch None, the line that counts the branches left out."""

    branch: Branch | None
    depth: int
    parent: Placed | None
    text: str
    ids: str
    share: str = ""
    mass: str = ""
    name: str = ""
    x0: float = 0.0
    x1: float = 0.0
    bar: float = 0.0
    """The width of a share of 100 %."""
    y: float = 0.0
    thickness: float = 0.0
    line: str = ""
    """The SVG path from the parent to the end of the branch."""

    @property
    def classes(self) -> str:
        """CSS classes: the answers whose path has this branch."""
        if self.branch is None:
            return "folded"
        return " ".join(name for name, on in (("greedy", self.branch.greedy), ("exact", self.branch.exact)) if on)


def render_explanation(explained: Explained, max_branches: int) -> str:
    """Return the page of an explanation."""
    p = explained.probabilities
    ranked = explained.ranked(N_RANKED)
    rest = [leaf for leaf in range(len(p)) if leaf not in ranked]
    prompt = _lines(explained.prompt)
    tail = "\n".join(prompt[-400:].split("\n")[-3:]).lstrip()
    picture = _place(explained, branches_of(explained, max_branches))
    greedy, exact = explained.greedy_leaf, explained.exact_leaf
    return _template("page.html").render(
        e=explained,
        sentence=sentence_of(explained),
        mass=explained.exact.mass,
        fits=describe_mass(explained.exact.mass or 0.0),
        low=(explained.exact.mass or 0.0) < LOW_MASS,
        times=_times(p[exact], p[greedy]) if greedy != exact else "",
        alike=float(np.exp(explained.exact.entropy)),
        ranked=[
            {
                "name": clip(explained.trie[leaf].name, 60),
                "p": float(p[leaf]),
                "stepwise": float(explained.stepwise[leaf]),
                "greedy": leaf == greedy,
                "exact": leaf == exact,
            }
            for leaf in ranked
        ],
        n_rest=len(rest),
        rest=float(p[rest].sum()),
        p_greedy=float(p[greedy]),
        p_exact=float(p[exact]),
        stepwise_greedy=float(explained.stepwise[greedy]),
        stepwise_exact=float(explained.stepwise[exact]),
        prompt=prompt,
        tail=("…" if len(tail) < len(prompt) else "") + tail,
        **picture,
    )


def _place(explained: Explained, root: Branch) -> dict[str, Any]:
    placed = list(_unfold(explained, root))
    columns = [0.0] * (max(item.depth for item in placed) + 1)
    for item in placed:
        if item.branch is not None:
            columns[item.depth] = max(columns[item.depth], _width(item))
    starts = [sum(columns[:depth]) + GAP * depth for depth in range(len(columns))]
    names_width = max(_cells(item.name) for item in placed) * BOLD_CHAR + 90
    names = max(MIN_WIDTH - names_width, *(starts[item.depth] + _width(item) + 24 for item in placed))
    children: dict[int, list[Placed]] = {}
    y = 12.0
    for item in placed:
        item.thickness = BAND * item.branch.mass if item.branch else 0.0
        item.x0, item.bar = starts[item.depth], columns[item.depth] - 14
        item.x1 = names if item.name else item.x0 + columns[item.depth]
        if item.parent is not None:
            children.setdefault(id(item.parent), []).append(item)
        if item.name or item.branch is None:
            height = (ROW if item.name else FOLDED_ROW) + item.thickness
            item.y = y + height / 2
            y += height
    for item in reversed(placed):
        if own := children.get(id(item)):
            weights = [child.branch.mass if child.branch else 0.0 for child in own]
            total = sum(weights)
            item.y = sum(w * c.y for w, c in zip(weights, own, strict=True)) / total if total > 0 else own[0].y
            # The bands of the children start next to each other, in the order of the rows.
            at = item.y - sum(child.thickness for child in own) / 2
            for child in own:
                child.line = _line(item.x1, at + child.thickness / 2, child)
                at += child.thickness
    placed[0].line = f"M{placed[0].x0:.1f} {placed[0].y:.1f}H{placed[0].x1:.1f}"
    return {"placed": placed, "width": round(names + names_width), "height": round(y + 12)}


def _unfold(explained: Explained, root: Branch) -> Iterator[Placed]:
    """Yield the branches depth first; the line that counts those left out is last."""
    stack = [Placed(root, 0, None, "prompt", "", mass="100 %")]
    while stack:
        item = stack.pop()
        yield item
        branch = item.branch
        if branch is None:
            continue
        below = [_label(explained, child, item) for child in branch.children]
        if branch.n_more:
            text = f"… {branch.n_more:,} more ({percent(branch.more)})"
            below.append(Placed(None, item.depth + 1, item, text, ""))
        stack.extend(reversed(below))


def _label(explained: Explained, branch: Branch, parent: Placed) -> Placed:
    text = clip(b"".join(explained.pieces[token] for token in branch.tokens), 28).replace(" ", "·")
    name = "" if branch.leaf is None else clip(explained.trie[branch.leaf].name, 48) or "(no name)"
    return Placed(
        branch,
        parent.depth + 1,
        parent,
        text or "end",
        " ".join(f"{clip(explained.pieces[token])!r} {token}" for token in branch.tokens),
        percent(branch.share),
        percent(branch.mass),
        name,
    )


def _line(x: float, y: float, item: Placed) -> str:
    middle = (x + item.x0) / 2
    end = item.x0 if item.branch is None else item.x1
    return f"M{x - 1:.1f} {y:.1f}h1C{middle:.1f} {y:.1f} {middle:.1f} {item.y:.1f} {item.x0:.1f} {item.y:.1f}H{end:.1f}"


def _width(item: Placed) -> float:
    numbers = len(item.share) + len(item.mass) + 3 if item.share else 0
    return max(_cells(item.text) * CHAR, numbers * SMALL_CHAR) + 14


def _cells(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _times(p: float, of: float) -> str:
    """Return the ratio of two probabilities, rounded."""
    ratio = p / of if of > 0 else np.inf
    return f"{ratio:,.0f}" if 10 <= ratio < 1e6 else f"{ratio:.1f}" if ratio < 10 else "over a million"


def _lines(prompt: str) -> str:
    return "\n".join(clip(line, 2000) for line in prompt.split("\n"))


SIZE, LEFT, BOTTOM = 280.0, 40.0, 34.0
"""Pixels: the side of a diagram, and the margins to the left of it and below it."""
N_WRONG, N_CONFUSED, N_MATRIX, N_POINTS = 100, 12, 25, 1000
"""Maximum numbers of wrong rows, confusions, classes of a drawn matrix, and points of a curve."""


def render_evaluation(evaluated: Comparison) -> str:
    """Return the page of an evaluation."""
    script = Path(__file__).with_name("evaluation.js").read_text(encoding="utf-8")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    ways = [_way(evaluated, way) for way in evaluated.ways]
    points = [[[p.confidence, p.n, p.accuracy] for p in way["points"]] for way in ways]
    data = json.dumps({"n": len(evaluated.gold), "points": points, "size": SIZE, "left": LEFT})
    return _template("evaluation.html").render(
        e=evaluated,
        ways=ways,
        best=evaluated.best,
        tells_unfit=any(way.figures.unfit is not None for way in evaluated.ways),
        script=script,
        allowed=allowed,
        data=data,
        size=SIZE,
        left=LEFT,
        width=LEFT + SIZE + 12,
        height=SIZE + BOTTOM + 12,
        n_wrong=N_WRONG,
    )


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, clip=clip, comma="{:,}".format, three="{:.3f}".format)
    return environment.from_string(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def _way(evaluated: Comparison, way: EvaluatedWay) -> dict[str, Any]:
    figures = way.figures
    points = _thinned(figures.coverage)
    matrix = np.array(figures.confusion)
    wrong = evaluated.wrong_by(way.name)
    return {
        "name": way.name,
        "says": way.says,
        "of": way.of,
        "f": figures,
        "bars": _bars(figures),
        "points": points,
        "curve": _curve(points, len(evaluated.gold)),
        "matrix": _matrix(evaluated.classes, matrix) if len(matrix) <= N_MATRIX else [],
        "confused": _confused(evaluated.classes, matrix),
        "wrong": wrong[:N_WRONG],
        "n_wrong": len(wrong),
    }


def _bars(figures: Figures) -> list[dict[str, float]]:
    """Compute for each bin a bar as high as its accuracy, and a dot at its mean confidence."""
    width = SIZE / N_BINS
    bars = []
    for one in figures.reliability:
        at = min(N_BINS - 1, max(0, math.ceil(one.confidence * N_BINS - 1e-9) - 1))
        bars.append(
            {
                "x": LEFT + at * width + 1.5,
                "width": width - 3,
                "y": SIZE * (1 - one.accuracy) + 8,
                "height": SIZE * one.accuracy,
                "cx": LEFT + SIZE * one.confidence,
                "cy": SIZE * (1 - one.accuracy) + 8,
                "n": one.n,
                "confidence": one.confidence,
                "accuracy": one.accuracy,
            }
        )
    return bars


def _curve(points: list[Point], n: int) -> str:
    """Return the SVG path of the accuracy over the share of accepted rows."""
    positions = [(LEFT + SIZE * point.n / n, 8 + SIZE * (1 - point.accuracy)) for point in points]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in positions) if positions else ""


def _thinned(points: tuple[Point, ...]) -> list[Point]:
    if len(points) <= N_POINTS:
        return list(points)
    kept = np.unique(np.linspace(0, len(points) - 1, N_POINTS).round().astype(int))
    return [points[i] for i in kept]


def _matrix(classes: tuple[str, ...], matrix: Any) -> list[dict[str, Any]]:
    totals = matrix.sum(axis=1)
    return [
        {
            "name": name,
            "n": int(total),
            "cells": [(int(n), round(100 * n / max(total, 1))) for n in row],
        }
        for name, row, total in zip(classes, matrix, totals, strict=True)
    ]


def _confused(classes: tuple[str, ...], matrix: Any) -> list[tuple[str, str, int]]:
    """Return the most frequent confusions: gold class, answer, number of rows."""
    off = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-off, axis=None, kind="stable")[:N_CONFUSED]
    pairs = [np.unravel_index(i, off.shape) for i in order]
    return [(classes[i], classes[j], int(off[i, j])) for i, j in pairs if off[i, j]]
