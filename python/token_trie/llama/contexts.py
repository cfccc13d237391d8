"""Contexts on the weights of a Llama or a file: options, opening, and the Llama's own cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, ContextError
from token_trie.llama.native_stream import NativeStream
from token_trie.llama.query import Sampling, native_sampling
from token_trie.native.core import Llama, _core, be_quiet_with, quiet, vocab_of
from token_trie.native.ffi import check_pointer, ffi, lib, new_struct
from token_trie.native.lifetime import Attachment, Closeable, attachment
from token_trie.native.llama_facts import model_of
from token_trie.native.options import Options, check_flags, check_integers, check_limits, check_numbers, native_seed
from token_trie.native.threads import interruptible


@dataclass(frozen=True)
class Device:
    """A device of llama.cpp."""

    backend: str
    """Name of the backend: "CPU", "Vulkan", "CUDA", "Metal" and so on; backends such as "BLAS" help the CPU."""
    name: str
    description: str
    """Name as reported by the driver."""
    kind: str
    """"cpu", "gpu", "integrated gpu" or "accelerator"."""
    free_bytes: int
    total_bytes: int


def devices() -> list[Device]:
    """List the devices of the backends that llama.cpp was built with, in its order."""
    with quiet():
        return [Device(*each) for each in _core.devices()]


_PENALTIES = "penalty_last_n", "penalty_repeat", "penalty_freq", "penalty_present"


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
    penalty_last_n, penalty_repeat, penalty_freq, penalty_present
        llama.cpp's penalties for repetition; 0 turns them off, and so does ``penalty_repeat=1``.
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
    max_state_bytes : int, optional
        Memory for the states of a recurrent or hybrid model; by default 512 MiB. The context has space for as many
        states as fit, at least 8. With more of them, scores and searches are faster, and more beginnings of prompts are
        kept. `state.n_states_max` and `state.state_bytes` say how many these are, and how large.
    """

    n_ctx: int | None = None
    seed: int | None = None
    penalty_last_n: int = 0
    penalty_repeat: float = 1.0
    penalty_freq: float = 0.0
    penalty_present: float = 0.0
    jump_forward: bool = True
    n_threads: int = 0
    n_gpu_layers: int = 0
    device_sampling: Literal["auto"] | bool = "auto"
    max_state_bytes: int | None = None

    def __post_init__(self) -> None:
        check_limits(n_ctx=self.n_ctx, max_state_bytes=self.max_state_bytes)
        native_seed(self.seed)
        check_flags(jump_forward=self.jump_forward)
        check_integers(**{name: getattr(self, name) for name in ("penalty_last_n", "n_threads", "n_gpu_layers")})
        check_numbers(**{name: getattr(self, name) for name in ("penalty_repeat", "penalty_freq", "penalty_present")})
        _device_of(self.device_sampling)

    @property
    def penalties(self) -> dict[str, Any]:
        """Members of struct token_trie_sampling that hold for all calls."""
        return {name: getattr(self, name) for name in _PENALTIES}


def native_options(options: StreamOptions) -> Any:
    """Return the options as a struct token_trie_stream_params."""
    return new_struct(
        "token_trie_stream_params",
        n_ctx=options.n_ctx or 0,
        n_threads=options.n_threads,
        n_gpu_layers=options.n_gpu_layers,
        sampling=native_sampling(Sampling(seed=options.seed), draws=False, **options.penalties),
        step_by_step=int(not options.jump_forward),
        device_sampling=_device_of(options.device_sampling),
        max_state_bytes=options.max_state_bytes or 0,
    )


def _device_of(sampling: object) -> int:
    if isinstance(sampling, str) and sampling == "auto":
        return int(lib.TOKEN_TRIE_DEVICE_AUTO)
    if not isinstance(sampling, bool):
        raise ArgumentError(f"device_sampling must be one of 'auto', True, False, not {sampling!r}")
    return int(lib.TOKEN_TRIE_DEVICE_ON if sampling else lib.TOKEN_TRIE_DEVICE_OFF)


Tokens = npt.NDArray[np.int32]


