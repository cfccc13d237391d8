"""Models with random weights in the shapes of real ones: the cost is as of these, the answers mean nothing.

All have the tokenizer of SmolLM2, so that their vocabularies are smaller than the real ones.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from token_trie import demo_model
from token_trie.native.files import users_cache

_N_CTX = 32_768
_Q8_0 = np.dtype([("scale", "<f2"), ("numbers", "i1", 32)])


class _File:
    """A GGUF file in the making, its matrices in Q8_0."""

    def __init__(self, path: Path, architecture: str, *, n_layer: int, n_embd: int, n_ff: int) -> None:
        self.n_layer, self.n_embd, self.n_ff = n_layer, n_embd, n_ff
        self._architecture, self._rng = architecture, np.random.default_rng(0)
        self._writer = gguf.GGUFWriter(path, architecture)
        self._writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
        sizes = {"block_count": n_layer, "embedding_length": n_embd, "feed_forward_length": n_ff}
        self.say(context_length=_N_CTX, **sizes)
        self.say(**{"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e6})
        self.matrix("token_embd", n_embd, self._add_tokenizer(), spread=0.3)

    def _add_tokenizer(self) -> int:
        """Add SmolLM2's tokenizer; return how many tokens there are."""
        fields = gguf.GGUFReader(demo_model()).fields
        for name, field in fields.items():
            if name.startswith("tokenizer."):
                inner = field.types[1] if len(field.types) > 1 else None
                self._writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
        return len(fields["tokenizer.ggml.tokens"].data)

    def say(self, **said: Any) -> None:
        """Add keys behind the architecture's name."""
        adds: dict[type, Callable[[str, Any], None]] = {
            int: self._writer.add_uint32,
            float: self._writer.add_float32,
            list: self._writer.add_array,
        }
        for key, value in said.items():
            adds[type(value)](f"{self._architecture}.{key}", value)

    def matrix(self, name: str, n_in: int, n_out: int, *, spread: float | None = None) -> None:
        """Add a matrix of a standard deviation, which by default keeps that of its input."""
        blocks = np.empty((n_out, n_in // 32), _Q8_0)
        blocks["numbers"] = self._rng.integers(-127, 128, blocks["numbers"].shape, np.int8)
        blocks["scale"] = (n_in**-0.5 if spread is None else spread) * 3**0.5 / 127
        self._writer.add_tensor(
            f"{name}.weight", blocks.view(np.uint8).reshape(n_out, -1), raw_dtype=gguf.GGMLQuantizationType.Q8_0
        )

    def random(self, name: str, *sizes: int) -> None:
        """Add numbers in F32, sizes in llama.cpp's order."""
        self._writer.add_tensor(name, self._rng.normal(0, 0.5, sizes[::-1]).astype(np.float32))

    def fill(self, value: float, name: str, *sizes: int) -> None:
        """Add one number everywhere, in F32."""
        self._writer.add_tensor(name, np.full(sizes[::-1], value, np.float32))

    def write(self) -> None:
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()


def _feed_forward(file: _File, at: str, norm: str = "ffn_norm") -> None:
    file.fill(1, f"{at}.attn_norm.weight", file.n_embd)
    file.fill(1, f"{at}.{norm}.weight", file.n_embd)
    file.matrix(f"{at}.ffn_gate", file.n_embd, file.n_ff)
    file.matrix(f"{at}.ffn_up", file.n_embd, file.n_ff)
    file.matrix(f"{at}.ffn_down", file.n_ff, file.n_embd)


def _attention(
    file: _File, at: str, *, n_head: int, n_head_kv: int, width: int, is_normed: bool = True, is_gated: bool = False
) -> None:
    if is_normed:
        file.fill(1, f"{at}.attn_q_norm.weight", width)
        file.fill(1, f"{at}.attn_k_norm.weight", width)
    file.matrix(f"{at}.attn_q", file.n_embd, n_head * width * (1 + is_gated))
    file.matrix(f"{at}.attn_k", file.n_embd, n_head_kv * width)
    file.matrix(f"{at}.attn_v", file.n_embd, n_head_kv * width)
    file.matrix(f"{at}.attn_output", n_head * width, file.n_embd)


def _qwen3_tiny(path: Path) -> None:
    """Write a model whose passes take no time."""
    _qwen3(path, n_layer=2, n_embd=128, n_ff=256, n_head=2)


def _qwen3_350m(path: Path) -> None:
    _qwen3(path, n_layer=16, n_embd=1024, n_ff=4608, n_head=16)


def _qwen3(path: Path, *, n_layer: int, n_embd: int, n_ff: int, n_head: int) -> None:
    """Attention in all layers."""
    file = _File(path, "qwen3", n_layer=n_layer, n_embd=n_embd, n_ff=n_ff)
    file.say(**{"attention.head_count": n_head, "attention.head_count_kv": n_head // 2})
    file.say(**{"attention.key_length": 64, "attention.value_length": 64})
    file.fill(1, "output_norm.weight", file.n_embd)
    for i in range(file.n_layer):
        _attention(file, f"blk.{i}", n_head=n_head, n_head_kv=n_head // 2, width=64)
        _feed_forward(file, f"blk.{i}")
    file.write()


def _lfm2_350m(path: Path) -> None:
    """Short convolutions in ten layers of 16."""
    attending = {2, 5, 8, 10, 12, 14}
    file = _File(path, "lfm2", n_layer=16, n_embd=1024, n_ff=4608)
    n_kv = [8 * (i in attending) for i in range(file.n_layer)]
    file.say(**{"attention.head_count": 16, "attention.head_count_kv": n_kv, "shortconv.l_cache": 3})
    file.fill(1, "token_embd_norm.weight", file.n_embd)
    for i in range(file.n_layer):
        at = f"blk.{i}"
        if i in attending:
            _attention(file, at, n_head=16, n_head_kv=8, width=64)
        else:
            file.random(f"{at}.shortconv.conv.weight", 3, file.n_embd)
            file.matrix(f"{at}.shortconv.in_proj", file.n_embd, 3 * file.n_embd)
            file.matrix(f"{at}.shortconv.out_proj", file.n_embd, file.n_embd)
        _feed_forward(file, at)
    file.write()


def _qwen35_800m(path: Path) -> None:
    """Gated delta nets in three layers of four: 16 heads, 128 wide."""
    n_head, width, n_conv = 16, 128, 4
    inner = n_head * width
    file = _File(path, "qwen35", n_layer=24, n_embd=1024, n_ff=3584)
    file.say(**{"attention.head_count": 8, "attention.head_count_kv": 2})
    file.say(**{"attention.key_length": 256, "attention.value_length": 256})
    file.say(**{"rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0], "full_attention_interval": 4})
    file.say(**{"ssm.conv_kernel": n_conv, "ssm.inner_size": inner, "ssm.state_size": width})
    file.say(**{"ssm.time_step_rank": n_head, "ssm.group_count": n_head})
    file.fill(1, "output_norm.weight", file.n_embd)
    for i in range(file.n_layer):
        at = f"blk.{i}"
        if i % 4 == 3:
            _attention(file, at, n_head=8, n_head_kv=2, width=256, is_gated=True)
        else:
            file.matrix(f"{at}.attn_qkv", file.n_embd, 3 * inner)
            file.matrix(f"{at}.attn_gate", file.n_embd, inner)
            file.random(f"{at}.ssm_conv1d.weight", n_conv, 3 * inner)
            file.fill(0, f"{at}.ssm_dt.bias", n_head)
            file.fill(-1, f"{at}.ssm_a", n_head)
            file.matrix(f"{at}.ssm_beta", file.n_embd, n_head)
            file.matrix(f"{at}.ssm_alpha", file.n_embd, n_head)
            file.fill(1, f"{at}.ssm_norm.weight", width)
            file.matrix(f"{at}.ssm_out", inner, file.n_embd)
        _feed_forward(file, at, norm="post_attention_norm")
    file.write()


def _granite_h_350m(path: Path) -> None:
    """Mamba-2 in 28 layers of 32: 48 heads, 32 wide, states of 128 numbers."""
    n_head, n_state, n_conv, attending = 48, 128, 4, {10, 13, 17, 27}
    file = _File(path, "granitehybrid", n_layer=32, n_embd=768, n_ff=2048)
    inner = 2 * file.n_embd
    channels = inner + 2 * n_state
    n_kv = [4 * (i in attending) for i in range(file.n_layer)]
    file.say(**{"attention.head_count": 12, "attention.head_count_kv": n_kv, "rope.dimension_count": 64})
    file.say(**{"ssm.conv_kernel": n_conv, "ssm.inner_size": inner, "ssm.state_size": n_state})
    file.say(**{"ssm.time_step_rank": n_head, "ssm.group_count": 1})
    file.fill(1, "output_norm.weight", file.n_embd)
    for i in range(file.n_layer):
        at = f"blk.{i}"
        if i in attending:
            _attention(file, at, n_head=12, n_head_kv=4, width=64, is_normed=False)
        else:
            file.matrix(f"{at}.ssm_in", file.n_embd, inner + channels + n_head)
            file.random(f"{at}.ssm_conv1d.weight", n_conv, channels)
            file.random(f"{at}.ssm_conv1d.bias", channels)
            file.fill(0, f"{at}.ssm_dt.bias", n_head)
            file.random(f"{at}.ssm_d", 1, n_head)
            file.fill(-1, f"{at}.ssm_a", 1, n_head)
            file.matrix(f"{at}.ssm_out", inner, file.n_embd)
            file.fill(1, f"{at}.ssm_norm.weight", inner)
        _feed_forward(file, at)
    file.write()


SHAPES: dict[str, Callable[[Path], None]] = {
    "qwen3-tiny": _qwen3_tiny,
    "qwen3-350m": _qwen3_350m,
    "lfm2-350m": _lfm2_350m,
    "granite-4-h-350m": _granite_h_350m,
    "qwen3.5-0.8b": _qwen35_800m,
}


def random_model(name: str) -> Path:
    """Return a model of a shape in the user's cache, written if it is not there."""
    path = users_cache() / "models" / f"random-{name}-q8_0.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        SHAPES[name](partial)
        partial.rename(path)
    return path
