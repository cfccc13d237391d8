"""Models that write no token after another: every function that needs one refuses them, by architecture."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands
import llama_cpp
import pytest
import token_trie
from refused_architectures import REFUSED, gemma4_assistant
from tiny_model import sentence_pieces, write_tiny_model
from token_trie import ArgumentError, Choice, StreamHandle, TokenTrie
from token_trie.engines.sklearn import TrieClassifier
from token_trie.llama.batch import Batch
from token_trie.native.ffi import check_pointer, ffi, lib, new_struct
from token_trie.serve.engine import Engine

ACTIONS = ["yes", "no", "Pizza"]
SCHEMA = {"type": "object", "properties": {"food": {"enum": ACTIONS}}, "required": ["food"]}
TOOL = {"type": "function", "function": {"name": "eat", "parameters": SCHEMA}}
QUESTION = Choice("Which?", ACTIONS)
CHAT = [{"role": "user", "content": "What do I eat?"}]
PROMPTS = ["Answer:", "And now:"]


def constrained(llm: Any) -> None:
    with token_trie.constrain(llm, TokenTrie.from_choices(llm, ACTIONS)):
        llm.create_completion("Answer:")


def struct(kind: str, pointer: Any) -> Any:
    return ffi.cast(f"struct {kind} *", ctypes.cast(pointer, ctypes.c_void_p).value)


def by_the_abi(function: Any, params: str) -> Callable[[Any], Any]:
    """Open something by the C ABI, on a model of the caller's."""

    def opened(llm: Any) -> Any:
        contexts = struct("llama_context_params", ctypes.pointer(llm.context_params))
        return check_pointer(function(struct("llama_model", llm._model.model), contexts, new_struct(params)))

    return opened


CALLS: dict[str, Callable[[Any], Any]] = {
    "choose": lambda llm: token_trie.choose(llm, "Answer:", ACTIONS),
    "choose_many": lambda llm: list(token_trie.choose_many(llm, PROMPTS, ACTIONS)),
    "choose_list": lambda llm: token_trie.choose_list(llm, "Answer:", ACTIONS),
    "choose_tool": lambda llm: token_trie.choose_tool(llm, CHAT, [TOOL]),
    "choose_tool_many": lambda llm: list(token_trie.choose_tool_many(llm, [CHAT], [TOOL])),
    "score": lambda llm: token_trie.score(llm, "Answer:", ACTIONS),
    "score_many": lambda llm: list(token_trie.score_many(llm, PROMPTS, ACTIONS)),
    "decide": lambda llm: token_trie.decide(llm, "A state", QUESTION),
    "decide, reproducible": lambda llm: token_trie.decide(llm, "A state", QUESTION, reproducible=True),
    "decide_many": lambda llm: list(token_trie.decide_many(llm, PROMPTS, QUESTION)),
    "decide_many, reproducible": lambda llm: list(
        token_trie.decide_many(llm, PROMPTS, QUESTION, reproducible=True, on_error="return")
    ),
    "explain": lambda llm: token_trie.explain(llm, "Answer:", ACTIONS),
    "fill": lambda llm: token_trie.fill(llm, "Answer:", SCHEMA),
    "fill_many": lambda llm: list(token_trie.fill_many(llm, PROMPTS, SCHEMA)),
    "constrain": constrained,
    "StreamHandle": StreamHandle,
    "StreamHandle of a file": lambda llm: StreamHandle(llm.model_path),
    "Batch": Batch,
    "TrieClassifier": lambda llm: (
        TrieClassifier(llm.model_path, "Answer: {text}").fit(PROMPTS, ACTIONS[:2]).predict(PROMPTS)
    ),
    "the server": Engine,
    "the server, reproducible": lambda llm: Engine(llm, reproducible=True),
    "token_trie_stream_open_model": by_the_abi(lib.token_trie_stream_open_model, "token_trie_stream_params"),
    "token_trie_batch_open": by_the_abi(lib.token_trie_batch_open, "token_trie_batch_params"),
}


@pytest.fixture(scope="module", params=REFUSED)
def refused(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """Return what a model is refused with, and a Llama with it."""
    write, kind = REFUSED[request.param]
    path = tmp_path_factory.mktemp("refused") / "model.gguf"
    write(path, sentence_pieces())
    llm = llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    yield f"model: {request.param}, {kind}, which ", llm
    llm.close()


@pytest.mark.parametrize("call", CALLS)
def test_it_is_refused_by_its_name(refused: tuple[str, Any], call: str) -> None:
    message, llm = refused
    with pytest.raises(ArgumentError) as told:
        CALLS[call](llm)
    assert message in str(told.value)
    assert str(told.value).endswith("take a model that writes one token after another")


@pytest.mark.parametrize("command", ["choose", "decide", "serve"])
def test_the_command_line_tells_it(refused: tuple[str, Any], command: str) -> None:
    message, llm = refused
    options = {
        "choose": ["--prompt", "Answer:", "--choice", "yes", "--choice", "no"],
        "decide": ["--state", "A state", "--predicate", "urgent=Is it urgent?"],
        "serve": ["--port", "0"],
    }
    done = commands.run(command, "-m", llm.model_path, *options[command])
    assert done.returncode == 1, done.stdout
    assert message in done.stderr


def test_the_doctor_tells_it(refused: tuple[str, Any]) -> None:
    message, llm = refused
    done = commands.run("doctor", "-m", llm.model_path, "--json")
    assert done.returncode == 1, done.stderr
    assert message in done.stdout


def test_a_set_of_its_tokens_can_be_made(refused: tuple[str, Any]) -> None:
    _, llm = refused
    assert len(TokenTrie.from_choices(llm, ACTIONS)) == len(ACTIONS)


def test_attention_in_both_directions_is_an_encoder(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model.gguf", said={"llama.attention.causal": False})
    with pytest.raises(ArgumentError, match="model: llama, an encoder, which makes embeddings;"):
        StreamHandle(tmp_path / "model.gguf")


def test_a_draft_of_another_model_is_refused(tmp_path: Path) -> None:
    gemma4_assistant(tmp_path / "model.gguf", sentence_pieces())
    with pytest.raises(ArgumentError, match="model: gemma4-assistant, a draft of another model, which does not run"):
        StreamHandle(tmp_path / "model.gguf")
