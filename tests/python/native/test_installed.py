from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import llama_cpp
import pytest
from forked_llama import GGML, LLAMA, cut, declare_one_more_member, fork, fork_with_one_more_member
from token_trie.native.core import COMPILE, NO_LLAMA, _core, build

WITHOUT = 'import sys; sys.modules["llama_cpp"] = None'
VERSION, COMMIT = (part.strip("()").encode() for part in _core.llama_loaded().split())

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


@pytest.mark.parametrize("before", [WITHOUT, WITHOUT_CUDA], ids=["no llama_cpp", "broken"])
def test_sets_files_and_matchers_need_no_llama(before: str, tmp_path: Path) -> None:
    run(before, SETS_AND_MATCHERS, names={"FILE": tmp_path / "a.trie"})


@pytest.mark.parametrize(
    "call",
    [
        'token_trie.choose(object(), "Well?", ["yes", "no"])',
        "token_trie.StreamHandle(object())",
        'token_trie.TokenTrie.from_choices(object(), ["yes", "no"])',
    ],
)
def test_what_needs_a_model_says_what_to_install(call: str) -> None:
    code = f"""
import token_trie
try:
    {call}
except token_trie.errors.LlamaVersionError as error:
    print(error)
"""
    assert "pip install llama-cpp-python" in run(WITHOUT, code)


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
def test_a_llama_cpp_that_cannot_be_imported_is_absent_and_the_reason_is_reported(
    error: str, reason: str, tmp_path: Path
) -> None:
    code = """
try:
    token_trie.choose(object(), "Well?", ["yes", "no"])
except token_trie.errors.LlamaVersionError as error:
    print(error)
"""
    told = run(BROKEN.format(error=error), SETS_AND_MATCHERS + code, names={"FILE": tmp_path / "a.trie"})
    assert f"cannot be used ({reason})" in told


ANSWER = """
import llama_cpp, token_trie.native.core as i
print(llama_cpp.__version__)
print(i.build, i.has_llama)
try:
    llm = i.llama_cpp.Llama(MODEL, n_ctx=256, verbose=False)
    print(token_trie.choose(llm, "Well?", ["yes", "no"]).text)
except token_trie.errors.LlamaVersionError as error:
    print(error)
"""


def answer_with(site: Path, tmp_path: Path, model: Path) -> list[str]:
    """Use sets, then a model with the llama_cpp of a folder; return lines: version, build and whether used, answer."""
    before = f"import sys; sys.path.insert(0, {str(site)!r})"
    lines = run(before, SETS_AND_MATCHERS + ANSWER, names={"FILE": tmp_path / "a.trie", "MODEL": model}).splitlines()
    assert lines[0] == llama_cpp.__version__  # which says nothing
    return lines[1:]


def other(digits: bytes) -> bytes:
    return digits.translate(bytes.maketrans(b"0123456789abcdef", b"1234567890bcdefa"))


@pytest.mark.parametrize(
    ("library", "old", "new", "reason"),
    [
        pytest.param(
            GGML,
            b"\0" + COMMIT,
            b"\0" + other(COMMIT),
            f"no build for ggml {VERSION.decode()} ({other(COMMIT).decode()})",
            marks=pytest.mark.skipif(COMMIT == b"unknown", reason="this libllama does not say its commit"),
        ),
        (GGML, b"\0" + VERSION, b"\0" + other(VERSION), f"no build for ggml {other(VERSION).decode()} ("),
        (GGML, b"\0ggml_commit\0", b"\0other_name_\0", "undefined symbol: ggml_commit"),
        (LLAMA, LLAMA.encode(), b"libother.so.0", "token-trie does not fit "),
    ],
    ids=["another commit", "newer", "without a commit", "renamed"],
)
def test_a_library_that_is_not_known_is_refused_by_name_and_sets_work(
    library: str, old: bytes, new: bytes, reason: str, tmp_path: Path, model_paths: dict[str, Path]
) -> None:
    site = fork(tmp_path / "site", {library: (old, new)})
    used, answer = answer_with(site, tmp_path, model_paths["tiny"])
    assert used.endswith("False")
    assert reason in answer
    assert "pip install" in answer
    if not reason.startswith("undefined"):
        assert str(site / "llama_cpp" / "lib" / "libllama.so") in answer
        assert COMPILE in answer


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the loader itself refuses such a file")
@pytest.mark.parametrize(
    ("library", "n_bytes", "reason"),
    [
        (LLAMA, None, "FileNotFoundError"),
        (GGML, None, f"{GGML}: cannot open shared object file"),
        (LLAMA, 0, "file too short"),
        (GGML, 100, "is cut short: it has 100 of "),
        (LLAMA, 1_000_000, "is cut short: it has 1,000,000 of "),
        ("libggml-cpu.so.0", 1_000_000, "is cut short: it has 1,000,000 of "),
    ],
)
def test_a_library_that_is_missing_or_cut_short_is_absent_and_the_reason_is_reported(
    library: str, n_bytes: int | None, reason: str, tmp_path: Path
) -> None:
    site = fork(tmp_path / "site")
    cut(site, library, n_bytes)
    code = """
try:
    token_trie.choose(object(), "Well?", ["yes", "no"])
except token_trie.errors.LlamaVersionError as error:
    print(error)
"""
    before = f"import sys; sys.path.insert(0, {str(site)!r})"
    told = run(before, SETS_AND_MATCHERS + code, names={"FILE": tmp_path / "a.trie"})
    assert reason in told
    assert "pip install --force-reinstall llama-cpp-python" in told


def test_a_library_that_does_not_say_its_commit_is_known_by_its_version_and_structs(
    tmp_path: Path, model_paths: dict[str, Path]
) -> None:
    unknown = b"unknown".ljust(len(COMMIT), b"\0")
    site = fork(tmp_path / "site", {GGML: (COMMIT, unknown)})
    used, answer = answer_with(site, tmp_path, model_paths["tiny"])
    assert used == f"{build} True"
    assert answer in ("yes", "no")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_library_with_another_struct_is_refused(tmp_path: Path, model_paths: dict[str, Path]) -> None:
    site = fork_with_one_more_member(tmp_path / "site")
    used, answer = answer_with(site, tmp_path, model_paths["tiny"])
    assert used.endswith("False")
    size = dict(_core.llama_layout())["llama_context_params"]
    assert f"llama_context_params has {size} bytes there and {size + 8} in the library that is loaded" in answer
    assert COMPILE in answer


def test_a_package_that_declares_another_struct_is_refused(tmp_path: Path, model_paths: dict[str, Path]) -> None:
    site = fork(tmp_path / "site")
    declare_one_more_member(site)
    used, answer = answer_with(site, tmp_path, model_paths["tiny"])
    assert used.endswith("False")
    assert "llama_context_params is " in answer


def test_the_version_of_llama_cpp_python_does_not_choose_the_build() -> None:
    code = "import token_trie.native.core as i, token_trie._core as c; print(i.build, c.__file__, sep='\\n')"
    for before in (
        "",
        "import llama_cpp; llama_cpp.__version__ = '99.0.1'",
        "import llama_cpp; del llama_cpp.__version__",
    ):
        assert [Path(line) for line in run(before, code).splitlines()] == [build, Path(_core.__file__)]
    assert build != NO_LLAMA


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
