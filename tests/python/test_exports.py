from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import token_trie
from token_trie.native.core import _core


def test_all_is_sorted_and_true() -> None:
    assert token_trie.__all__ == sorted(token_trie.__all__)
    assert all(hasattr(token_trie, name) for name in token_trie.__all__)


def test_the_root_has_the_names_that_a_newcomer_needs() -> None:
    assert len(token_trie.__all__) <= 42


def test_every_public_name_has_a_docstring() -> None:
    for name in token_trie.__all__:
        thing = getattr(token_trie, name)
        assert inspect.getdoc(thing), name
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_the_version_is_one() -> None:
    assert token_trie.__version__ == version("token-trie")


def test_the_stub_names_what_the_engine_has() -> None:
    stub = (Path(token_trie.__file__).parent / "_core.pyi").read_text()
    declared = set(re.findall(r"^(?:class|def) (\w+)", stub, re.MULTILINE))
    bound = {name for name in vars(_core) if not name.startswith("_")}
    assert declared == bound
    for name in ("Trie", "FollowSet", "Cursor"):
        body = re.search(rf"^class {name}:\n((?: .*\n|\n)+)", stub, re.MULTILINE)
        assert body is not None
        methods = {m for m in re.findall(r"def (\w+)", body[1]) if not m.startswith("__")}
        assert methods == {m for m in vars(getattr(_core, name)) if not m.startswith("_")}


def test_importing_is_light() -> None:
    code = """
import sys
import pytest
import token_trie
loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "token_trie"}
assert len(loaded) <= 30, sorted(loaded)
files = [module.__file__ for module in loaded.values() if module.__file__.endswith(".py")]
assert sum(len(open(file).readlines()) for file in files) <= 9_000
heavy = {"rich", "typer", "tqdm", "sklearn", "pydantic", "jinja2", "matplotlib", "pandas"} & sys.modules.keys()
assert not heavy, heavy
assert set(token_trie.__all__) <= set(dir(token_trie))
from token_trie import *
assert choose is token_trie.choose
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_no_name_of_the_root_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'chose'"):
        _ = token_trie.chose
