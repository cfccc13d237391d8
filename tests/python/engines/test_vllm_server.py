"""vLLM's OpenAI-like server on the processor: sets over HTTP, and errors that are the client's."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from token_trie import TokenTrie
from vllm_model import save_tiny_llama

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vllm", allow_module_level=True)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served_llama")
    save_tiny_llama(folder)
    (folder / "mood.json").write_text(TokenTrie.from_sequences({"A": [7, 8], "B": [9]}).payload())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "128", "--enforce-eager"]
    named = ["--logits-processors", "token_trie.engines.vllm:TrieLogitsProcessor", "--served-model-name", "tiny"]
    sizes = ["--kv-cache-memory-bytes", str(64 << 20), "--max-num-seqs", "16", "--port", str(port)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), *options]
    log = (folder / "log").open("w")
    server = subprocess.Popen(
        [*command, *named, *sizes], env=os.environ | {"TOKEN_TRIE_SETS": str(folder)}, stdout=log, stderr=log
    )
    for _ in range(300):
        assert server.poll() is None, (folder / "log").read_text()[-4000:]
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            break
        except OSError:
            time.sleep(1)
    yield f"http://127.0.0.1:{port}/v1/completions"
    server.terminate()
    server.wait(60)
    log.close()


def ask(url: str, given: str | None, **options: Any) -> tuple[int, Any]:
    extra = {} if given is None else {"vllm_xargs": {"token_trie": given}}
    body = {"model": "tiny", "prompt": "The answer is", "max_tokens": 20, **extra, **options}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_requests_at_once_over_http(url: str) -> None:
    sets = [json.dumps({"choices": [f"{word} {i}" for word in ("yes", "no", "READ")]}) for i in range(24)]
    with ThreadPoolExecutor(24) as pool:
        for i, (status, answer) in enumerate(pool.map(lambda given: ask(url, given, n=2), sets)):
            assert status == 200
            assert {choice["text"] for choice in answer["choices"]} <= {f" {w} {i}" for w in ("yes", "no", "READ")}


def test_a_set_by_its_name(url: str) -> None:
    status, answer = ask(url, "mood", return_token_ids=True)
    assert status == 200
    assert answer["choices"][0]["token_ids"][:-1] in ([7, 8], [9])


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("mud", {}, "mud.json"),
        ('{"choices": [7]}', {}, "choices[0] must be str, not int"),
        ('{"file": "/etc/passwd"}', {}, "unknown key 'file'"),
        ('{"choices": ["a"], "mode": "best"}', {}, "mode must be one of"),
        ('{"choices": ["a"]}', {"structured_outputs": {"choice": ["a"]}}, "beside structured_outputs"),
    ],
)
def test_what_is_wrong_is_the_clients_error(url: str, given: str, options: dict[str, Any], message: str) -> None:
    status, answer = ask(url, given, **options)
    assert status == 400
    assert message in answer["error"]["message"]
    assert ask(url, None)[0] == 200
