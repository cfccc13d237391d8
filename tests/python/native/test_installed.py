from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from token_trie.native.installed import BUILDS, releases

WITHOUT = 'import sys; sys.modules["llama_cpp"] = None'
UNKNOWN = 'import llama_cpp; llama_cpp.__version__ = "99.0.1"'

BROKEN = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "llama_cpp":
            raise {error}
sys.meta_path.insert(0, Broken())
"""
WITHOUT_CUDA = BROKEN.format(error='OSError("libcuda.so.1: cannot open shared object file")')

SETS_AND_MATCHERS = """
import numpy as np
import token_trie
from token_trie.engines.matcher import TrieMatcher

trie = token_trie.TokenTrie.from_sequences({"yes": [1, 2], "no": [1, 3], "other": [4]})
assert len(trie.filtered(np.array([True, False, True]))) == 2
trie.save(FILE)
opened = token_trie.TokenTrie.open(FILE, verify=True)
assert opened.payload() == trie.payload() == token_trie.TokenTrie.from_payload(trie.payload()).payload()
with token_trie.Catalogue(FILE) as catalogue:
    catalogue.add({"more": [5, 6]})
    assert len(catalogue.trie) == 4
matcher = TrieMatcher(opened, 8, end_tokens=[0])
assert matcher.accept_token(1) and not matcher.accept_token(4)
"""


def run(before: str, code: str, *, names: dict[str, Path] | None = None) -> str:
    given = "\n".join(f"{name} = {str(path)!r}" for name, path in (names or {}).items())
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{given}\n{code}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "before", [WITHOUT, UNKNOWN, WITHOUT_CUDA], ids=["no llama_cpp", "a release without a build", "broken"]
)
def test_sets_files_catalogues_and_matchers_need_no_llama(before: str, tmp_path: Path) -> None:
    run(before, SETS_AND_MATCHERS, names={"FILE": tmp_path / "a.trie"})


@pytest.mark.parametrize("before", [WITHOUT, UNKNOWN], ids=["no llama_cpp", "a release without a build"])
@pytest.mark.parametrize(
    "call",
    [
        'token_trie.choose(object(), "Well?", ["yes", "no"])',
        "token_trie.StreamHandle(object())",
        'token_trie.TokenTrie.from_choices(object(), ["yes", "no"])',
    ],
)
def test_what_needs_a_model_says_what_to_install(before: str, call: str) -> None:
    code = f"""
import token_trie
try:
    {call}
except token_trie.LlamaVersionError as error:
    print(error)
"""
    told = run(before, code)
    assert "pip install" in told
    assert releases()[-1] in told
    if before == UNKNOWN:
        assert "llama-cpp-python 99.0.1" in told


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ('OSError("libcuda.so.1: cannot open")', "OSError: libcuda.so.1: cannot open"),
        ("RuntimeError(\"Failed to load 'libllama.so'\")", "RuntimeError: Failed to load 'libllama.so'"),
        (
            'ModuleNotFoundError("No module named \'jinja2\'", name="jinja2")',
            "ModuleNotFoundError: No module named 'jinja2'",
        ),
    ],
)
def test_a_llama_cpp_that_cannot_be_imported_is_absent_and_the_reason_is_told(
    error: str, reason: str, tmp_path: Path
) -> None:
    code = """
try:
    token_trie.choose(object(), "Well?", ["yes", "no"])
except token_trie.LlamaVersionError as error:
    print(error)
"""
    told = run(BROKEN.format(error=error), SETS_AND_MATCHERS + code, names={"FILE": tmp_path / "a.trie"})
    assert f"cannot be imported ({reason})" in told


@pytest.mark.parametrize("version", ["''", "'none'", "'.'", "'..'", "'+cu124'", "None", None])
def test_what_is_no_release_has_no_build(version: str | None, tmp_path: Path) -> None:
    before = "import llama_cpp; " + (
        "del llama_cpp.__version__" if version is None else f"llama_cpp.__version__ = {version}"
    )
    code = "import token_trie.native.installed as i; print(i.build, i.has_llama, i.llama_cpp.why, sep='\\n')"
    told = run(before, SETS_AND_MATCHERS + code, names={"FILE": tmp_path / "a.trie"})
    build, has_llama, why = told.splitlines()
    assert (build, has_llama) == (str(BUILDS / "none"), "False")
    assert f"builds for {', '.join(releases())}" in why


def test_the_build_is_that_of_the_installed_release() -> None:
    code = "import token_trie.native.installed as i, token_trie._core as c; print(i.build, c.__file__, sep='\\n')"
    build, core = map(Path, run("", code).splitlines())
    import llama_cpp

    assert build == BUILDS / llama_cpp.__version__ == core.parent


def test_what_a_build_of_ones_own_says_behind_its_release_is_passed_over() -> None:
    before = 'import llama_cpp; llama_cpp.__version__ += "+cu124"'
    code = "import llama_cpp, token_trie.native.installed as i; print(i.build.name, llama_cpp.__version__)"
    build, version = run(before, code).split()
    assert version == f"{build}+cu124"


def test_the_command_says_what_it_runs_without() -> None:
    code = """
sys.argv = ["token-trie", "--version"]
from token_trie.cli import main
main()
"""
    assert "no llama-cpp-python is installed" in run(WITHOUT, code)


def test_a_command_that_needs_a_model_ends_with_one_line(model_paths: dict[str, Path]) -> None:
    code = """
sys.argv = ["token-trie", "choose", "--model", MODEL, "--prompt", "Well?", "--choice", "yes"]
from token_trie.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT}\nMODEL = {str(model_paths['smollm2'])!r}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no llama-cpp-python is installed" in done.stderr
    assert done.stderr.count("\n") == 1
