from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import llama_cpp
import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.skipif(not os.environ.get("CI"), reason="compiles everything again, half a minute; set CI=1 for it")
def test_an_isolated_build_compiles_against_the_installed_llama_cpp_python(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, "-Cbuild-dir=", ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    release = llama_cpp.__version__
    tag = sysconfig.get_config_var("EXT_SUFFIX")
    for name in (
        f"builds/{release}/_core{tag}",
        f"builds/{release}/libtoken_trie.so",
        f"builds/none/_core{tag}",
        "_core.pyi",
        "py.typed",
        "include/token_trie.h",
        "cmake/token_trieConfig.cmake",
    ):
        assert f"token_trie/{name}" in names
    assert not [name for name in names if "llama.so" in name or "ggml" in name]
