from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Serving


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Where a server with SmolLM2 listens."""
    with Serving() as serving:
        yield serving.url


@pytest.fixture(scope="session")
def model(model_paths: dict[str, Path]) -> Path:
    """Return a file for servers of a test's own."""
    return model_paths["smollm2"]