def import_prefix(stream: Any, llm: Llama, tokens: Tokens, n_there: int) -> None:
    """Copy the beginning of a prompt from a Llama's cache to a stream, if it is more than n_there tokens.

    Nothing happens if the cache cannot be copied; the stream then evaluates.
    """
    # A chat handler of images evaluates tokens that are not in input_ids.
    if llm.chat_handler is not None or llm.context_params.embeddings or not llm.ctx:
        return
    n = n_cached(llm, tokens)
    if n > n_there:
        context = ffi.cast("struct llama_context *", ctypes.cast(llm.ctx, ctypes.c_void_p).value)
        with attachment(llm).importing:
            lib.token_trie_stream_import_prefix(stream, context, 0, ffi.from_buffer("llama_token[]", tokens), n)


def n_cached(llm: Llama, tokens: Tokens) -> int:
    """Count the tokens of a prompt with which the Llama's cache begins.

    0 if they are less than half of the cache, because the cache is copied whole.
    """
    there = int(llm.n_tokens)
    n = common_prefix(llm.input_ids[:there], tokens)
    return n if there <= 2 * n else 0


def common_prefix(a: Tokens | Sequence[int], b: Tokens | Sequence[int]) -> int:
    """Count the tokens with which both begin."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(differ[0]) if len(differ) else n


def check_room(n_ctx: int, n_prompt: int, n_answer: int, owner: str = "Llama") -> None:
    """Raise ContextError if a prompt and an answer of so many tokens do not fit."""
    if n_prompt + n_answer > n_ctx:
        raise ContextError(
            f"prompt: {n_prompt} tokens and an answer of up to {n_answer} do not fit the context of "
            f"{n_ctx} tokens; make the {owner} with a larger n_ctx"
        )


G = TypeVar("G", bound=Closeable)


def open_on(llm: Llama, attached: Attachment, n_ctx: int | None, params: Any) -> NativeStream:
    """Open a stream on the weights of a Llama; its context grows up to the size of the Llama's."""

    def make() -> NativeStream:
        return NativeStream(make_on(lib.token_trie_stream_open_model, llm, attached, n_ctx, params), attached)

    return opened(make)


def make_on(make: Callable[..., Any], llm: Llama, attached: Attachment, n_ctx: int | None, params: Any) -> Any:
    """Call a function of the ABI that opens a context on a Llama's weights, with the Llama's params and adapters."""
    require_decoder(llm)
    be_quiet_with(llm)
    like = type(llm.context_params).from_buffer_copy(llm.context_params)
    check_limits(n_ctx=n_ctx)
    if n_ctx is not None:
        like.n_ctx = int(n_ctx)
    applied = attached.adapters
    adapters = ffi.new("struct llama_adapter_lora *[]", [_pointer_to("llama_adapter_lora", one) for one, _ in applied])
    scales = ffi.new("float[]", [scale for _, scale in applied])
    params.adapters, params.adapter_scales, params.n_adapters = adapters, scales, len(applied)
    model = _pointer_to("llama_model", model_of(llm).model)
    own = ffi.cast("struct llama_context_params *", ctypes.addressof(like))
    return check_pointer(make(model, own, params))


def require_decoder(llm: Llama) -> None:
    """Raise ArgumentError if a Llama writes no token after another: it is closed, without weights, or no decoder."""
    vocab_of(llm)
    if llm.model_params.vocab_only:
        raise ArgumentError("llm: loaded with vocab_only=True, without weights to generate by")
    _core.check_model(int(ctypes.cast(model_of(llm).model, ctypes.c_void_p).value or 0))


def _pointer_to(struct: str, pointer: Any) -> Any:
    return ffi.cast(f"struct {struct} *", ctypes.cast(pointer, ctypes.c_void_p).value)


def open_file(path: bytes, params: Any) -> NativeStream:
    """Open a stream on a GGUF file."""

    def make() -> NativeStream:
        with quiet():
            return NativeStream(check_pointer(lib.token_trie_stream_open_file(path, params)))

    return opened(make)


def opened(make: Callable[[], G]) -> G:
    """Make an object with a context on a worker thread; an interrupt would be lost in llama.cpp's log callback."""
    made: list[G] = []
    try:
        interruptible(lambda: made.append(make()), lambda: None)
    except BaseException:
        for one in made:
            one.close()
        raise
    return made[0]


if TYPE_CHECKING:  # by scripts/keywords

    class StreamKeywords(TypedDict, total=False):
        """Keywords of `StreamOptions`."""

        n_ctx: int | None
        seed: int | None
        penalty_last_n: int
        penalty_repeat: float
        penalty_freq: float
        penalty_present: float
        jump_forward: bool
        n_threads: int
        n_gpu_layers: int
        device_sampling: Literal["auto"] | bool
        max_state_bytes: int | None
