"""A llama of one layer in F32 with a SentencePiece vocabulary that puts a space before texts, as Llama 2's does."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

N_EMBD, N_HEAD, N_FF, N_CTX = 32, 2, 64, 512
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


def write_tiny_model(path: Path) -> None:
    """Write the model; the same bytes each time."""
    rng = np.random.default_rng(0)
    tokens, scores, kinds = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.normal(0, 0.5, shape).astype(np.float32))

    tensor("token_embd.weight", len(tokens), N_EMBD)
    output = rng.normal(0, 0.5, (len(tokens), N_EMBD)).astype(np.float32)
    first, second = map(tokens.index, EQUAL)
    output[second] = output[first]
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(N_EMBD, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        tensor(f"blk.0.{name}.weight", N_EMBD, N_EMBD)
    tensor("blk.0.ffn_gate.weight", N_FF, N_EMBD)
    tensor("blk.0.ffn_up.weight", N_FF, N_EMBD)
    tensor("blk.0.ffn_down.weight", N_EMBD, N_FF)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
