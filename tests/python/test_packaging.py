from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from forked_llama import fork_with_one_more_member
from token_trie.native.core import build

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
    tag = sysconfig.get_config_var("EXT_SUFFIX")
    for name in (
        f"builds/{build.name}/_core{tag}",
        f"builds/{build.name}/libtoken_trie.so",
        f"builds/none/_core{tag}",
        "_core.pyi",
        "py.typed",
        "include/token_trie.h",
        "cmake/token_trieConfig.cmake",
    ):
        assert f"token_trie/{name}" in names
    assert not [name for name in names if "llama.so" in name or "ggml" in name]


@pytest.mark.skipif(not os.environ.get("CI"), reason="compiles everything again, half a minute; set CI=1 for it")
def test_a_build_from_source_fits_a_fork_with_other_structs(tmp_path: Path, model_paths: dict[str, Path]) -> None:
    site = fork_with_one_more_member(tmp_path / "site")
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--target", site)
    # Functions that the fork leaves as they are come from the library behind it.
    link = "-Ccmake.define.CMAKE_SHARED_LINKER_FLAGS=-Wl,--copy-dt-needed-entries"
    run(*pip, "-Cbuild-dir=", f"-Ccmake.define.Llama_SITE_PACKAGES={site}", link, ROOT)
    code = f"""
import sys; sys.path.insert(0, {str(site)!r})
import llama_cpp, token_trie
llm = llama_cpp.Llama({str(model_paths["tiny"])!r}, n_ctx=256, verbose=False)
assert llm.context_params.fork_extra == 7
print(token_trie.__file__, token_trie.choose(llm, "Well?", ["yes", "no"]).text)
"""
    file, answer = run(sys.executable, "-c", code).split()
    assert Path(file).is_relative_to(site)
    assert answer in ("yes", "no")
