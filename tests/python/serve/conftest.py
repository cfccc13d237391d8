from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import SETTLED
from browser import Tab
from serving import Serving


@pytest.fixture(scope="session")
def server(any_path: Path) -> Iterator[str]:
    """Where a server with `any_model` listens."""
    with Serving(any_path) as serving:
        yield serving.url


@pytest.fixture(scope="session")
def model(any_path: Path) -> Path:
    """Return a file for servers of a test's own."""
    return any_path


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
