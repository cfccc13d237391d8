from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import token_trie
from token_trie.native.ffi import LIBRARY

DECIDE_AND_SHOW_MAPS = """
import llama_cpp, token_trie
llm = llama_cpp.Llama(token_trie.demo_model(), n_ctx=64, verbose=False)
assert token_trie.choose(llm, "The capital of France is", ["Paris", "Rome"]).value == "Paris"
print(open("/proc/self/maps").read())
"""


def libraries(maps: str, name: str) -> set[str]:
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split()) > 5}
    return {path for path in paths if Path(path).name.startswith(f"{name}.")}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
@pytest.mark.parametrize("order", ["import llama_cpp, token_trie", "import token_trie, llama_cpp"])
def test_one_llama_lives_in_the_process(order: str) -> None:
    code = DECIDE_AND_SHOW_MAPS.replace("import llama_cpp, token_trie", order)
    maps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in ("libllama", "libggml-base", "libtoken_trie"):
        assert len(libraries(maps, name)) == 1, libraries(maps, name)
    (llama,) = libraries(maps, "libllama")
    assert Path(llama).parent.parts[-2:] == ("llama_cpp", "lib")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_a_host_without_llama_cpp_python_finds_the_same_library() -> None:
    code = f"""
import ctypes
lib = ctypes.CDLL({str(LIBRARY)!r})
lib.token_trie_version.restype = ctypes.c_char_p
assert lib.token_trie_version().decode() == {token_trie.__version__!r}
assert lib.token_trie_check_llama() == 0
print(open("/proc/self/maps").read())
"""
    maps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    (llama,) = libraries(maps, "libllama")
    assert Path(llama).parent.parts[-2:] == ("llama_cpp", "lib")


def test_python_and_c_share_one_cache() -> None:
    code = """
import ctypes, llama_cpp, token_trie
from token_trie.native.ffi import LIBRARY
lib = ctypes.CDLL(str(LIBRARY))
init = lib.llama_sampler_init_token_trie
init.restype, init.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
payload = token_trie.TokenTrie.from_sequences({"a": [1]}).payload()
token_trie.TokenTrie.from_payload(payload)
assert init(None, payload.encode(), 0)
assert token_trie.cache_stats()[:2] == (1, 1), token_trie.cache_stats()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_loads_no_command_line_and_sets_nothing_global() -> None:
    code = """
import sys, logging, llama_cpp
before = set(sys.modules)
import token_trie
loaded = {name.split(".")[0] for name in set(sys.modules) - before}
assert loaded.isdisjoint({"typer", "rich", "tqdm", "matplotlib", "pycparser"}), loaded
assert not logging.getLogger("token_trie").handlers
"""
    subprocess.run([sys.executable, "-c", code], check=True)
