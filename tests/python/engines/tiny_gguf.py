"""The random Llama of `vllm_model` as a GGUF file too: the same weights, in F32, and the same tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from vllm_model import BOS, END, N_VOCAB, save_tiny_llama

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def save_both(folder: Path) -> Path:
    """Save it for transformers in a folder, and beside that as GGUF; return the latter's path."""
    import transformers

    save_tiny_llama(folder)
    path = folder.with_suffix(".gguf")
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    write_vocabulary(writer, json.loads((folder / "tokenizer.json").read_text()))
    for name, tensor in model.state_dict().items():
        writer.add_tensor(renamed(name), turned(name, tensor.numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_vocabulary(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    special = {token["content"] for token in tokenizer["added_tokens"]}
    texts = {i: text for text, i in tokenizer["model"]["vocab"].items()}
    tokens = [texts.get(i, f"[unused{i}]") for i in range(N_VOCAB)]
    kinds = [
        gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL if i in texts else gguf.TokenType.UNUSED
        for i, t in enumerate(tokens)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)


def renamed(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{NAMES[part.removesuffix('.weight')]}.weight"


def turned(name: str, weight: np.ndarray, config: Any) -> np.ndarray:
    """Pair the halves of each head up, as llama.cpp rotates neighbours where transformers rotates halves."""
    if "q_proj" not in name and "k_proj" not in name:
        return weight
    heads = weight.reshape(config.num_attention_heads, 2, config.head_dim // 2, config.hidden_size)
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(weight.shape))
