"""Seeds for the modes that draw."""

from __future__ import annotations

from typing import Any


def seeded(mode: str | None, seed: int) -> dict[str, Any]:
    """Return the option of a seed, if a mode draws; the others refuse it."""
    return {"seed": seed} if mode in ("sampled", "aligned") else {}
