"""Contexts on the weights of a Llama or a file: options, opening, the Llama's cache, native streams and their end."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, BusyError, ContextError
from token_trie.llama.query import Sampling, native_sampling
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.ffi import check, check_pointer, ffi, lib, new_struct
from token_trie.native.lifetime import Attachment, Closeable, attachment
from token_trie.native.llama_facts import context_of, model_of
from token_trie.native.options import Options, check_flags, check_integers, check_limits, check_numbers, native_seed
from token_trie.native.threads import acting_thread, interruptible, release_threads

# Level of llama-cpp-python's logger. Its levels are one off: it takes llama.cpp's warnings for errors, shows them even
# if a Llama is not verbose, and never shows errors.
_QUIET = logging.CRITICAL
_llama_logger = logging.getLogger("llama-cpp-python")
_quiet_lock = threading.RLock()
_n_quiet = 0
_loud = logging.NOTSET


@contextmanager
def quiet() -> Iterator[None]:
    """Keep llama.cpp's lines about loading a model off the terminal, as `Llama(verbose=False)` does."""
    global _n_quiet, _loud
    with _quiet_lock:
        if _n_quiet == 0:
            _loud = _llama_logger.level
            _llama_logger.setLevel(_QUIET)
        _n_quiet += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _n_quiet -= 1
            if _n_quiet == 0 and _llama_logger.level == _QUIET:  # unless a new Llama has set another level
                _llama_logger.setLevel(_loud)


def be_quiet_with(llm: Llama) -> None:
    """Keep warnings about further contexts of a Llama that is not verbose off the terminal, permanently."""
    if not llm.verbose and _llama_logger.level == logging.ERROR:
        _llama_logger.setLevel(_QUIET)


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

    def __post_init__(self) -> None:
        check_limits(n_ctx=self.n_ctx)
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
    )


def _device_of(sampling: object) -> int:
    if isinstance(sampling, str) and sampling == "auto":
        return int(lib.TOKEN_TRIE_DEVICE_AUTO)
    if not isinstance(sampling, bool):
        raise ArgumentError(f"device_sampling: {sampling!r} is none of 'auto', True, False")
    return int(lib.TOKEN_TRIE_DEVICE_ON if sampling else lib.TOKEN_TRIE_DEVICE_OFF)


T = TypeVar("T")

_OWNED = "the stream is in the middle of several calls of another thread; use one StreamHandle a thread"


class NativeStream(Closeable):
    """A stream of the C ABI.

    `call` admits one thread at a time, until its results are copied. `close` refuses new calls, cancels the running
    one, waits until its results are copied, and returns when the stream is freed, even if several threads close it.
    """

    def __init__(self, pointer: Any, attached: Attachment | None = None) -> None:
        self.pointer = pointer
        self.lock = threading.Lock()
        self.entered = 0  # the thread inside a call
        self.owner = 0  # the thread that owns it for several calls
        self._n_owned = 0
        self._owning = threading.Lock()
        self._vocab: _core.Vocab | None = None
        state = new_struct("token_trie_stream_state")
        check(lib.token_trie_stream_get_state(pointer, state))
        self.n_ctx_max = int(state.n_context_max)
        # A Llama has `verbose`. The context of a file logs many lines whenever it grows.
        self.logging: Callable[[], AbstractContextManager[None]] = quiet if attached is None else nullcontext
        self._attached = attached
        super().__init__("stream", set() if attached is None else attached.streams)

    def call(
        self,
        function: Callable[..., int],
        *arguments: Any,
        before: Callable[[], None] | None = None,
        after: Callable[[], T] | None = None,
    ) -> T | None:
        """Call a function of the ABI between `before` and `after`; return the result of `after`.

        Raises BusyError during another call.
        """
        thread = get_ident()
        with self.enter():
            self.entered = thread  # at once, because a signal handler that closes may run after any call
            try:
                self._require_open()
                if before is not None:
                    before()
                with self.logging():
                    status = function(self.pointer, *arguments)
                check(status)
                return None if after is None else after()
            finally:
                release_threads(but_main=True)
                self.entered = 0

    def look(self, function: Callable[..., int], *arguments: Any) -> None:
        """Call a function of the ABI that only reads, without excluding other threads."""
        self.require_own_process()
        check(function(self.pointer, *arguments))

    def with_vocab(self, use: Callable[[_core.Vocab], T]) -> T:
        """Call a function with the vocabulary, which stays valid meanwhile, also inside another call of this thread.

        BusyError as of `call`.
        """
        thread = get_ident()
        if self._vocab is not None and self.is_entered_here():
            return use(self._vocab)
        with self.enter():
            self.entered = thread
            try:
                self._require_open()
                address = check_pointer(lib.token_trie_stream_get_vocab(self.pointer))
                if self._vocab is None:
                    self._vocab = _core.Vocab(int(ffi.cast("uintptr_t", address)))
                return use(self._vocab)
            finally:
                self.entered = 0

    @contextmanager
    def own(self) -> Iterator[None]:
        """Exclude other threads for several calls; BusyError if another thread is inside."""
        thread = acting_thread()
        is_owned = False
        try:
            with self._owning:
                if self.owner not in (0, thread):
                    raise BusyError(_OWNED)
                self.owner = thread
                self._n_owned += 1
                is_owned = True  # no interrupt comes between this and the count, only after calls
            yield
        finally:
            if is_owned:
                self._n_owned -= 1
                if self._n_owned == 0:
                    self.owner = 0

    def fork(self) -> NativeStream:
        """Make another stream that continues from here, on the same context; BusyError as of `call`."""
        made: list[Any] = []

        def make(stream: Any) -> int:
            if self._attached is not None and self._attached.closed:
                raise ArgumentError("llm: this Llama is closed")  # which closes only the streams that exist
            made.append(lib.token_trie_stream_fork(stream))
            return 0 if made[0] != ffi.NULL else int(lib.token_trie_last_status())

        other = self.call(make, after=lambda: NativeStream(made[0], self._attached))
        assert other is not None
        return other

    def enter(self) -> threading.Lock:
        """Return the lock, if it is free, for a ``with``, in whose middle no interrupt can come.

        Two threads within a microsecond may both get it; one then waits for the other.
        """
        if self.owner and self.owner != acting_thread():
            raise BusyError(_OWNED)
        if self.lock.locked():
            self.require_own_process()
            self._require_open()
            raise BusyError("the stream is in a call already, of another thread or of its own callback")
        return self.lock

    def _require_open(self) -> None:
        self.require_own_process()
        if self.is_closing:
            raise ArgumentError("stream: closed")

    def cancel(self) -> None:
        """End the running call, if any."""
        if not self.is_forked:
            lib.token_trie_stream_cancel(self.pointer)

    def shut(self) -> None:
        """Cancel the running call, wait for its end, free the stream."""
        while self.lock.locked():
            # Repeatedly, because the call may not have begun yet.
            lib.token_trie_stream_cancel(self.pointer)
            time.sleep(0.001)
        with self.lock:
            try:
                # On a worker thread, because an interrupt would be lost in llama.cpp's log callback.
                interruptible(self._free, lambda: None)
            finally:
                self.entered = 0

    def _free(self) -> None:
        self.entered = get_ident()
        with quiet():
            lib.token_trie_stream_close(self.pointer)
        self.forget()

    def is_entered_here(self) -> bool:
        """Return whether this thread is inside a call."""
        return self.lock.locked() and self.entered == get_ident()


