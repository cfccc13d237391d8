"""An evaluation as one HTML page: this module computes positions, evaluation.html has the layout."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from token_trie.show.texts import clip, percent
from token_trie.trust.evaluation import Evaluated, EvaluatedWay
from token_trie.trust.metrics import N_BINS, Figures, Point

SIZE, LEFT, BOTTOM = 280.0, 40.0, 34.0
"""Pixels: the side of a diagram, and the room for what stands beside and below it."""
N_WRONG, N_CONFUSED, N_MATRIX, N_POINTS = 100, 12, 25, 1000
"""At most: wrong rows, confusions, classes of a matrix that is drawn, and points of a curve."""


def render(evaluated: Evaluated) -> str:
    """Return the page."""
    script = Path(__file__).with_name("evaluation.js").read_text(encoding="utf-8")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    ways = [_way(evaluated, way) for way in evaluated.ways]
    points = [[[p.confidence, p.n, p.accuracy] for p in way["points"]] for way in ways]
    data = json.dumps({"n": len(evaluated.gold), "points": points, "size": SIZE, "left": LEFT})
    return _template().render(
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
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, clip=clip, comma="{:,}".format, three="{:.3f}".format)
    return environment.from_string(Path(__file__).with_name("evaluation.html").read_text(encoding="utf-8"))


def _way(evaluated: Evaluated, way: EvaluatedWay) -> dict[str, Any]:
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
    """Place a bar a bin, as high as its accuracy, and a dot at its mean confidence."""
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
    """Return the SVG path of accuracy over the share of rows that are decided."""
    places = [(LEFT + SIZE * point.n / n, 8 + SIZE * (1 - point.accuracy)) for point in points]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places) if places else ""


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
    """Return what is taken for what most often."""
    off = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-off, axis=None, kind="stable")[:N_CONFUSED]
    pairs = [np.unravel_index(i, off.shape) for i in order]
    return [(classes[i], classes[j], int(off[i, j])) for i, j in pairs if off[i, j]]
