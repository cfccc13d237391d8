from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import SETTLED
from browser import Tab
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


@pytest.fixture(scope="session")
def url(model_paths: dict[str, Path]) -> Iterator[str]:
    """Where a server with a tiny model in F32 listens."""
    with Serving(model_paths["tiny"]) as serving:
        yield serving.url


@pytest.fixture
def page(browser: Tab, url: str) -> Iterator[Tab]:
    """Return the page, with the answers to what it begins with."""
    browser.events.clear()
    browser.size(1280, 900)
    browser.prefer()
    browser.open(url)
    browser.until(SETTLED)
    yield browser
    assert browser.complaints() == []
    assert {address.startswith(url) for _, address in browser.requested()} == {True}
