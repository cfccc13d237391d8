"""Options of a handle, as the C ABI takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from token_trie.errors import ArgumentError
from token_trie.llama.sampling import Sampling, native_sampling
from token_trie.native.arguments import check_counts, check_flags, check_integers, check_numbers, native_seed
from token_trie.native.ffi import lib, new_struct
from token_trie.native.options import Options

_SAMPLING = "top_k", "min_p", "penalty_last_n", "penalty_repeat", "penalty_freq", "penalty_present"


@dataclass(frozen=True, kw_only=True)
class StreamOptions(Options):
    """Options of `StreamHandle`.

    Parameters
    ----------
    n_ctx : int, optional
        Largest number of tokens in the context; by default as in the Llama, or for a file, as the model was trained
        with. The context is small at first and grows when needed.
    seed : int, optional
        For random draws: the same seed draws the same tokens; by default a new seed each time.
    top_k, min_p, penalty_last_n, penalty_repeat, penalty_freq, penalty_present
        Sampling options besides temperature and top_p; 0 turns them off, and so does ``penalty_repeat=1``.
    jump_forward : bool
        Whether forced tokens are returned without evaluation and evaluated in the next batch. If False, each token is
        evaluated alone. This is slower, but equal, bit by bit, to other loops of single tokens, also on quantized
        models.
    n_threads, n_gpu_layers : int
        For a file: as in llama-cpp-python; ``n_gpu_layers=-1`` for all layers.
    device_sampling : {"auto", True, False}
        Whether steps under a trie choose inside llama.cpp's compute graph. Then only 8 bytes leave a device, or the
        logits of the allowed tokens if one is drawn, instead of a whole row of logits. "auto": if the model's last
        layer is on a device. Answers are the same. `state.n_on_device` counts such passes. It is 0 if the model or
        llama.cpp does not support this, for example with models that have other layers than attention.
    """

    n_ctx: int | None = None
    seed: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    penalty_last_n: int = 0
    penalty_repeat: float = 1.0
    penalty_freq: float = 0.0
    penalty_present: float = 0.0
    jump_forward: bool = True
    n_threads: int = 0
    n_gpu_layers: int = 0
    device_sampling: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        if self.n_ctx is not None:
            check_counts(n_ctx=self.n_ctx)
        native_seed(self.seed)
        check_flags(jump_forward=self.jump_forward)
        check_integers(
            **{name: getattr(self, name) for name in ("top_k", "penalty_last_n", "n_threads", "n_gpu_layers")}
        )
        check_numbers(
            **{name: getattr(self, name) for name in ("min_p", "penalty_repeat", "penalty_freq", "penalty_present")}
        )
        _device_of(self.device_sampling)

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """Members of struct token_trie_sampling that hold where a call does not give others."""
        return {name: getattr(self, name) for name in _SAMPLING}


def native_options(options: StreamOptions) -> Any:
    """Return a struct token_trie_stream_params of options."""
    return new_struct(
        "token_trie_stream_params",
        n_ctx=options.n_ctx or 0,
        n_threads=options.n_threads,
        n_gpu_layers=options.n_gpu_layers,
        sampling=native_sampling(Sampling(seed=options.seed), draws=False, **options.sampling_defaults),
        step_by_step=int(not options.jump_forward),
        device_sampling=_device_of(options.device_sampling),
    )


def _device_of(sampling: object) -> int:
    if isinstance(sampling, str) and sampling == "auto":
        return int(lib.TOKEN_TRIE_DEVICE_AUTO)
    if not isinstance(sampling, bool):
        raise ArgumentError(f"device_sampling: {sampling!r} is none of 'auto', True, False")
    return int(lib.TOKEN_TRIE_DEVICE_ON if sampling else lib.TOKEN_TRIE_DEVICE_OFF)


if TYPE_CHECKING:  # by scripts/keywords

    class StreamKeywords(TypedDict, total=False):
        """Those of `StreamOptions`."""

        n_ctx: int | None
        seed: int | None
        top_k: int
        min_p: float
        penalty_last_n: int
        penalty_repeat: float
        penalty_freq: float
        penalty_present: float
        jump_forward: bool
        n_threads: int
        n_gpu_layers: int
        device_sampling: Literal["auto"] | bool
