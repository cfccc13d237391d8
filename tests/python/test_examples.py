from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from token_trie.native.ffi import LIBRARY, ffi

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="needs the source tree")


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, env=os.environ | (env or {})
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check_decision(output: str, action: str) -> None:
    """Check what both streaming examples print."""
    printed, reply, _, summary = output.splitlines()
    assert printed == f"Action: {action}"
    assert reply.startswith("Reply:")
    # The first branch point is the prompt's pass; weather_report is the only one to begin as it does.
    passes = 0 if action == "weather_report" else 1
    counts = rf"tokens chosen: {passes + 1}, forced: \d+; passes: {passes}"
    assert re.fullmatch(rf"{action} \(\d+\.\d %\); {counts}", summary)


# C++


@pytest.fixture(scope="module")
def cpp_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    build = tmp_path_factory.mktemp("cpp")
    cmake = BIN / "cmake" if (BIN / "cmake").exists() else "cmake"
    cmake_dir = run(BIN / "token-trie", "--cmake-dir").strip()
    run(cmake, "-S", EXAMPLES / "cpp", "-B", build, f"-Dtoken_trie_DIR={cmake_dir}")
    run(cmake, "--build", build)
    return build


@pytest.mark.parametrize("request_", ["Wake me up at six o'clock", "Text Sam that I am late"])
def test_a_cpp_program_finds_the_package_and_decides(
    cpp_examples: Path, model_paths: dict[str, Path], request_: str
) -> None:
    prompt = f"Request: Will it rain?\nAction: GET_WEATHER\nRequest: {request_}.\nAction:"
    answer = run(cpp_examples / "choose_action", model_paths["smollm2"], prompt).strip()
    assert answer in {"SET_ALARM", "SEND_MESSAGE", "GET_WEATHER"}


def test_a_cpp_program_streams_from_a_file(cpp_examples: Path, model_paths: dict[str, Path]) -> None:
    output = run(cpp_examples / "stream_action", model_paths["smollm2"], "Wake me up at six.")
    check_decision(output, "alarm_set")


# TypeScript


def bun_package() -> str:
    """Name of the npm package with this platform's runtime."""
    machine = {"x86_64": "x64", "amd64": "x64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
    musl = "-musl" if sys.platform == "linux" and platform.libc_ver()[0] != "glibc" else ""
    return f"@oven/bun-{sys.platform}-{machine}{musl}"


@pytest.fixture(scope="module")
def bun(pytestconfig: pytest.Config) -> Path:
    package = bun_package()
    folder = pytestconfig.cache.mkdir("bun")
    binary = folder / "node_modules" / package / "bin" / "bun"
    if not binary.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"{package} cannot be installed: there is no npm")
        options = ["--no-save", "--no-audit", "--no-fund", "--fetch-retries=1", "--loglevel=error"]
        command = [npm, "install", *options, "--prefix", str(folder), f"{package}@^1.3"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            pytest.skip(f"{package} cannot be installed: {result.stderr.strip().partition(chr(10))[0]}")
    if subprocess.run([binary, "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{package} does not run on this machine")
    return binary


def test_a_typescript_client_knows_the_layout_of_the_structs(bun: Path, tmp_path: Path) -> None:
    script = tmp_path / "layouts.ts"
    script.write_text(f"""
        import {{ LAYOUTS }} from {json.dumps(str(EXAMPLES / "bun" / "token_trie.ts"))};
        const all = Object.entries(LAYOUTS).map(([name, {{ bytes, members }}]) =>
            [name, {{ bytes, members: [...members].map(([member, {{ at, kind }}]) => [member, at, kind.width]) }}]);
        console.log(JSON.stringify(Object.fromEntries(all)));
    """)
    layouts = json.loads(run(bun, script))
    assert set(layouts) == {
        "token_trie_stream_params",
        "token_trie_sampling",
        "token_trie_token",
        "token_trie_stream_state",
    }
    for name, layout in layouts.items():
        struct = ffi.typeof(f"struct {name}")
        members = [[member, field.offset, ffi.sizeof(field.type)] for member, field in struct.fields]
        assert layout == {"bytes": ffi.sizeof(struct), "members": members}


@pytest.mark.parametrize(
    ("request_", "action"), [("Wake me up at six.", "alarm_set"), ("Is it cold in Oslo?", "weather_report")]
)
def test_a_typescript_client_decides_with_one_llama_in_the_process(
    bun: Path, model_paths: dict[str, Path], tmp_path: Path, request_: str, action: str
) -> None:
    maps, preload = tmp_path / "maps", tmp_path / "preload.ts"
    preload.write_text(f"""
        import {{ copyFileSync, existsSync }} from "node:fs";
        process.on("exit", () => existsSync("/proc/self/maps") &&
            copyFileSync("/proc/self/maps", {json.dumps(str(maps))}));
    """)
    client = [EXAMPLES / "bun" / "choose_action.ts", "--threads", "1", model_paths["smollm2"], request_]
    output = run(bun, "--preload", preload, *client, env={"TOKEN_TRIE_LIBRARY": str(LIBRARY), "NO_COLOR": "1"})
    check_decision(output, action)
    if sys.platform == "linux":
        files = {line.split()[-1] for line in maps.read_text().splitlines()}
        for library in ("libtoken_trie", "libllama", "libggml-base", "libggml-cpu"):
            assert len([file for file in files if Path(file).name.startswith(f"{library}.")]) == 1, library


def test_a_typescript_client_shows_why_a_call_failed(bun: Path, tmp_path: Path) -> None:
    client = [bun, EXAMPLES / "bun" / "choose_action.ts", "--library", LIBRARY, tmp_path / "no.gguf", "Wake me."]
    result = subprocess.run(client, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert 'no.gguf" could not be loaded as a model' in result.stderr