# Opening a stream waits at most this long until dropped ones are freed.
_MAX_WAIT_S = 1.0

_logger = logging.getLogger(__name__)
_making = threading.Lock()
_dropped: SimpleQueue[Any] | None = None
_owned: dict[weakref.ref[Any], NativeStream] = {}  # by their handles


def close_with(handle: object, native: NativeStream) -> None:
    """Close a stream when a handle is dropped or the process ends."""
    _owned[weakref.ref(handle, _queue().put)] = native


def wait_for_dropped() -> None:
    """Wait until the streams of all dropped handles are freed."""
    if any(handle() is None for handle in list(_owned)):
        freed = threading.Event()
        _queue().put(freed)
        freed.wait(_MAX_WAIT_S)


def _queue() -> SimpleQueue[Any]:
    global _dropped
    with _making:
        if _dropped is None:
            dropped: SimpleQueue[Any] = SimpleQueue()
            threading.Thread(target=_close_dropped, args=(dropped,), name="token-trie", daemon=True).start()
            _dropped = dropped
        return _dropped


def _close_dropped(dropped: SimpleQueue[Any]) -> None:
    while True:
        item = dropped.get()
        if isinstance(item, threading.Event):
            item.set()
            continue
        try:
            _owned[item].close()
        except Exception:
            _logger.exception("a stream that was dropped cannot be closed")
        _owned.pop(item, None)


@atexit.register
def _close_all() -> None:
    for native in list(_owned.values()):
        native.close()


def _forget_dropped() -> None:
    global _dropped, _making
    _making, _dropped = threading.Lock(), None
    _owned.clear()  # they belong to the parent process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_dropped)


Tokens = npt.NDArray[np.int32]


def import_prefix(stream: Any, llm: Llama, tokens: Tokens, n_there: int) -> None:
    """Copy the beginning of a prompt from a Llama's cache to a stream, if it is more than n_there tokens.

    Nothing happens if the cache cannot be copied; the stream then evaluates.
    """
    # A chat handler of images evaluates tokens that are not in input_ids.
    if llm.chat_handler is not None or llm.context_params.embeddings or not context_of(llm).ctx:
        return
    n = n_cached(llm, tokens)
    if n > n_there:
        context = ffi.cast("struct llama_context *", ctypes.cast(context_of(llm).ctx, ctypes.c_void_p).value)
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
    require_weights(llm)
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


def require_weights(llm: Llama) -> None:
    """Raise ArgumentError if no context can be opened on a Llama's weights: it is closed, or has none."""
    vocab_of(llm)
    if llm.model_params.vocab_only:
        raise ArgumentError("llm: loaded with vocab_only=True, without weights to generate by")


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
