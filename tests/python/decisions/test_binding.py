"""A fingerprint is the same for what evaluates the same, and for nothing else."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from tiny_model import write_tiny_adapter, write_tiny_model
from token_trie import Calibration, TokenTrie, choose, evaluate, score
from token_trie.decisions.calibration import fingerprint
from token_trie.errors import CalibrationError
from token_trie.native import files

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SAID: dict[str, Any] = {"tokenizer.chat_template": CHAT, "llama.rope.freq_base": 10000.0}
PROMPTS = ["Pizza in Paris:", "A word about Paris:", "Pizza:", "Paris yes:"]
CHOICES = ["yes", "no", "Paris"]


class Tokenizer:
    """Puts nothing in front."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        return [3 + byte for byte in text]

    def detokenize(self, tokens: list[int], **_: Any) -> bytes:
        return bytes(token - 3 for token in tokens)


def handler(template: str) -> Any:
    formatter = llama_cpp.llama_chat_format.Jinja2ChatFormatter(template=template, eos_token="</s>", bos_token="<s>")
    return formatter.to_chat_handler()


# For each parameter of Llama: other values, and whether they may change a result.
SETTINGS: dict[str, list[tuple[Any, bool]]] = {
    "model_path": [],
    "n_gpu_layers": [(0, False)],
    "split_mode": [(2, False)],  # 0 needs a GPU in some llama.cpp
    "main_gpu": [(0, False)],
    "tensor_split": [([1.0], False)],
    "vocab_only": [],
    "use_mmap": [(False, False)],
    "use_mlock": [],
    "kv_overrides": [({"tokenizer.ggml.add_bos_token": False}, True), ({"llama.rope.freq_base": 500.0}, True)],
    "seed": [(7, False)],
    "n_ctx": [(128, False), (512, False)],
    "n_batch": [(32, False)],
    "n_ubatch": [(16, False)],
    "n_threads": [(2, False)],
    "n_threads_batch": [(2, False)],
    "rope_scaling_type": [(1, True), (2, True)],
    "pooling_type": [(1, True)],
    "attention_type": [(1, True)],
    "rope_freq_base": [(500.0, True)],
    "rope_freq_scale": [(0.5, True)],
    "yarn_ext_factor": [(1.0, True)],
    "yarn_attn_factor": [(2.0, True)],
    "yarn_beta_fast": [(16.0, True)],
    "yarn_beta_slow": [(2.0, True)],
    "yarn_orig_ctx": [(64, True)],
    "logits_all": [(True, False)],
    "embedding": [(True, True)],
    "offload_kqv": [(False, False)],
    "flash_attn": [(True, True)],
    "op_offload": [(False, False)],
    "swa_full": [(False, False)],
    "no_perf": [(True, False)],
    "last_n_tokens_size": [(32, False)],
    "lora_base": [("nothing", False)],
    "lora_scale": [(0.5, False)],
    "lora_path": [("adapter", True)],
    "numa": [(False, False)],
    "chat_format": [("chatml", True), ("gemma", True)],
    "chat_handler": [(handler("{{ messages[-1].content }}"), True), (handler("{{ messages[0].content }}"), True)],
    "draft_model": [],
    "tokenizer": [(Tokenizer, True)],
    "type_k": [(8, True), (0, True)],
    "type_v": [(0, True)],
    "spm_infill": [(True, False)],
    "verbose": [(False, False)],
}


def opened(path: Path, **options: Any) -> Any:
    options = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **options}
    return llama_cpp.Llama(str(path), **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write_tiny_model(path, said=SAID)
    write_tiny_adapter(path.with_name("adapter"))
    write_tiny_adapter(path.with_name("other"), seed=1)
    return path


def test_each_setting_of_a_llama_is_in_it_if_it_may_change_a_result(model: Path) -> None:
    known = set(inspect.signature(llama_cpp.Llama.__init__).parameters) - {"self", "kwargs"}
    assert known <= SETTINGS.keys()
    llm = opened(model)
    own, result = fingerprint(llm), np.array([score(llm, prompt, CHOICES) for prompt in PROMPTS])
    llm.close()
    seen = {own}
    for name, others in SETTINGS.items():
        for value, may_change in others:
            given = {name: str(model.with_name(value)) if name == "lora_path" else value}
            llm = opened(model, **({} if name == "tokenizer" else given))
            if name == "tokenizer":
                llm.tokenizer_ = value(llm)
            found = fingerprint(llm)
            assert (found not in seen) if may_change else (found == own), name
            seen.add(found)
            if not may_change:
                found = np.array([score(llm, prompt, CHOICES) for prompt in PROMPTS])
                assert found == pytest.approx(result, abs=1e-2), name
            llm.close()


def test_each_key_of_the_file_is_in_it(model: Path, tmp_path: Path) -> None:
    said = [
        {},
        {"llama.rope.freq_base": 500.0},
        {"tokenizer.chat_template": CHAT.replace(": ", "> ")},
        {"general.name": "another"},  # by which llama.cpp knows some tokenizers
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0},
    ]
    seen = set()
    for i, more in enumerate(said):
        path = tmp_path / f"{i}.gguf"
        write_tiny_model(path, said=SAID | more)
        llm = opened(path)
        seen.add(fingerprint(llm))
        llm.close()
    assert len(seen) == len(said)
    copied = opened(tmp_path / "0.gguf")
    llm = opened(model)
    assert fingerprint(copied) == fingerprint(llm)  # wherever it lies, whatever its name
    copied.close()
    llm.close()


