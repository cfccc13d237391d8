"""Models with attention in every layer, tiny and in F32, whose memories differ: windows, latent vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from architectures import N_LATENT, N_ROTATED, SIGMOID
from model_layers import (
    EXPERTS,
    HEAD,
    HEADS,
    N_EMBD,
    N_EXPERT,
    N_FF_EXPERT,
    N_HEAD,
    N_HEAD_KV,
    add_norms,
    attention,
    begin,
    experts,
    feed_forward,
    matrix,
    vector,
)
from tiny_model import ModelFile, Said, Tokenizer

WINDOW = 16  # tokens that a layer with a window sees
N_ALTUP, N_PER_LAYER, N_LAUREL = 4, 256, 64  # as llama.cpp has them for every Gemma 3n
N_RANK = 12
LITTLE = 0.01  # weight of what GELU makes, which llama.cpp rounds to F16: a rounding of its input is then a leap

WINDOWS: dict[str, Said] = {
    "attention.sliding_window": WINDOW,
    "attention.key_length_swa": HEAD,
    "attention.value_length_swa": HEAD,
    "rope.dimension_count_swa": HEAD,
}


def add_per_layer_embedding(file: ModelFile, n_layer: int, size: int) -> None:
    """Add what each layer is told of a token besides what the layer before made of it."""
    file.random("per_layer_token_embd.weight", size * n_layer, file.n_vocab)
    matrix(file, "per_layer_model_proj", N_EMBD, size * n_layer)
    vector(file, "per_layer_proj_norm", size)
    for i in range(n_layer):
        matrix(file, f"blk.{i}.inp_gate", N_EMBD, size)
        matrix(file, f"blk.{i}.proj", size, N_EMBD)
        add_scaled_norm(file, f"blk.{i}.post_norm", LITTLE)


def add_scaled_norm(file: ModelFile, name: str, scale: float, size: int = N_EMBD) -> None:
    file.add(f"{name}.weight", scale * (1 + file.drawn(size, spread=0.1)))


def add_gemma_layer(file: ModelFile, layer: int) -> None:
    at = f"blk.{layer}"
    add_norms(file, layer, "attn_norm", "post_attention_norm", "ffn_norm")
    add_scaled_norm(file, f"{at}.post_ffw_norm", LITTLE)
    add_scaled_norm(file, f"{at}.attn_q_norm", HEAD**-0.5, HEAD)
    add_norms(file, layer, "attn_k_norm", size=HEAD)
    attention(file, layer)
    feed_forward(file, layer)


def gemma3n(path: Path, tokenizer: Tokenizer) -> None:
    """Write 25 layers, of which the last five have no memory of their own: it is layer 18's, or without window 19's."""
    n_layer = 25
    file = begin(path, "gemma3n", tokenizer, n_layer)
    file.say_own({**HEADS, "attention.sliding_window": WINDOW})
    add_per_layer_embedding(file, n_layer, N_PER_LAYER)
    for name in ("altup_proj", "altup_unembd_proj"):
        matrix(file, name, N_EMBD, N_EMBD, N_ALTUP - 1)
    for i in range(n_layer):
        add_gemma_layer(file, i)
        add_norms(file, i, "altup_router_norm", "altup_correct_scale", "laurel_post_norm")
        matrix(file, f"blk.{i}.altup_correct_coef", N_ALTUP, N_ALTUP)
        matrix(file, f"blk.{i}.altup_predict_coef", N_ALTUP, N_ALTUP * N_ALTUP)
        matrix(file, f"blk.{i}.altup_router", N_EMBD, N_ALTUP)
        matrix(file, f"blk.{i}.laurel_l", N_EMBD, N_LAUREL)
        matrix(file, f"blk.{i}.laurel_r", N_LAUREL, N_EMBD)
    file.write()


def gemma4(path: Path, tokenizer: Tokenizer) -> None:
    """Write layers with and without a window in turn; the last two use the memory of the two before."""
    windows: list[int] = [True, False, True, False, True, False]
    file = begin(path, "gemma4", tokenizer, len(windows))
    file.say_own({**HEADS, **WINDOWS, "attention.sliding_window_pattern": windows})
    file.say_own({"attention.shared_kv_layers": 2, "embedding_length_per_layer_input": N_ROTATED})
    add_per_layer_embedding(file, len(windows), N_ROTATED)
    file.fill("rope_freqs.weight", 1, HEAD // 2)
    for i in range(len(windows)):
        add_gemma_layer(file, i)
    file.write()


def gpt_oss(path: Path, tokenizer: Tokenizer) -> None:
    """Write layers with and without a window in turn, all with sinks, and a mixture of experts with biases."""
    file = begin(path, "gpt-oss", tokenizer, 4)
    file.say_own({**HEADS, **EXPERTS, "attention.sliding_window": WINDOW})
    for i in range(4):
        at = f"blk.{i}"
        add_norms(file, i, "attn_norm", "post_attention_norm")
        attention(file, i)
        file.random(f"{at}.attn_sinks.weight", N_HEAD)
        for name, size in (("q", N_HEAD * HEAD), ("k", N_HEAD_KV * HEAD), ("v", N_HEAD_KV * HEAD), ("output", N_EMBD)):
            file.random(f"{at}.attn_{name}.bias", size, spread=0.1)
        experts(file, i)
        file.random(f"{at}.ffn_gate_inp.bias", N_EXPERT, spread=0.1)
        for name, size in (("gate", N_FF_EXPERT), ("up", N_FF_EXPERT), ("down", N_EMBD)):
            file.random(f"{at}.ffn_{name}_exps.bias", size, N_EXPERT, spread=0.1)
    file.write()


def cohere2(path: Path, tokenizer: Tokenizer) -> None:
    """Write three layers with a window, and one that sees everything and knows no positions."""
    file = begin(path, "cohere2", tokenizer, 4, has_output=False)
    file.say_own({**HEADS, "attention.sliding_window": WINDOW, "logit_scale": 0.25})
    for i in range(4):
        add_norms(file, i, "attn_norm")
        attention(file, i)
        feed_forward(file, i)
    file.write()


def deepseek2(path: Path, tokenizer: Tokenizer) -> None:
    """Write latent attention, whose queries come of a latent vector too, a dense layer, and experts beside a shared."""
    file = begin(path, "deepseek2", tokenizer, 3)
    file.say_own({**HEADS, **EXPERTS, "attention.head_count_kv": 1, "rope.dimension_count": N_ROTATED})
    file.say_own({"attention.q_lora_rank": N_RANK, "attention.kv_lora_rank": N_LATENT})
    file.say_own({"attention.key_length": N_LATENT + N_ROTATED, "attention.value_length": N_LATENT})
    file.say_own({"attention.key_length_mla": HEAD, "attention.value_length_mla": HEAD})
    file.say_own({"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_gating_func": SIGMOID})
    for i in range(3):
        at = f"blk.{i}.attn"
        add_norms(file, i, "attn_norm", "ffn_norm")
        matrix(file, f"{at}_q_a", N_EMBD, N_RANK)
        vector(file, f"{at}_q_a_norm", N_RANK)
        matrix(file, f"{at}_q_b", N_RANK, N_HEAD * HEAD)
        matrix(file, f"{at}_kv_a_mqa", N_EMBD, N_LATENT + N_ROTATED)
        vector(file, f"{at}_kv_a_norm", N_LATENT)
        matrix(file, f"{at}_k_b", HEAD - N_ROTATED, N_LATENT, N_HEAD)
        matrix(file, f"{at}_v_b", N_LATENT, HEAD, N_HEAD)
        matrix(file, f"{at}_output", N_HEAD * HEAD, N_EMBD)
        if i == 0:
            feed_forward(file, i)
        else:
            experts(file, i, is_biased=True)
            feed_forward(file, i, part="_shexp", size=N_FF_EXPERT)
    file.write()


def qwen3moe(path: Path, tokenizer: Tokenizer) -> None:
    file = begin(path, "qwen3moe", tokenizer, 2)
    file.say_own({**HEADS, **EXPERTS})
    for i in range(2):
        add_norms(file, i, "attn_norm", "ffn_norm")
        add_norms(file, i, "attn_q_norm", "attn_k_norm", size=HEAD)
        attention(file, i)
        experts(file, i)
    file.write()


def glm4moe(path: Path, tokenizer: Tokenizer) -> None:
    """Write two layers, and one for the token after the next (MTP), which is not evaluated."""
    file = begin(path, "glm4moe", tokenizer, 3)
    file.say_own({**HEADS, **EXPERTS, "nextn_predict_layers": 1, "leading_dense_block_count": 1})
    file.say_own({"expert_shared_count": 1})
    for i in range(3):
        add_norms(file, i, "attn_norm", "post_attention_norm")
        add_norms(file, i, "attn_q_norm", "attn_k_norm", size=HEAD)
        attention(file, i)
        if i == 0:
            feed_forward(file, i)
        else:
            experts(file, i, is_biased=True)
            feed_forward(file, i, part="_shexp", size=N_FF_EXPERT)
    matrix(file, "blk.2.nextn.eh_proj", 2 * N_EMBD, N_EMBD)
    add_norms(file, 2, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
    file.write()


Write = Callable[[Path, Tokenizer], None]
# By llama.cpp's names.
ATTENTION: dict[str, Write] = {
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "gpt-oss": gpt_oss,
    "cohere2": cohere2,
    "deepseek2": deepseek2,
    "qwen3moe": qwen3moe,
    "glm4moe": glm4moe,
}
