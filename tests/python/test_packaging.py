from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*command: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs the source tree")
def test_an_isolated_build_compiles_against_the_installed_llama_cpp_python(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, "-Cbuild-dir=", ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tag = sysconfig.get_config_var("EXT_SUFFIX")
    for name in (
        f"_core{tag}",
        "_core.pyi",
        "py.typed",
        "libtoken_trie.so",
        "include/token_trie.h",
        "cmake/token_trieConfig.cmake",
    ):
        assert f"token_trie/{name}" in names
    assert not [name for name in names if "llama.so" in name or "ggml" in name]


def test_a_cpp_program_finds_the_package_and_decides(tmp_path: Path, model_paths: dict[str, Path]) -> None:
    cmake = BIN / "cmake" if (BIN / "cmake").exists() else "cmake"
    cmake_dir = run(BIN / "token-trie", "--cmake-dir").strip()
    run(cmake, "-S", ROOT / "examples" / "cpp", "-B", tmp_path, f"-Dtoken_trie_DIR={cmake_dir}")
    run(cmake, "--build", tmp_path)
    for request, action in {
        "Wake me up at six o'clock": "SET_ALARM",
        "Text Sam that I am late": "SEND_MESSAGE",
    }.items():
        prompt = f"Request: Will it rain?\nAction: GET_WEATHER\nRequest: {request}.\nAction:"
        assert run(tmp_path / "choose_action", model_paths["smollm2"], prompt).strip() in {
            action,
            "SET_ALARM",
            "SEND_MESSAGE",
            "GET_WEATHER",
        }