def test_each_byte_of_a_tensor_is_in_it(model: Path, tmp_path: Path) -> None:
    data = bytearray(model.read_bytes())
    data[-40_000] ^= 1
    (tmp_path / "other.gguf").write_bytes(data)
    one, other = opened(model), opened(tmp_path / "other.gguf")
    assert fingerprint(one) != fingerprint(other)
    one.close()
    other.close()


def test_a_file_that_was_changed_since_it_was_loaded_is_refused(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "changed.gguf"
    path.write_bytes(model.read_bytes())
    llm = opened(path, use_mmap=False)
    before = fingerprint(llm)
    path.rename(tmp_path / "moved.gguf")
    (tmp_path / "moved.gguf").rename(path)
    assert fingerprint(llm) == before
    path.write_bytes(model.read_bytes())
    with pytest.raises(CalibrationError, match="was changed after it was loaded"):
        fingerprint(llm)
    llm.close()


def test_a_relative_path_is_that_of_the_folder_it_was_loaded_in(model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(model.parent)
    llm = opened(Path(model.name))
    before = fingerprint(llm)
    (tmp_path / model.name).write_bytes(b"GGUF of another kind")
    monkeypatch.chdir(tmp_path)
    assert fingerprint(llm) == before
    llm.close()


def test_digests_of_large_files_are_remembered_between_processes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_MAX_UNSTORED", 0)
    monkeypatch.setattr(files, "_digests", {})
    path = tmp_path / "file"
    path.write_bytes(b"some bytes")
    fresh = files.File.at(path).digest()
    assert not files._digests_path().exists()  # it might change without another time of change
    os.utime(path, (1.0, 1.0))
    monkeypatch.setattr(files, "_SETTLED_S", -1.0)
    assert files.File.at(path).digest() == fresh
    monkeypatch.setattr(files, "_digests", {})
    monkeypatch.setattr(files, "_digest", lambda *_: pytest.fail("read again"))
    assert files.File.at(path).digest() == fresh
    files._digests_path().write_bytes(b"[broken")
    monkeypatch.setattr(files, "_digest", lambda *_: "anew")
    monkeypatch.setattr(files, "_digests", {})
    assert files.File.at(path).digest() == "anew"


def test_kept_readings_are_those_of_the_same_way_of_evaluating(model: Path, tmp_path: Path) -> None:
    gold = ["yes", "no", "Paris", "yes"]

    def n_read(path: Path = model, choices: Any = CHOICES, prompts: Any = PROMPTS, **options: Any) -> int:
        more = {name: options.pop(name) for name in ("leading_space",) if name in options}
        llm = opened(path, **options)
        found = evaluate(llm, prompts, gold, choices, ways=["exact"], cache=tmp_path, n_folds=2, **more)
        alone = evaluate(llm, prompts, gold, choices, ways=["exact"], n_folds=2, **more)
        llm.close()
        assert found["exact"].figures.log_loss == pytest.approx(alone["exact"].figures.log_loss, abs=1e-3)
        return found.n_read

    assert n_read() == len(PROMPTS)
    assert n_read(n_threads=2, n_ctx=128, n_batch=64, seed=3) == 0
    messages = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    for other in (
        {"rope_freq_base": 500.0},
        {"kv_overrides": {"tokenizer.ggml.add_bos_token": False}},
        {"lora_path": str(model.with_name("adapter"))},
        {"lora_path": str(model.with_name("adapter")), "lora_scale": 0.5},
        {"lora_path": str(model.with_name("other"))},
        {"type_k": 8},
        {"leading_space": False},
        {"prompts": messages},
        {"prompts": messages, "chat_format": "chatml"},
    ):
        assert n_read(**other) == len(PROMPTS), other
        assert n_read(**other) == 0, other


def test_a_calibration_is_refused_under_other_settings_by_their_names(model: Path) -> None:
    gold = [CHOICES[i % 3] for i in range(24)]
    rows = [f"{prompt} {i}" for i in range(6) for prompt in PROMPTS]
    llm = opened(model)
    trie = TokenTrie.from_sequences({"a": [270, 271], "b": [280]})
    fitted = Calibration.fit(llm, rows, gold, CHOICES, kind="bias", n_folds=2)
    of_tokens = Calibration.fit(llm, rows, [("a", "b")[i % 2] for i in range(24)], trie, kind="bias", n_folds=2)
    choose(llm, rows[0], CHOICES, calibration=fitted)
    choose(llm, rows[0], trie, calibration=of_tokens)
    with pytest.raises(CalibrationError, match="leading_space=false"):
        choose(llm, rows[0], CHOICES, calibration=fitted, leading_space=False)
    with pytest.raises(CalibrationError, match="spelled in other tokens"):
        choose(llm, rows[0], TokenTrie.from_sequences({"a": [270, 272], "b": [280]}), calibration=of_tokens)
    llm.chat_format = "chatml"
    with pytest.raises(CalibrationError, match="chat="):
        choose(llm, rows[0], CHOICES, calibration=fitted)
    llm.close()
    for other, told in (
        ({"rope_freq_base": 500.0}, "where this is 'rope_freq_base=500.0'"),
        ({"lora_path": str(model.with_name("adapter"))}, "adapters="),
        ({"n_threads": 2, "n_ctx": 128, "n_batch": 64}, None),
    ):
        llm = opened(model, **other)
        if told is None:
            choose(llm, rows[0], CHOICES, calibration=fitted)
        else:
            with pytest.raises(CalibrationError, match=told):
                choose(llm, rows[0], CHOICES, calibration=fitted)
        llm.close()
    assert json.loads(json.dumps(fitted.to_dict()))["binding"]["model"].startswith("sha256:")
    assert np.isfinite(fitted.held_out.raw.log_loss) if fitted.held_out else True
