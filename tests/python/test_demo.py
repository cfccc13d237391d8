from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from token_trie import ArgumentError, demo_model


def test_the_demo_model_is_a_file_of_the_extra() -> None:
    with Path(demo_model()).open("rb") as file:
        assert file.read(4) == b"GGUF"


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ArgumentError, match=r"pip install 'token-trie\[demo\]'"):
        demo_model()
