from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from labelling import Cli


@pytest.fixture
def cli(tmp_path: Path, model_paths: dict[str, Path], monkeypatch: Any, capfd: Any) -> Cli:
    return Cli(tmp_path, model_paths["tiny"], monkeypatch, capfd)
