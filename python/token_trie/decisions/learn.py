"""scikit-learn, which the extra `calibration` brings: imported where it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from token_trie.errors import ArgumentError


def import_sklearn(name: str) -> Any:
    """Import a module of scikit-learn, or say what to install."""
    try:
        return import_module(f"sklearn.{name}")
    except ImportError as error:
        raise ArgumentError(f"this needs scikit-learn: pip install 'token-trie[calibration]' ({error})") from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Let BLAS and OpenMP work on this thread alone: fits are small, and threads of theirs that wait spin."""
    import_sklearn("utils")  # which brings threadpoolctl
    with import_module("threadpoolctl").threadpool_limits(1):
        yield
