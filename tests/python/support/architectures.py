"""Models with states, tiny and in F32: hybrids, which have attention in some layers, and models of states alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from model_layers import (
    HEAD,
    N_EMBD,
    N_FF,
    N_HEAD,
    N_HEAD_KV,
    attention,
    begin,
    feed_forward,
    matrix,
    vector,
)
from tiny_model import ModelFile, Said, Tokenizer

N_CONV, N_STATE, N_RANK, N_GROUP = 4, 8, 4, 2
N_INNER = 2 * N_EMBD

SSM: dict[str, Said] = {
    "ssm.conv_kernel": N_CONV,
    "ssm.inner_size": N_INNER,
    "ssm.state_size": N_STATE,
    "ssm.time_step_rank": N_RANK,
    "ssm.group_count": N_GROUP,
}


def heads(attending: list[bool]) -> dict[str, Said]:
    """Return keys of attention in some layers: the others have no heads of keys."""
    return {"attention.head_count": N_HEAD, "attention.head_count_kv": [N_HEAD_KV * one for one in attending]}


def add_convolution(file: ModelFile, layer: int, channels: int, *, name: str = "ssm_conv1d") -> None:
    matrix(file, f"blk.{layer}.{name}", N_CONV, channels)


def add_decay(file: ModelFile, layer: int, *sizes: int) -> None:
    """Add by how much a state is forgotten: a negative factor."""
    file.add(f"blk.{layer}.ssm_a", -np.exp(file.drawn(*sizes)))


def add_mamba2(file: ModelFile, layer: int) -> None:
    at = f"blk.{layer}.ssm"
    channels = N_INNER + 2 * N_GROUP * N_STATE
    matrix(file, f"{at}_in", N_EMBD, N_INNER + channels + N_RANK)
    add_convolution(file, layer, channels)
    file.random(f"{at}_conv1d.bias", channels, spread=0.1)
    file.random(f"{at}_dt.bias", N_RANK)
    add_decay(file, layer, 1, N_RANK)
    file.random(f"{at}_d", 1, N_RANK)
    file.add(f"{at}_norm.weight", 1 + file.drawn(N_INNER // N_GROUP, N_GROUP, spread=0.1))
    matrix(file, f"{at}_out", N_INNER, N_EMBD)


def lfm2(path: Path, tokenizer: Tokenizer) -> None:
    attending = [False, True, False]
    file = begin(path, "lfm2", tokenizer, len(attending), norm="token_embd_norm")
    file.say_own({"feed_forward_length": N_FF, "shortconv.l_cache": 3, **heads(attending)})
    for i, attends in enumerate(attending):
        vector(file, f"blk.{i}.attn_norm")
        vector(file, f"blk.{i}.ffn_norm")
        feed_forward(file, i)
        if attends:
            vector(file, f"blk.{i}.attn_q_norm", HEAD)
            vector(file, f"blk.{i}.attn_k_norm", HEAD)
            attention(file, i)
        else:
            matrix(file, f"blk.{i}.shortconv.conv", 3, N_EMBD)
            matrix(file, f"blk.{i}.shortconv.in_proj", N_EMBD, 3 * N_EMBD)
            matrix(file, f"blk.{i}.shortconv.out_proj", N_EMBD, N_EMBD)
    file.write()


def mamba2(path: Path, tokenizer: Tokenizer) -> None:
    file = begin(path, "mamba2", tokenizer, 2)
    file.say_own(SSM)
    for i in range(2):
        vector(file, f"blk.{i}.attn_norm")
        add_mamba2(file, i)
    file.write()


# By llama.cpp's names.
HYBRID: dict[str, Callable[[Path, Tokenizer], None]] = {"lfm2": lfm2}
RECURRENT: dict[str, Callable[[Path, Tokenizer], None]] = {"mamba2": mamba2}
