"""What texts of one template have of their own."""

from __future__ import annotations

from collections.abc import Sequence


def own_parts(texts: Sequence[str]) -> tuple[str, list[str], str]:
    """Cut off the words that all texts begin with, and those that all end with; return them around what is left."""
    start = _n_common(texts)
    start = max((i + 1 for i in range(start) if texts[0][i].isspace()), default=0)
    inner = [text[start:] for text in texts]
    end = _n_common([text[::-1] for text in inner])
    end = max((i + 1 for i in range(end) if inner[0][-1 - i].isspace()), default=0)
    return texts[0][:start], [text[: len(text) - end] for text in inner], texts[0][len(texts[0]) - end :]


def _n_common(texts: Sequence[str]) -> int:
    """Return how many letters all texts begin with."""
    first, last = min(texts), max(texts)
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
