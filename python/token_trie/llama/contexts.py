"""Native streams: how they are opened, entered, interrupted and freed."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from typing import Any, TypeVar

from token_trie.errors import ArgumentError, BusyError
from token_trie.llama.evaluated import Evaluated
from token_trie.native.arguments import check_counts
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.ffi import check, check_pointer, ffi, lib, new_struct
from token_trie.native.gate import Gate
from token_trie.native.lease import Attachment
from token_trie.native.llama_facts import adapter_of, model_of

T = TypeVar("T")


_OWNED = "the stream is in the middle of several calls of another thread; use one StreamHandle a thread"


class NativeStream(Gate):
    """A stream of the C ABI.

    `call` lets in one thread at a time, and holds the others off until results are copied. `close` lets nothing new
    begin, cancels what is under way, waits until its results are copied too, and returns when all is freed, whoever
    else closes at the same time.
    """

    def __init__(self, pointer: Any, attached: Attachment | None = None) -> None:
        self.pointer = pointer
        self.lock = threading.Lock()
        self.entered = 0  # the thread that is inside a call
        self.owner = 0  # the thread that has it for several calls in a row
        self._n_owned = 0
        self._owning = threading.Lock()
        self._vocab: _core.Vocab | None = None
        state = new_struct("token_trie_stream_state")
        check(lib.token_trie_stream_get_state(pointer, state))
        self.n_ctx_max = int(state.n_context_max)
        # A Llama says whether it is verbose; a file's context is made again, with as many lines, when it grows.
        self.listen: Callable[[], AbstractContextManager[None]] = quiet if attached is None else nullcontext
        self._attached = attached
        super().__init__("stream", set() if attached is None else attached.streams)

    def call(
        self,
        function: Callable[..., int],
        *arguments: Any,
        before: Callable[[], None] | None = None,
        after: Callable[[], T] | None = None,
    ) -> T | None:
        """Call a function of the ABI, between `before` and `after`; return what the latter does.

        Raises
        ------
        BusyError
            Another call is under way.
        """
        thread = get_ident()
        with self.enter():
            self.entered = thread  # at once, as a signal's handler that closes comes behind any call
            try:
                self._require_open()
                if before is not None:
                    before()
                with self.listen():
                    status = function(self.pointer, *arguments)
                check(status)
                return None if after is None else after()
            finally:
                self.entered = 0

    def look(self, function: Callable[..., int], *arguments: Any) -> None:
        """Call a function of the ABI that only looks, and keeps nobody out meanwhile; BusyError as of `call`."""
        self.require_own_process()
        check(function(self.pointer, *arguments))

    def with_vocab(self, use: Callable[[_core.Vocab], T]) -> T:
        """Let work be done on the vocabulary, which stays for as long; BusyError as of `call`."""
        thread = get_ident()
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
        """Let nobody else in between the calls made meanwhile; BusyError where somebody is."""
        thread = acting_thread()
        is_owned = False
        try:
            with self._owning:
                if self.owner not in (0, thread):
                    raise BusyError(_OWNED)
                self.owner = thread
                self._n_owned += 1
                is_owned = True  # in one go with the count, as an interrupt comes behind calls alone
            yield
        finally:
            if is_owned:
                self._n_owned -= 1
                if self._n_owned == 0:
                    self.owner = 0

    def fork(self) -> NativeStream:
        """Make another that goes on from here, on the same context; BusyError as of `call`."""
        made: list[Any] = []

        def make(stream: Any) -> int:
            if self._attached is not None and self._attached.closed:
                raise ArgumentError("llm: this Llama is closed")  # by who closes each stream that there is
            made.append(lib.token_trie_stream_fork(stream))
            return 0 if made[0] != ffi.NULL else int(lib.token_trie_last_status())

        other = self.call(make, after=lambda: NativeStream(made[0], self._attached))
        assert other is not None
        return other

    def enter(self) -> threading.Lock:
        """Return the lock, unless it is taken, for a ``with``, which no interrupt can come in the middle of.

        Two that come within a microsecond may both get it, and one then waits for the other.
        """
        self._require_open()
        if self.owner and self.owner != acting_thread():
            raise BusyError(_OWNED)
        if self.lock.locked():
            self.require_own_process()
            raise BusyError("the stream is in a call already, of another thread or of its own callback")
        return self.lock

    def _require_open(self) -> None:
        if self.is_closing:
            raise ArgumentError("stream: closed")

    def cancel(self) -> None:
        """End the call under way, if there is one."""
        if not self.is_disowned:
            lib.token_trie_stream_cancel(self.pointer)

    def shut(self) -> None:
        """Cancel the call under way, wait for its end, free the stream."""
        while self.lock.locked():
            # Again and again: it might come before the call has begun.
            lib.token_trie_stream_cancel(self.pointer)
            time.sleep(0.001)
        with self.lock:
            try:
                # On a thread that no interrupt comes to, as it would be lost in what llama.cpp logs.
                interruptible(self._free, lambda: None)
            finally:
                self.entered = 0

    def _free(self) -> None:
        self.entered = get_ident()
        with quiet():
            lib.token_trie_stream_close(self.pointer)
        self.forget()

    def is_entered_here(self) -> bool:
        """Whether this very thread is inside a call."""
        return self.lock.locked() and self.entered == get_ident()

    def disown(self) -> bool:
        """Forget it unfreed: it belongs to the process that this one was forked from."""
        super().disown()
        self.entered = 0
        self.lock = threading.Lock()
        self.lock.acquire()
        return False


def interruptible(call: Callable[[], T], cancel: Callable[[], None]) -> T:
    """Make a long native call so that an interrupt from the keyboard, which only the main thread hears, ends it.

    A worker thread then makes it. When the interrupt goes on its way, the call has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    future: Future[T] = Future()
    try:
        threading.Thread(target=_work, args=(future, call, acting_thread()), daemon=True).start()
        while not future.done():
            # Only for so long: a signal that came just before the wait, or to another thread, ends none.
            with contextlib.suppress(FutureTimeoutError):
                future.exception(timeout=0.1)
        return future.result()
    except BaseException:
        while not (future.done() or future.cancel()):
            with contextlib.suppress(BaseException):  # one interrupt is as good as many
                # Again and again: it might come before the call has begun.
                cancel()
                wait([future], timeout=0.01)
        raise
    finally:
        del future  # which may hold an exception, and that this very frame


