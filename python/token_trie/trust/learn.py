"""scikit-learn, which the extra `calibration` brings: imported where it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from token_trie.errors import ArgumentError


def import_sklearn(name: str) -> Any:
    """Import a module of scikit-learn, or say what to install."""
    try:
        return import_module(f"sklearn.{name}")
    except ImportError as error:
        raise ArgumentError(
            f"evaluating and calibrating need scikit-learn: pip install 'token-trie[calibration]' ({error})"
        ) from error
