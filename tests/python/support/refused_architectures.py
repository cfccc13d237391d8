"""Models that write no token after another, tiny and in F32: diffusion models, encoders, encoder-decoders, drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model_layers import (
    EXPERTS,
    HEAD,
    HEADS,
    N_CTX,
    N_EMBD,
    N_FF,
    N_HEAD,
    add_norms,
    attention,
    begin,
    experts,
    feed_forward,
    matrix,
    vector,
)
from tiny_model import ModelFile, Tokenizer

N_BUCKETS = 32


def _diffusion(path: Path, tokenizer: Tokenizer, architecture: str, *, has_experts: bool, has_norms: bool) -> None:
    file = begin(path, architecture, tokenizer, 1)
    file.say_own(HEADS)
    add_norms(file, 0, "attn_norm", "ffn_norm")
    attention(file, 0)
    if has_norms:
        add_norms(file, 0, "attn_q_norm", "attn_k_norm", size=HEAD)
    if has_experts:
        file.say_own(EXPERTS)
        experts(file, 0)
    else:
        feed_forward(file, 0)
    file.write()


def dream(path: Path, tokenizer: Tokenizer) -> None:
    _diffusion(path, tokenizer, "dream", has_experts=False, has_norms=False)


def llada(path: Path, tokenizer: Tokenizer) -> None:
    _diffusion(path, tokenizer, "llada", has_experts=False, has_norms=False)


def llada_moe(path: Path, tokenizer: Tokenizer) -> None:
    _diffusion(path, tokenizer, "llada-moe", has_experts=True, has_norms=True)


def rnd1(path: Path, tokenizer: Tokenizer) -> None:
    _diffusion(path, tokenizer, "rnd1", has_experts=True, has_norms=True)


def bert(path: Path, tokenizer: Tokenizer) -> None:
    file = begin(path, "bert", tokenizer, 1, norm="token_embd_norm", has_output=False)
    file.say_own({**HEADS, "attention.causal": False})
    file.say({"tokenizer.ggml.token_type_count": 2})
    matrix(file, "token_types", N_EMBD, 2)
    matrix(file, "position_embd", N_EMBD, N_CTX)
    attention(file, 0)
    feed_forward(file, 0, is_gated=False)
    add_norms(file, 0, "attn_output_norm", "layer_output_norm")
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        file.random(f"{name}.bias", N_EMBD, spread=0.1)
    file.write()


def gemma_embedding(path: Path, tokenizer: Tokenizer) -> None:
    file = begin(path, "gemma-embedding", tokenizer, 1)
    file.say_own({**HEADS, "attention.sliding_window": 16})
    add_norms(file, 0, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    add_norms(file, 0, "attn_q_norm", "attn_k_norm", size=HEAD)
    attention(file, 0)
    feed_forward(file, 0)
    file.write()


def _add_t5_layer(file: ModelFile, part: str, *attentions: str) -> None:
    width = N_HEAD * HEAD
    for name in attentions:
        vector(file, f"{part}.blk.0.{name}_norm")
        for matrix_name in "qkv":
            matrix(file, f"{part}.blk.0.{name}_{matrix_name}", N_EMBD, width)
        matrix(file, f"{part}.blk.0.{name}_o", width, N_EMBD)
    file.random(f"{part}.blk.0.attn_rel_b.weight", N_HEAD, N_BUCKETS)
    vector(file, f"{part}.blk.0.ffn_norm")
    matrix(file, f"{part}.blk.0.ffn_up", N_EMBD, N_FF)
    matrix(file, f"{part}.blk.0.ffn_down", N_FF, N_EMBD)


def _t5(path: Path, tokenizer: Tokenizer, architecture: str) -> None:
    file = begin(path, architecture, tokenizer, 1, norm="enc.output_norm")
    file.say_own({**HEADS, "attention.head_count_kv": N_HEAD, "attention.relative_buckets_count": N_BUCKETS})
    _add_t5_layer(file, "enc", "attn")
    if architecture == "t5":
        vector(file, "dec.output_norm")
        _add_t5_layer(file, "dec", "attn", "cross_attn")
    file.write()


def t5(path: Path, tokenizer: Tokenizer) -> None:
    _t5(path, tokenizer, "t5")


def t5encoder(path: Path, tokenizer: Tokenizer) -> None:
    _t5(path, tokenizer, "t5encoder")


def gemma4_assistant(path: Path, tokenizer: Tokenizer) -> None:
    """Write a draft of a Gemma 4, of which llama.cpp makes no context alone."""
    file = begin(path, "gemma4-assistant", tokenizer, 1, has_output=False)
    file.say_own({**HEADS, "attention.key_length_swa": HEAD, "attention.value_length_swa": HEAD})
    file.say_own({"attention.sliding_window": 16, "attention.sliding_window_pattern": [True]})
    file.say_own({"nextn_predict_layers": 1, "embedding_length_out": 2 * N_EMBD})
    matrix(file, "nextn.pre_projection", 4 * N_EMBD, N_EMBD)
    matrix(file, "nextn.post_projection", N_EMBD, 2 * N_EMBD)
    add_norms(file, 0, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    add_norms(file, 0, "attn_q_norm", size=HEAD)
    matrix(file, "blk.0.attn_q", N_EMBD, N_HEAD * HEAD)
    matrix(file, "blk.0.attn_output", N_HEAD * HEAD, N_EMBD)
    file.random("blk.0.layer_output_scale.weight", 1)
    feed_forward(file, 0)
    file.write()


Write = Callable[[Path, Tokenizer], None]
# By llama.cpp's names, and what each is.
REFUSED: dict[str, tuple[Write, str]] = {
    "dream": (dream, "a diffusion model"),
    "llada": (llada, "a diffusion model"),
    "llada-moe": (llada_moe, "a diffusion model"),
    "rnd1": (rnd1, "a diffusion model"),
    "bert": (bert, "an encoder"),
    "gemma-embedding": (gemma_embedding, "an encoder"),
    "t5encoder": (t5encoder, "an encoder"),
    "t5": (t5, "an encoder-decoder"),
}