_acting = threading.local()


def acting_thread() -> int:
    """Return the thread that asks: of a worker of `interruptible`, the one it works for."""
    return getattr(_acting, "thread", 0) or get_ident()


def _work(future: Future[T], call: Callable[[], T], thread: int) -> None:
    _acting.thread = thread
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)


def open_on(llm: Llama, attached: Attachment, n_ctx: int | None, params: Any) -> NativeStream:
    """Open a stream on the weights of a Llama, with contexts like its own that grow up to its size."""

    def make() -> NativeStream:
        with attached.lease():
            pointer = make_on(lib.token_trie_stream_open_model, llm, attached, n_ctx, params)
            attached.make(Evaluated, lambda: Evaluated(llm))
            return NativeStream(pointer, attached)

    return _opened(make)


def make_on(make: Callable[..., Any], llm: Llama, attached: Attachment, n_ctx: int | None, params: Any) -> Any:
    """Let a function of the ABI make something on the weights of a Llama, by its context's params and adapter."""
    if attached.forked:
        raise ArgumentError(
            "llm: at work when this process was forked, and llama.cpp's threads are not in it; load the model here, or "
            'begin processes with multiprocessing\'s "spawn"'
        )
    vocab_of(llm)
    if llm.model_params.vocab_only:
        raise ArgumentError("llm: loaded with vocab_only=True, without weights to generate by")
    _be_quiet_with(llm)
    like = type(llm.context_params).from_buffer_copy(llm.context_params)
    if n_ctx is not None:
        check_counts(n_ctx=n_ctx)
        like.n_ctx = int(n_ctx)
    adapters = ffi.new("struct llama_adapter_lora *[1]")
    scales = ffi.new("float[1]")
    if adapter_of(llm) is not None:
        adapters[0] = _pointer_to("llama_adapter_lora", adapter_of(llm))
        scales[0] = llm.lora_scale
        params.adapters, params.adapter_scales, params.n_adapters = adapters, scales, 1
    model = _pointer_to("llama_model", model_of(llm).model)
    own = ffi.cast("struct llama_context_params *", ctypes.addressof(like))
    return check_pointer(make(model, own, params))


def _pointer_to(struct: str, pointer: Any) -> Any:
    return ffi.cast(f"struct {struct} *", ctypes.cast(pointer, ctypes.c_void_p).value)


def open_file(path: bytes, params: Any) -> NativeStream:
    """Open a stream on a GGUF file, which it has for itself."""

    def make() -> NativeStream:
        with quiet():
            return NativeStream(check_pointer(lib.token_trie_stream_open_file(path, params)))

    return _opened(make)


def _opened(make: Callable[[], NativeStream]) -> NativeStream:
    """Make a stream on a thread that no interrupt comes to, as it would be lost in what llama.cpp logs."""
    made: list[NativeStream] = []
    try:
        interruptible(lambda: made.append(make()), lambda: None)
    except BaseException:
        for stream in made:
            stream.close()
        raise
    return made[0]


# Of llama-cpp-python's logger: that takes llama.cpp's warnings for errors, as its levels are one off, and shows these
# where a Llama is not verbose; errors it never does.
_QUIET = logging.CRITICAL
_logger = logging.getLogger("llama-cpp-python")
_quiet_lock = threading.RLock()
_n_quiet = 0
_loud = logging.NOTSET


@contextmanager
def quiet() -> Iterator[None]:
    """Keep llama.cpp's thousands of lines about a model it loads off the terminal, as `Llama(verbose=False)` does."""
    global _n_quiet, _loud
    with _quiet_lock:
        if _n_quiet == 0:
            _loud = _logger.level
            _logger.setLevel(_QUIET)
        _n_quiet += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _n_quiet -= 1
            if _n_quiet == 0 and _logger.level == _QUIET:  # a Llama that was made meanwhile has set another
                _logger.setLevel(_loud)


def _be_quiet_with(llm: Llama) -> None:
    """Keep warnings about contexts that are made beside a Llama off the terminal, if it is not verbose, for good."""
    if not llm.verbose and _logger.level == logging.ERROR:
        _logger.setLevel(_QUIET)
