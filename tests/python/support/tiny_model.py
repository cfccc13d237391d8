"""Models of one layer in F32: SentencePiece that puts a space before texts, as Llama 2's does, or byte-level BPE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_EMBD, N_HEAD, N_FF, N_CTX = 32, 2, 64, 512
N_INNER, N_STATE, N_CONV, N_RANK = 64, 8, 4, 2  # sizes of Mamba
WORDS = ["▁Pizza", "Pizza", "▁Pa", "▁Paris", "ris", "▁yes", "▁no", "yes", "no", "▁Answer", "[INST]", "[/INST]"]
# Two words that are always equally probable.
EQUAL = ("▁yes", "▁no")
CONTROL = [("<unk>", gguf.TokenType.UNKNOWN), ("<s>", gguf.TokenType.CONTROL), ("</s>", gguf.TokenType.CONTROL)]
Token = tuple[str, gguf.TokenType]
Said = str | float | bool | list[int]


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary as a GGUF file holds it: scored by place, or with merges."""

    model: str
    pre: str
    tokens: list[Token]
    merges: list[str] | None = None


def sentence_pieces() -> Tokenizer:
    """Control tokens, bytes, characters, and words built up by merges of higher and higher score."""
    bytes_ = [(f"<0x{i:02X}>", gguf.TokenType.BYTE) for i in range(256)]
    pieces = ["▁", *(chr(c) for c in range(33, 127))]
    for word in WORDS:
        pieces += [word[:n] for n in range(2, len(word) + 1)]
    tokens = [*CONTROL, *bytes_, *((piece, gguf.TokenType.NORMAL) for piece in dict.fromkeys(pieces))]
    return Tokenizer("llama", "default", tokens)


def unigrams() -> Tokenizer:
    """Return the pieces without the bytes, as T5 has them, and the line break: other characters are unknown."""
    tokens = [token for token in sentence_pieces().tokens if token[1] is not gguf.TokenType.BYTE]
    return Tokenizer("t5", "default", [*tokens, ("\n", gguf.TokenType.NORMAL)])


def byte_pairs(more: Sequence[str] = ()) -> Tokenizer:
    """Byte-level BPE: GPT-2's letters for bytes, words, what JSON has often, and more of it."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letter = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    words = [
        " yes",
        " no",
        "yes",
        "no",
        " Paris",
        "Pizza",
        '":"',
        '","',
        '"}',
        "true",
        "false",
        "null",
        '{"',
        "10",
        "😀",
        *more,
    ]
    pieces: dict[str, None] = {}
    merges: dict[str, None] = {}
    for word in words:
        spelled = [letter[byte] for byte in word.encode()]
        for n in range(1, len(spelled)):
            merges[f"{''.join(spelled[:n])} {spelled[n]}"] = None
            pieces["".join(spelled[: n + 1])] = None
    tokens = [*CONTROL, *((piece, gguf.TokenType.NORMAL) for piece in [*letter.values(), *pieces])]
    return Tokenizer("gpt2", "gpt-2", tokens, list(merges))


class ModelFile:
    """A GGUF file in the making: keys, a tokenizer, and tensors in F32, whose sizes are in llama.cpp's order."""

    def __init__(self, path: Path, architecture: str, tokenizer: Tokenizer, *, seed: int = 0) -> None:
        self.n_vocab = len(tokenizer.tokens)
        self._architecture = architecture
        self._writer = writer = gguf.GGUFWriter(path, architecture)
        self._rng = np.random.default_rng(seed)
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        writer.add_tokenizer_model(tokenizer.model)
        writer.add_tokenizer_pre(tokenizer.pre)
        writer.add_token_list([text for text, _ in tokenizer.tokens])
        if tokenizer.merges is None:
            writer.add_token_scores([-float(i) for i in range(self.n_vocab)])
        else:
            writer.add_token_merges(tokenizer.merges)
        writer.add_token_types([kind for _, kind in tokenizer.tokens])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(tokenizer.merges is None)

    def say(self, said: Mapping[str, Said]) -> None:
        """Add keys by their whole names."""
        adds: dict[type, Callable[[str, Any], None]] = {
            str: self._writer.add_string,
            bool: self._writer.add_bool,
            int: self._writer.add_uint32,
            float: self._writer.add_float32,
            list: self._writer.add_array,
        }
        for key, value in said.items():
            adds[type(value)](key, value)

    def say_own(self, said: Mapping[str, Said]) -> None:
        """Add keys behind the architecture's name."""
        self.say({f"{self._architecture}.{key}": value for key, value in said.items()})

    def drawn(self, *sizes: int, spread: float = 0.5) -> np.ndarray:
        """Draw weights at random, to be added or changed first."""
        return self._rng.normal(0, spread, sizes[::-1]).astype(np.float32)

    def add(self, name: str, values: np.ndarray) -> None:
        self._writer.add_tensor(name, values)

    def random(self, name: str, *sizes: int, spread: float = 0.5) -> None:
        self.add(name, self.drawn(*sizes, spread=spread))

    def fill(self, name: str, value: float, *sizes: int) -> None:
        self.add(name, np.full(sizes[::-1], value, np.float32))

    def write(self) -> None:
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()


