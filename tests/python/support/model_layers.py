"""Parts that models have in common, small and in F32: what is read first and last, attention, feed-forward layers."""

from __future__ import annotations

from pathlib import Path

from tiny_model import ModelFile, Said, Tokenizer

N_EMBD, N_FF, N_CTX = 32, 48, 1024
N_HEAD, N_HEAD_KV, HEAD = 2, 1, 16
N_EXPERT, N_EXPERT_USED, N_FF_EXPERT = 4, 2, 24

# Keys of a mixture of experts, behind the architecture's name.
EXPERTS: dict[str, Said] = {
    "expert_count": N_EXPERT,
    "expert_used_count": N_EXPERT_USED,
    "expert_feed_forward_length": N_FF_EXPERT,
}

# Keys of attention, likewise.
HEADS: dict[str, Said] = {
    "feed_forward_length": N_FF,
    "attention.head_count": N_HEAD,
    "attention.head_count_kv": N_HEAD_KV,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "rope.dimension_count": HEAD,
}


def begin(
    path: Path,
    architecture: str,
    tokenizer: Tokenizer,
    n_layer: int,
    *,
    norm: str = "output_norm",
    n_embd: int = N_EMBD,
    has_output: bool = True,
) -> ModelFile:
    """Begin a model with its keys of sizes, its embedding and its output, each token's apart."""
    file = ModelFile(path, architecture, tokenizer)
    file.say_own(
        {
            "context_length": N_CTX,
            "embedding_length": n_embd,
            "block_count": n_layer,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.layer_norm_epsilon": 1e-5,
        }
    )
    file.random("token_embd.weight", n_embd, file.n_vocab)
    if has_output:
        file.random("output.weight", n_embd, file.n_vocab, spread=2.8 * n_embd**-0.5)
    vector(file, norm, n_embd)
    return file


def matrix(file: ModelFile, name: str, n_in: int, *n_out: int) -> None:
    """Add weights that keep the spread of what they are multiplied with."""
    file.random(f"{name}.weight", n_in, *n_out, spread=n_in**-0.5)


def vector(file: ModelFile, name: str, size: int = N_EMBD) -> None:
    """Add the weights of a norm."""
    file.add(f"{name}.weight", 1 + file.drawn(size, spread=0.1))


def add_norms(file: ModelFile, layer: int, *names: str, size: int = N_EMBD) -> None:
    """Add vectors to a layer."""
    for name in names:
        vector(file, f"blk.{layer}.{name}", size)


def attention(
    file: ModelFile,
    layer: int,
    *,
    n_head: int = N_HEAD,
    n_head_kv: int = N_HEAD_KV,
    head: int = HEAD,
    has_gates: bool = False,
) -> None:
    """Add what queries (where asked for, with gates), keys and values are made with, and what is made of them."""
    at = f"blk.{layer}.attn"
    matrix(file, f"{at}_q", N_EMBD, (1 + has_gates) * n_head * head)
    matrix(file, f"{at}_k", N_EMBD, n_head_kv * head)
    matrix(file, f"{at}_v", N_EMBD, n_head_kv * head)
    matrix(file, f"{at}_output", n_head * head, N_EMBD)


def feed_forward(file: ModelFile, layer: int, *, is_gated: bool = True, part: str = "", size: int = N_FF) -> None:
    """Add a dense layer, or the part of a mixture that all tokens share (`_shexp`)."""
    at = f"blk.{layer}.ffn"
    if is_gated:
        matrix(file, f"{at}_gate{part}", N_EMBD, size)
    matrix(file, f"{at}_up{part}", N_EMBD, size)
    matrix(file, f"{at}_down{part}", size, N_EMBD)


def experts(
    file: ModelFile, layer: int, *, is_gated: bool = True, is_biased: bool = False, size: int = N_FF_EXPERT
) -> None:
    """Add a mixture of experts, and where asked for the bias by which they are picked."""
    at = f"blk.{layer}.ffn"
    matrix(file, f"{at}_gate_inp", N_EMBD, N_EXPERT)
    if is_gated:
        matrix(file, f"{at}_gate_exps", N_EMBD, size, N_EXPERT)
    matrix(file, f"{at}_up_exps", N_EMBD, size, N_EXPERT)
    matrix(file, f"{at}_down_exps", size, N_EMBD, N_EXPERT)
    if is_biased:
        file.random(f"blk.{layer}.exp_probs_b.bias", N_EXPERT, spread=0.1)
