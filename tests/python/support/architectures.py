"""Models with states, tiny and in F32: hybrids, which have attention in some layers, and models of states alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from model_layers import (
    EXPERTS,
    HEAD,
    N_EMBD,
    N_EXPERT,
    N_EXPERT_USED,
    N_FF,
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

N_CONV, N_STATE, N_RANK, N_GROUP = 4, 8, 4, 2
N_LATENT, N_ROTATED = 24, 8
N_INNER = 2 * N_EMBD
N_WIDE = 64  # RWKV's only head: ggml takes 64 numbers at once
SIGMOID = 2  # llama.cpp's number of a gating function

SSM: dict[str, Said] = {
    "ssm.conv_kernel": N_CONV,
    "ssm.inner_size": N_INNER,
    "ssm.state_size": N_STATE,
    "ssm.time_step_rank": N_RANK,
    "ssm.group_count": N_GROUP,
}


def attends_at(*attending: bool) -> dict[str, Said]:
    """Return keys of attention in some layers: the others have no heads of keys."""
    return {"attention.head_count": N_HEAD, "attention.head_count_kv": [N_HEAD_KV * one for one in attending]}


def add_decay(file: ModelFile, name: str, *sizes: int) -> None:
    """Add by how much a state is forgotten: a negative factor."""
    file.add(name, -np.exp(file.drawn(*sizes)))


def add_short_convolution(file: ModelFile, layer: int) -> None:
    at = f"blk.{layer}.shortconv"
    matrix(file, f"{at}.conv", 3, N_EMBD)
    matrix(file, f"{at}.in_proj", N_EMBD, 3 * N_EMBD)
    matrix(file, f"{at}.out_proj", N_EMBD, N_EMBD)


def add_mamba(file: ModelFile, layer: int, *, is_normed: bool = False) -> None:
    at = f"blk.{layer}.ssm"
    matrix(file, f"{at}_in", N_EMBD, 2 * N_INNER)
    matrix(file, f"{at}_conv1d", N_CONV, N_INNER)
    file.random(f"{at}_conv1d.bias", N_INNER, spread=0.1)
    matrix(file, f"{at}_x", N_INNER, N_RANK + 2 * N_STATE)
    matrix(file, f"{at}_dt", N_RANK, N_INNER)
    file.random(f"{at}_dt.bias", N_INNER)
    add_decay(file, f"{at}_a", N_STATE, N_INNER)
    file.random(f"{at}_d", N_INNER)
    matrix(file, f"{at}_out", N_INNER, N_EMBD)
    if is_normed:
        for part, size in (("dt", N_RANK), ("b", N_STATE), ("c", N_STATE)):
            vector(file, f"{at}_{part}_norm", size)


def add_mamba2(file: ModelFile, layer: int) -> None:
    at = f"blk.{layer}.ssm"
    channels = N_INNER + 2 * N_GROUP * N_STATE
    matrix(file, f"{at}_in", N_EMBD, N_INNER + channels + N_RANK)
    matrix(file, f"{at}_conv1d", N_CONV, channels)
    file.random(f"{at}_conv1d.bias", channels, spread=0.1)
    file.random(f"{at}_dt.bias", N_RANK)
    add_decay(file, f"{at}_a", 1, N_RANK)
    file.random(f"{at}_d", 1, N_RANK)
    file.add(f"{at}_norm.weight", 1 + file.drawn(N_INNER // N_GROUP, N_GROUP, spread=0.1))
    matrix(file, f"{at}_out", N_INNER, N_EMBD)


def add_delta_net(file: ModelFile, layer: int, *, is_joined: bool) -> None:
    """Add a gated delta net: N_GROUP heads of keys, N_RANK of values, N_STATE wide."""
    at = f"blk.{layer}"
    keys, values = N_GROUP * N_STATE, N_RANK * N_STATE
    matrix(file, f"{at}.attn_qkv", N_EMBD, 2 * keys + values)
    matrix(file, f"{at}.attn_gate", N_EMBD, values)
    matrix(file, f"{at}.ssm_conv1d", N_CONV, 2 * keys + values)
    file.random(f"{at}.ssm_dt.bias", N_RANK)
    add_decay(file, f"{at}.ssm_a", N_RANK)
    if is_joined:
        matrix(file, f"{at}.ssm_ba", N_EMBD, 2 * N_RANK)
    else:
        matrix(file, f"{at}.ssm_beta", N_EMBD, N_RANK)
        matrix(file, f"{at}.ssm_alpha", N_EMBD, N_RANK)
    vector(file, f"{at}.ssm_norm", N_STATE)
    matrix(file, f"{at}.ssm_out", values, N_EMBD)


def add_kimi_delta(file: ModelFile, layer: int) -> None:
    at = f"blk.{layer}"
    width = N_HEAD * HEAD
    attention(file, layer, n_head_kv=N_HEAD)
    for part in "qkv":
        matrix(file, f"{at}.ssm_conv1d_{part}", N_CONV, 1, width)
    for part in "fg":
        matrix(file, f"{at}.ssm_{part}_a", N_EMBD, HEAD)
        matrix(file, f"{at}.ssm_{part}_b", HEAD, width)
    matrix(file, f"{at}.ssm_beta", N_EMBD, N_HEAD)
    add_decay(file, f"{at}.ssm_a", 1, N_HEAD)
    file.random(f"{at}.ssm_dt.bias", width)
    vector(file, f"{at}.ssm_norm", HEAD)


def add_latent_attention(file: ModelFile, layer: int) -> None:
    """Add attention over a latent vector of N_LATENT, and N_ROTATED numbers of a key as they are."""
    at = f"blk.{layer}.attn"
    matrix(file, f"{at}_q", N_EMBD, N_HEAD * HEAD)
    matrix(file, f"{at}_kv_a_mqa", N_EMBD, N_LATENT + N_ROTATED)
    vector(file, f"{at}_kv_a_norm", N_LATENT)
    matrix(file, f"{at}_k_b", HEAD - N_ROTATED, N_LATENT, N_HEAD)
    matrix(file, f"{at}_v_b", N_LATENT, HEAD, N_HEAD)
    matrix(file, f"{at}_output", N_HEAD * HEAD, N_EMBD)


def _lfm2(path: Path, tokenizer: Tokenizer, architecture: str, n_dense: int) -> None:
    attending = [False, True, False]
    file = begin(path, architecture, tokenizer, len(attending), norm="token_embd_norm")
    file.say_own({"feed_forward_length": N_FF, "shortconv.l_cache": 3, **attends_at(*attending)})
    if n_dense < len(attending):
        file.say_own({"leading_dense_block_count": n_dense, "expert_gating_func": SIGMOID, **EXPERTS})
    for i, attends in enumerate(attending):
        add_norms(file, i, "attn_norm", "ffn_norm")
        if i < n_dense:
            feed_forward(file, i)
        else:
            experts(file, i, is_biased=True)
        if attends:
            add_norms(file, i, "attn_q_norm", "attn_k_norm", size=HEAD)
            attention(file, i)
        else:
            add_short_convolution(file, i)
    file.write()


def lfm2(path: Path, tokenizer: Tokenizer) -> None:
    _lfm2(path, tokenizer, "lfm2", n_dense=3)


def lfm2moe(path: Path, tokenizer: Tokenizer) -> None:
    _lfm2(path, tokenizer, "lfm2moe", n_dense=1)


def _qwen(path: Path, tokenizer: Tokenizer, architecture: str) -> None:
    """Write every second layer with attention, its queries beside their gates."""
    has_experts = architecture == "qwen3next"
    file = begin(path, architecture, tokenizer, 4)
    file.say_own({**SSM, "ssm.inner_size": N_RANK * N_STATE, "full_attention_interval": 2})
    file.say_own({"attention.head_count": N_HEAD, "attention.head_count_kv": N_HEAD_KV, "feed_forward_length": N_FF})
    file.say_own({"attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": N_ROTATED})
    if has_experts:
        file.say_own({**EXPERTS, "expert_shared_feed_forward_length": N_FF_EXPERT})
    else:
        file.say_own({"rope.dimension_sections": [2, 1, 1, 0]})
    for i in range(4):
        add_norms(file, i, "attn_norm", "post_attention_norm")
        if i % 2:
            attention(file, i, has_gates=True)
            add_norms(file, i, "attn_q_norm", "attn_k_norm", size=HEAD)
        else:
            add_delta_net(file, i, is_joined=has_experts)
        if has_experts:
            experts(file, i)
            feed_forward(file, i, part="_shexp", size=N_FF_EXPERT)
            matrix(file, f"blk.{i}.ffn_gate_inp_shexp", N_EMBD)
        else:
            feed_forward(file, i)
    file.write()


def qwen35(path: Path, tokenizer: Tokenizer) -> None:
    _qwen(path, tokenizer, "qwen35")


def qwen3next(path: Path, tokenizer: Tokenizer) -> None:
    _qwen(path, tokenizer, "qwen3next")


def granitehybrid(path: Path, tokenizer: Tokenizer) -> None:
    attending = [False, True, False]
    file = begin(path, "granitehybrid", tokenizer, len(attending))
    file.say_own({"feed_forward_length": N_FF, **SSM, **attends_at(*attending)})
    for i, attends in enumerate(attending):
        add_norms(file, i, "attn_norm", "ffn_norm")
        (attention if attends else add_mamba2)(file, i)
        feed_forward(file, i)
    file.write()


def _nemotron_h(path: Path, tokenizer: Tokenizer, architecture: str) -> None:
    """Write layers of one part each: a state, a feed-forward layer, or attention."""
    has_experts = architecture.endswith("moe")
    kinds = ["state", "forward", "attention", "state"]
    file = begin(path, architecture, tokenizer, len(kinds))
    file.say_own({**SSM, **attends_at(*(kind == "attention" for kind in kinds))})
    file.say_own({"feed_forward_length": [N_FF * (kind == "forward") for kind in kinds]})
    if has_experts:
        file.say_own({**EXPERTS, "expert_shared_feed_forward_length": N_FF_EXPERT, "expert_gating_func": SIGMOID})
    for i, kind in enumerate(kinds):
        add_norms(file, i, "attn_norm")
        if kind == "state":
            add_mamba2(file, i)
        elif kind == "attention":
            attention(file, i)
        elif has_experts:
            experts(file, i, is_gated=False, is_biased=True)
            feed_forward(file, i, is_gated=False, part="_shexp", size=N_FF_EXPERT)
        else:
            feed_forward(file, i, is_gated=False)
    file.write()


def nemotron_h(path: Path, tokenizer: Tokenizer) -> None:
    _nemotron_h(path, tokenizer, "nemotron_h")


def nemotron_h_moe(path: Path, tokenizer: Tokenizer) -> None:
    _nemotron_h(path, tokenizer, "nemotron_h_moe")


def falcon_h1(path: Path, tokenizer: Tokenizer) -> None:
    """Write layers with a state and attention side by side."""
    file = begin(path, "falcon-h1", tokenizer, 2)
    file.say_own({"feed_forward_length": N_FF, **SSM})
    file.say_own({"attention.head_count": N_HEAD, "attention.head_count_kv": N_HEAD_KV})
    for i in range(2):
        add_norms(file, i, "attn_norm")
        add_mamba2(file, i)
        attention(file, i)
        file.fill(f"blk.{i}.ffn_norm", 1, N_EMBD)
        feed_forward(file, i)
    file.write()


def jamba(path: Path, tokenizer: Tokenizer) -> None:
    attending = [False, True, False]
    file = begin(path, "jamba", tokenizer, len(attending))
    file.say_own({"feed_forward_length": N_FF, **SSM, **attends_at(*attending), "expert_count": N_EXPERT})
    file.say_own({"expert_used_count": N_EXPERT_USED})
    for i, attends in enumerate(attending):
        add_norms(file, i, "attn_norm", "ffn_norm")
        if attends:
            attention(file, i)
            experts(file, i, size=N_FF)
        else:
            add_mamba(file, i, is_normed=True)
            feed_forward(file, i)
    file.write()


def kimi_linear(path: Path, tokenizer: Tokenizer) -> None:
    attending = [False, True, False]
    file = begin(path, "kimi-linear", tokenizer, len(attending))
    file.say_own(
        {"feed_forward_length": N_FF, "ssm.conv_kernel": N_CONV, "kda.head_dim": HEAD, **attends_at(*attending)}
    )
    file.say_own({"attention.kv_lora_rank": N_LATENT, "rope.dimension_count": N_ROTATED})
    file.say_own({"attention.key_length": N_LATENT + N_ROTATED, "attention.value_length": N_LATENT})
    file.say_own({"attention.key_length_mla": HEAD, "attention.value_length_mla": HEAD})
    file.say_own({**EXPERTS, "expert_shared_count": 1, "expert_gating_func": SIGMOID, "leading_dense_block_count": 1})
    file.say_own({"expert_weights_scale": 1.5})
    for i, attends in enumerate(attending):
        add_norms(file, i, "attn_norm", "ffn_norm")
        (add_latent_attention if attends else add_kimi_delta)(file, i)
        if i == 0:
            feed_forward(file, i)
        else:
            experts(file, i, is_biased=True)
            feed_forward(file, i, part="_shexp", size=N_FF_EXPERT)
    file.write()


def plamo2(path: Path, tokenizer: Tokenizer) -> None:
    attending, rank = [False, True, False], 64
    file = begin(path, "plamo2", tokenizer, len(attending))
    file.say_own({"feed_forward_length": N_FF, **SSM, "ssm.group_count": 0, **attends_at(*attending)})
    file.say_own({"attention.key_length": HEAD, "attention.value_length": HEAD})
    for i, attends in enumerate(attending):
        at = f"blk.{i}"
        add_norms(file, i, "attn_norm", "ffn_norm")
        for name in ("post_attention_norm", "post_ffw_norm"):
            file.fill(f"{at}.{name}", 1, N_EMBD)
        if attends:
            matrix(file, f"{at}.attn_qkv", N_EMBD, (N_HEAD + 2 * N_HEAD_KV) * HEAD)
            matrix(file, f"{at}.attn_q_norm", HEAD, N_HEAD)
            matrix(file, f"{at}.attn_k_norm", HEAD, N_HEAD_KV)
            matrix(file, f"{at}.attn_output", N_HEAD * HEAD, N_EMBD)
        else:
            matrix(file, f"{at}.ssm_in", N_EMBD, 2 * N_INNER)
            matrix(file, f"{at}.ssm_conv1d", N_CONV, N_INNER)
            matrix(file, f"{at}.ssm_x", N_INNER, rank + 2 * N_STATE)
            matrix(file, f"{at}.ssm_dt", rank, N_RANK)
            file.random(f"{at}.ssm_dt.bias", N_RANK)
            add_decay(file, f"{at}.ssm_a", N_RANK)
            file.random(f"{at}.ssm_d", N_RANK)
            matrix(file, f"{at}.ssm_out", N_INNER, N_EMBD)
            for part, size in (("dt", rank), ("b", N_STATE), ("c", N_STATE)):
                file.fill(f"{at}.ssm_{part}_norm", 1, size)
        matrix(file, f"{at}.ffn_up", N_EMBD, 2 * N_FF)
        matrix(file, f"{at}.ffn_down", N_FF, N_EMBD)
    file.write()


def _states(path: Path, tokenizer: Tokenizer, architecture: str, add: Callable[[ModelFile, int], None]) -> None:
    file = begin(path, architecture, tokenizer, 2)
    file.say_own(SSM)
    for i in range(2):
        add_norms(file, i, "attn_norm")
        add(file, i)
    file.write()


def mamba(path: Path, tokenizer: Tokenizer) -> None:
    _states(path, tokenizer, "mamba", add_mamba)


def mamba2(path: Path, tokenizer: Tokenizer) -> None:
    _states(path, tokenizer, "mamba2", add_mamba2)


def _rwkv(path: Path, tokenizer: Tokenizer, architecture: str) -> ModelFile:
    """Begin an RWKV with what its versions share: biased norms, and mixing of channels."""
    file = begin(path, architecture, tokenizer, 2, n_embd=N_WIDE)
    file.say_own({"feed_forward_length": N_FF, "wkv.head_size": N_WIDE, "attention.head_count": 0})
    file.random("output_norm.bias", N_WIDE, spread=0.1)
    vector(file, "token_embd_norm", N_WIDE)
    file.random("token_embd_norm.bias", N_WIDE, spread=0.1)
    for i in range(2):
        at = f"blk.{i}"
        for name in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            vector(file, f"{at}.{name}", N_WIDE)
            file.random(f"{at}.{name}.bias", N_WIDE, spread=0.1)
        for name in ("key", "value", "receptance", "output"):
            matrix(file, f"{at}.time_mix_{name}", N_WIDE, N_WIDE)
        file.random(f"{at}.channel_mix_lerp_k.weight", N_WIDE, 1, 1)
        matrix(file, f"{at}.channel_mix_key", N_WIDE, N_FF)
        matrix(file, f"{at}.channel_mix_value", N_FF, N_WIDE)
    return file


def rwkv6(path: Path, tokenizer: Tokenizer) -> None:
    file = _rwkv(path, tokenizer, "rwkv6")
    file.say_own({"time_mix_extra_dim": N_RANK, "time_decay_extra_dim": N_RANK})
    for i in range(2):
        at = f"blk.{i}.time_mix"
        matrix(file, f"{at}_w1", N_WIDE, 5 * N_RANK)
        matrix(file, f"{at}_w2", N_RANK, N_WIDE, 5)
        file.random(f"{at}_lerp_x.weight", N_WIDE, 1, 1)
        file.random(f"{at}_lerp_fused.weight", N_WIDE, 1, 1, 5)
        file.random(f"{at}_first.weight", N_WIDE, 1)
        file.random(f"{at}_decay.weight", N_WIDE)
        matrix(file, f"{at}_decay_w1", N_WIDE, N_RANK)
        matrix(file, f"{at}_decay_w2", N_RANK, N_WIDE)
        matrix(file, f"{at}_gate", N_WIDE, N_WIDE)
        file.random(f"blk.{i}.channel_mix_lerp_r.weight", N_WIDE, 1, 1)
        matrix(file, f"blk.{i}.channel_mix_receptance", N_WIDE, N_WIDE)
    file.write()


def rwkv7(path: Path, tokenizer: Tokenizer) -> None:
    file = _rwkv(path, tokenizer, "rwkv7")
    file.say_own({f"attention.{name}_lora_rank": N_RANK for name in ("decay", "iclr", "value_residual_mix", "gate")})
    for i in range(2):
        at = f"blk.{i}.time_mix"
        file.random(f"{at}_lerp_fused.weight", N_WIDE, 1, 1, 6)
        for name in "wavg":
            matrix(file, f"{at}_{name}1", N_WIDE, N_RANK)
            matrix(file, f"{at}_{name}2", N_RANK, N_WIDE)
        for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k"):
            file.random(f"{at}_{name}.weight", N_WIDE)
    file.write()


Write = Callable[[Path, Tokenizer], None]
# By llama.cpp's names.
HYBRID: dict[str, Write] = {
    "lfm2": lfm2,
    "lfm2moe": lfm2moe,
    "qwen35": qwen35,
    "qwen3next": qwen3next,
    "granitehybrid": granitehybrid,
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": nemotron_h_moe,
    "falcon-h1": falcon_h1,
    "jamba": jamba,
    "kimi-linear": kimi_linear,
    "plamo2": plamo2,
}
RECURRENT: dict[str, Write] = {"mamba": mamba, "mamba2": mamba2, "rwkv6": rwkv6, "rwkv7": rwkv7}
