"""Models of one layer in F32: SentencePiece that puts a space before texts, as Llama 2's does, or byte-level BPE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

N_EMBD, N_HEAD, N_FF, N_CTX = 32, 2, 64, 512
N_INNER, N_STATE, N_CONV, N_RANK = 64, 8, 4, 2  # sizes of Mamba
WORDS = ["▁Pizza", "Pizza", "▁Pa", "▁Paris", "ris", "▁yes", "▁no", "yes", "no", "▁Answer", "[INST]", "[/INST]"]
# Two words that are always equally probable.
EQUAL = ("▁yes", "▁no")


def vocabulary() -> tuple[list[str], list[float], list[gguf.TokenType]]:
    """Control tokens, bytes, characters, and words built up by merges of higher and higher score."""
    tokens = [("<unk>", gguf.TokenType.UNKNOWN), ("<s>", gguf.TokenType.CONTROL), ("</s>", gguf.TokenType.CONTROL)]
    tokens += [(f"<0x{i:02X}>", gguf.TokenType.BYTE) for i in range(256)]
    pieces = ["▁", *(chr(c) for c in range(33, 127))]
    for word in WORDS:
        pieces += [word[:n] for n in range(2, len(word) + 1)]
    tokens += [(piece, gguf.TokenType.NORMAL) for piece in dict.fromkeys(pieces)]
    scores = [-float(i) for i in range(len(tokens))]
    return [text for text, _ in tokens], scores, [kind for _, kind in tokens]


def byte_pairs() -> tuple[list[tuple[str, gguf.TokenType]], list[str]]:
    """Return tokens of a byte-level BPE, and its merges: GPT-2's letters for bytes, words, and what JSON has often."""
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
    ]
    pieces: dict[str, None] = {}
    merges: dict[str, None] = {}
    for word in words:
        spelled = [letter[byte] for byte in word.encode()]
        for n in range(1, len(spelled)):
            merges[f"{''.join(spelled[:n])} {spelled[n]}"] = None
            pieces["".join(spelled[: n + 1])] = None
    control = [("<unk>", gguf.TokenType.UNKNOWN), ("<s>", gguf.TokenType.CONTROL), ("</s>", gguf.TokenType.CONTROL)]
    return control + [(piece, gguf.TokenType.NORMAL) for piece in [*letter.values(), *pieces]], list(merges)


def write_tiny_model(
    path: Path,
    *,
    is_recurrent: bool = False,
    is_bpe: bool = False,
    more: Sequence[tuple[str, gguf.TokenType]] = (),
    said: Mapping[str, str | float | bool] | None = None,
    broken: Sequence[str] = (),
) -> None:
    """Write a llama or a mamba, with more tokens behind its own, and more said of it; the same bytes each time.

    Where a broken token has been read, no logits are numbers.
    """
    rng = np.random.default_rng(0)
    tokens, scores, kinds = vocabulary()
    merges: list[str] = []
    if is_bpe:
        pairs, merges = byte_pairs()
        tokens, kinds = [text for text, _ in pairs], [kind for _, kind in pairs]
    tokens += [text for text, _ in more]
    scores += [-float(i) for i in range(len(scores), len(tokens))]
    kinds += [kind for _, kind in more]
    writer = gguf.GGUFWriter(path, "mamba" if is_recurrent else "llama")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_FF)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2" if is_bpe else "llama")
    writer.add_tokenizer_pre("gpt-2" if is_bpe else "default")
    writer.add_token_list(tokens)
    if is_bpe:
        writer.add_token_merges(merges)
    else:
        writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(not is_bpe)

    for key, value in (said or {}).items():
        add = {str: writer.add_string, bool: writer.add_bool, float: writer.add_float32}[type(value)]
        add(key, value)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.normal(0, 0.5, shape).astype(np.float32))

    embedding = rng.normal(0, 0.5, (len(tokens), N_EMBD)).astype(np.float32)
    embedding[[tokens.index(text) for text in broken]] = np.nan
    writer.add_tensor("token_embd.weight", embedding)
    output = rng.normal(0, 0.5, (len(tokens), N_EMBD)).astype(np.float32)
    if not is_bpe:
        first, second = map(tokens.index, EQUAL)
        output[second] = output[first]
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(N_EMBD, np.float32))
    if is_recurrent:
        writer.add_ssm_conv_kernel(N_CONV)
        writer.add_ssm_inner_size(N_INNER)
        writer.add_ssm_state_size(N_STATE)
        writer.add_ssm_time_step_rank(N_RANK)
        tensor("blk.0.ssm_in.weight", 2 * N_INNER, N_EMBD)
        tensor("blk.0.ssm_conv1d.weight", N_INNER, N_CONV)
        tensor("blk.0.ssm_conv1d.bias", N_INNER)
        tensor("blk.0.ssm_x.weight", N_RANK + 2 * N_STATE, N_INNER)
        tensor("blk.0.ssm_dt.weight", N_INNER, N_RANK)
        tensor("blk.0.ssm_dt.bias", N_INNER)
        writer.add_tensor("blk.0.ssm_a", -np.ones((N_INNER, N_STATE), np.float32))
        writer.add_tensor("blk.0.ssm_d", np.ones(N_INNER, np.float32))
        tensor("blk.0.ssm_out.weight", N_EMBD, N_INNER)
    else:
        writer.add_head_count(N_HEAD)
        writer.add_head_count_kv(N_HEAD)
        writer.add_rope_dimension_count(N_EMBD // N_HEAD)
        writer.add_tensor("blk.0.ffn_norm.weight", np.ones(N_EMBD, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.0.{name}.weight", N_EMBD, N_EMBD)
        tensor("blk.0.ffn_gate.weight", N_FF, N_EMBD)
        tensor("blk.0.ffn_up.weight", N_FF, N_EMBD)
        tensor("blk.0.ffn_down.weight", N_EMBD, N_FF)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
