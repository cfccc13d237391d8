"""The recipes of docs/engines.md, each on its engine with two workers. `make test-data` installs the engines."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from token_trie import choose_many

PAGE = Path(__file__).parents[3] / "docs" / "engines.md"
ENGINES = {"Ray Data": "ray", "Dask": "dask", "Spark": "pyspark", "Hugging Face datasets": "datasets", "Daft": "daft"}
SURVIVING = ["Ray Data", "Dask", "Spark"]
N = 2000

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(module) is None for module in ENGINES.values()), reason="make test-data installs them"
)


def recipe(engine: str) -> str:
    page = PAGE.read_text().partition("## Tables of millions\n")[2]
    found = dict(re.findall(r"^### (.*?)\n.*?```py\n(.*?)```", page, re.DOTALL | re.MULTILINE))
    options = re.findall(r"^```py\n(from token_trie.*?)```", page, re.DOTALL | re.MULTILINE)[0]
    return options + "\n" + found[engine]


def rows() -> dict[str, list[Any]]:
    texts = [f"It is {'a fine' if i % 3 else 'an awful'} thing, number {i}." for i in range(N)]
    return {"id": list(range(N)), "text": texts}


class Watch:
    """Sees which processes have a file mapped; kills one of them, if it is to."""

    def __init__(self, file: Path, *, kills: bool) -> None:
        self._file, self._kills = str(file.resolve()), kills
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._seen: set[int] = set()
        self.killed: int | None = None

    def _holders(self) -> list[int]:
        found = []
        for maps in Path("/proc").glob("[0-9]*/maps"):
            try:
                if self._file in maps.read_text():
                    found.append(int(maps.parent.name))
            except OSError:
                continue
        return [pid for pid in found if pid != os.getpid()]

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            holders = self._holders()
            self._seen.update(holders)
            if self._kills and self.killed is None and holders:
                time.sleep(0.3)
                self.killed = holders[0]
                os.kill(self.killed, signal.SIGKILL)

    @property
    def seen(self) -> set[int]:
        """All that had it mapped."""
        return set(self._seen)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def expected(precise: Any) -> list[Any]:
    prompts = [f"Review: {text}\nSentiment:" for text in rows()["text"]]
    return list(choose_many(precise, prompts, ["positive", "negative"], mode="exact", probabilities=True))


def run(engine: str, folder: Path, model: Path, *, kills: bool) -> Watch:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(rows()), folder / "reviews.parquet")
    model = Path(shutil.copy(model, folder / "model.gguf"))  # as a child has its parent's files until it is another
    script = folder / "recipe.py"
    script.write_text(f"MODEL = {str(model)!r}\n{recipe(engine)}")
    environment = {**os.environ, "GOMP_SPINCOUNT": "1000", "PYSPARK_PYTHON": sys.executable}
    with Watch(model, kills=kills) as watch:
        done = subprocess.run(
            [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, timeout=200
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return watch


def check(folder: Path, expected: list[Any]) -> None:
    import pyarrow.dataset

    (made,) = folder.glob("by_*")
    found = pyarrow.dataset.dataset(made, format="parquet", exclude_invalid_files=False).to_table().to_pydict()
    assert sorted(found["id"]) == list(range(N)), "every row once"
    assert set(found["error"]) == {""}
    for i, label, probability in zip(found["id"], found["label"], found["probability"], strict=True):
        decision = expected[i]
        assert probability == pytest.approx(decision.probabilities[decision.index], abs=1e-2)
        if decision.margin > 0.05:
            assert label == decision.value


@pytest.mark.parametrize("engine", ENGINES)
def test_every_row_is_labelled_once_as_choose_many_does_by_two_workers(
    engine: str, tmp_path: Path, model_paths: Any, expected: list[Any]
) -> None:
    watch = run(engine, tmp_path, model_paths["tiny"], kills=False)
    check(tmp_path, expected)
    assert 1 <= len(watch.seen) <= 2, "a worker loads the model once; a quick one may leave nothing for the other"


@pytest.mark.parametrize("engine", SURVIVING)
def test_a_killed_worker_loses_no_row(engine: str, tmp_path: Path, model_paths: Any, expected: list[Any]) -> None:
    watch = run(engine, tmp_path, model_paths["tiny"], kills=True)
    assert watch.killed is not None
    check(tmp_path, expected)