def write_tiny_model(
    path: Path,
    *,
    is_recurrent: bool = False,
    is_bpe: bool = False,
    words: Sequence[str] = (),
    more: Sequence[Token] = (),
    said: Mapping[str, Said] | None = None,
    broken: Sequence[str] = (),
    seed: int = 0,
) -> None:
    """Write a llama or a mamba, with more words of a BPE, more tokens, and more said of it; the same bytes each time.

    Where a broken token has been read, no logits are numbers.
    """
    tokenizer = byte_pairs(words) if is_bpe else sentence_pieces()
    tokenizer = replace(tokenizer, tokens=[*tokenizer.tokens, *more])
    tokens = [text for text, _ in tokenizer.tokens]
    file = ModelFile(path, "mamba" if is_recurrent else "llama", tokenizer, seed=seed)
    file.say_own(
        {
            "context_length": N_CTX,
            "embedding_length": N_EMBD,
            "block_count": 1,
            "feed_forward_length": N_FF,
            "attention.layer_norm_rms_epsilon": 1e-5,
        }
    )
    file.say(said or {})

    embedding = file.drawn(N_EMBD, len(tokens))
    embedding[[tokens.index(text) for text in broken]] = np.nan
    file.add("token_embd.weight", embedding)
    output = file.drawn(N_EMBD, len(tokens))
    if not is_bpe:
        first, second = map(tokens.index, EQUAL)
        output[second] = output[first]
    file.add("output.weight", output)
    file.fill("output_norm.weight", 1, N_EMBD)
    file.fill("blk.0.attn_norm.weight", 1, N_EMBD)
    (_add_mamba if is_recurrent else _add_llama)(file)
    file.write()


def _add_mamba(file: ModelFile) -> None:
    file.say_own(
        {
            "ssm.conv_kernel": N_CONV,
            "ssm.inner_size": N_INNER,
            "ssm.state_size": N_STATE,
            "ssm.time_step_rank": N_RANK,
        }
    )
    file.random("blk.0.ssm_in.weight", N_EMBD, 2 * N_INNER)
    file.random("blk.0.ssm_conv1d.weight", N_CONV, N_INNER)
    file.random("blk.0.ssm_conv1d.bias", N_INNER)
    file.random("blk.0.ssm_x.weight", N_INNER, N_RANK + 2 * N_STATE)
    file.random("blk.0.ssm_dt.weight", N_RANK, N_INNER)
    file.random("blk.0.ssm_dt.bias", N_INNER)
    file.fill("blk.0.ssm_a", -1, N_STATE, N_INNER)
    file.fill("blk.0.ssm_d", 1, N_INNER)
    file.random("blk.0.ssm_out.weight", N_INNER, N_EMBD)


def _add_llama(file: ModelFile) -> None:
    file.say_own(
        {
            "attention.head_count": N_HEAD,
            "attention.head_count_kv": N_HEAD,
            "rope.dimension_count": N_EMBD // N_HEAD,
        }
    )
    file.fill("blk.0.ffn_norm.weight", 1, N_EMBD)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        file.random(f"blk.0.{name}.weight", N_EMBD, N_EMBD)
    file.random("blk.0.ffn_gate.weight", N_EMBD, N_FF)
    file.random("blk.0.ffn_up.weight", N_EMBD, N_FF)
    file.random("blk.0.ffn_down.weight", N_FF, N_EMBD)


def write_tiny_adapter(path: Path, seed: int = 0) -> None:
    """Write a LoRA adapter for the tiny llama."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    for name in ("attn_q", "attn_output"):
        for part, shape in (("a", (4, N_EMBD)), ("b", (N_EMBD, 4))):
            writer.add_tensor(f"blk.0.{name}.weight.lora_{part}", rng.normal(0, 0.5, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
