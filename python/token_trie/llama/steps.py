"""The steps of one native stream: for one reader at a time, and for nobody whose text was replaced."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from threading import get_ident
from typing import Any

from token_trie.errors import BusyError
from token_trie.llama.dropped import close_with
from token_trie.llama.interrupts import interruptible
from token_trie.llama.native_stream import NativeStream
from token_trie.llama.sampling import Sampling, native_sampling
from token_trie.llama.state import Step
from token_trie.native.ffi import c_strings, check, ffi, lib, new_struct


class Reader:
    """Who reads a generation: what is left of it, and which thread asked for the last step."""

    __slots__ = ("__weakref__", "is_replaced", "left", "n_cancels", "sampling", "thread")

    def __init__(self, max_tokens: int, sampling: Sampling, n_cancels: int) -> None:
        self.left = max_tokens
        self.sampling = sampling
        self.n_cancels = n_cancels  # of the stream, until then
        self.thread = 0
        self.is_replaced = False  # other text took the place of its own

    def require_kept(self) -> None:
        """Raise BusyError if other text took the place of its own."""
        if self.is_replaced:
            raise BusyError("this generation is over: other text took the place of its own")


class Steps:
    """Makes steps, and changes that a reader would notice.

    The native stream is closed when this is dropped.

    Parameters
    ----------
    native : NativeStream
    kept : object
        To be kept from being dropped for as long.
    defaults
        As of `native_sampling`.
    """

    def __init__(self, native: NativeStream, kept: object, defaults: dict[str, Any]) -> None:
        self.native = native
        self.kept = kept
        self.defaults = defaults
        self.sampling = Sampling()  # by which the native stream draws, but for its seed
        close_with(self, native)
        self.n_cancels = 0
        self.n_changes = 0  # of what a reader would get
        self.is_cancelled = False  # between two steps, when the native side has nothing to cancel
        self.is_behind = False  # much may have to be evaluated before the next step
        self._reader: Callable[[], Reader | None] = _none  # a weak reference to the one there is
        self._token = ffi.new("struct token_trie_token *")
        self._token.size = ffi.sizeof("struct token_trie_token")
        self._token_bytes = ffi.buffer(self._token)
        self._stop = ffi.new("int32_t *")

    def cancel(self) -> None:
        """End what is under way in another thread, and any generation begun, within one forward pass."""
        self.n_cancels += 1
        self.native.cancel()

    def cancel_of(self, thread: int) -> None:
        """Do as `cancel` does if it is this thread that is inside a call."""
        if self.native.entered == thread:
            self.cancel()

    def run(self, function: Callable[..., int], *arguments: Any) -> None:
        """Make a long call of the ABI that changes nothing; an interrupt from the keyboard ends it."""
        interruptible(lambda: self.native.call(function, *arguments), self.native.cancel)

    def change(
        self,
        function: Callable[..., int],
        *arguments: Any,
        after: Callable[[], None] | None = None,
        thread: int = 0,
    ) -> None:
        """Make a call of the ABI that changes what a reader would get; BusyError where one of another thread reads."""
        thread = thread or get_ident()

        def changed() -> None:
            self.n_changes += 1
            if after is not None:
                after()

        self.native.call(function, *arguments, before=lambda: self.check_reader(thread), after=changed)

    def check_reader(self, thread: int) -> None:
        """Raise BusyError where another thread than this reads."""
        reader = self._reader()
        if reader is not None and reader.thread != thread:
            raise BusyError("a generation that another thread reads is under way; use one StreamHandle a thread")

    def replace(self) -> None:
        """End the reader, whose text is another now."""
        reader = self._reader()
        if reader is not None:
            reader.is_replaced = True
            self.dismiss(reader)

    def dismiss(self, reader: Reader) -> None:
        """End a reader, so that there may be another."""
        reader.left = 0
        if self._reader() is reader:
            self._reader = _none

    def set_seed(self, seed: int | None) -> None:
        """Begin draws anew from a seed; None for others each time."""
        sampling = replace(self.sampling, seed=seed)
        self.change(lib.token_trie_stream_set_sampling, native_sampling(sampling, draws=False, **self.defaults))

    def _draw_by(self, stream: Any, sampling: Sampling) -> int:
        """Set how tokens are drawn, without a seed, inside a call; the draws go on. Return the status."""
        if sampling == self.sampling:
            return 0
        native = native_sampling(sampling, draws=False, continues=True, **self.defaults)
        status = int(lib.token_trie_stream_set_sampling(stream, native))
        if status == 0:
            self.sampling = sampling
        return status

    def reader(self, max_tokens: int, sampling: Sampling) -> Reader:
        """Return a reader, for `step`."""
        return Reader(max_tokens, sampling, self.n_cancels)

    def step(self, reader: Reader, asking: int, entering: int = 0) -> Step | None:
        """Make a step, which a thread asks for, maybe of another; None: it is over.

        As `NativeStream.call`, but with less on the way: a call costs as much as a third of a step.
        """
        native = self.native
        lock = native.lock
        if lock.locked() or native.owner:
            native.enter()
        try:
            with lock:
                if native.is_closing:
                    native.enter()
                native.entered = entering or get_ident()
                try:
                    if self._reader() is not reader:
                        if reader.left <= 0:  # another thread took the last step since this one looked
                            reader.require_kept()
                            return None
                        self._admit(reader)
                        check(self._draw_by(native.pointer, reader.sampling))
                    if reader.n_cancels != self.n_cancels:
                        raise _CancelledBetweenSteps
                    reader.thread = asking
                    token, stop = self._token, self._stop
                    if native.listen is nullcontext:
                        status = _next(native.pointer, token, stop)
                    else:
                        with native.listen():
                            status = _next(native.pointer, token, stop)
                    if status < 0:
                        check(status)
                    if stop[0] == _GOES_ON and reader.left > 1:
                        reader.left -= 1
                    else:
                        reader.left = 0
                        self._reader = _none
                    _, token_id, forced, logprob, n_bytes = _fields_of(self._token_bytes)
                    if token_id < 0:
                        return None
                    text = _unpack(token.text, n_bytes).decode()
                    return _new(Step, (token_id, text, logprob, forced == 1))
                finally:
                    native.entered = 0
        except _CancelledBetweenSteps:
            self.is_cancelled = True
        except BusyError:
            raise
        except Exception:
            self.dismiss(reader)
            raise
        self.dismiss(reader)
        return None

    def _admit(self, reader: Reader) -> None:
        if self._reader() is not None:
            raise BusyError(
                "another generation of this handle is under way; read it to its end, or close() it, and use one "
                "StreamHandle a thread"
            )
        self.is_cancelled = False
        self.n_changes += 1
        self._reader = weakref.ref(reader)

    def run_span(
        self,
        sampling: Sampling,
        max_tokens: int = 2**31 - 1,
        is_over: Callable[[Any], bool] | None = None,
    ) -> list[int]:
        """Generate to the end of the span, or until it is over by `raw_state`, in one entry; return its tokens."""
        tokens: list[int] = []
        token, stop = self._token, self._stop
        n_cancels = self.n_cancels
        state = None if is_over is None else new_struct("token_trie_stream_state")

        def run(stream: Any) -> int:
            self.is_cancelled = False
            self.n_changes += 1
            stop[0] = _GOES_ON
            status = self._draw_by(stream, sampling)
            if status < 0:
                return status
            while stop[0] == _GOES_ON and len(tokens) < max_tokens:
                if n_cancels != self.n_cancels:
                    self.is_cancelled = True
                    return 0
                status = int(_next(stream, token, stop))
                if status < 0:
                    return status
                if token.id >= 0:
                    tokens.append(token.id)
                if is_over is not None:
                    lib.token_trie_stream_get_state(stream, state)
                    if is_over(state):
                        return 0
            return 0

        self.change(run, after=self.replace)
        return tokens

    def decode(self, function: Callable[..., int], *arguments: Any, is_short: bool) -> None:
        """Make a call of the ABI that writes into the sequence; an interrupt from the keyboard ends one not short."""
        thread = get_ident()

        def call() -> None:
            self.change(function, *arguments, after=self.replace, thread=thread)

        if is_short and not self.is_behind:
            call()
            return
        interruptible(call, self.native.cancel)
        self.is_behind = False

    def generate_until(self, stops: Sequence[str], max_tokens: int, sampling: Sampling) -> int | None:
        """Generate in one entry until a text stands there, which is taken out again; return which of them, if any.

        Of a span that a text comes before, only that is generated; the stream's state then says "complete".
        """
        n_cancels = self.n_cancels
        strings, which = c_strings([text.encode() for text in stops]), ffi.new("int32_t *", -1)
        raised: list[BaseException] = []
        go_on = ffi.callback("token_trie_on_token", _go_on, onerror=lambda _type, error, _trace: raised.append(error))

        def run(stream: Any) -> int:
            self.replace()  # also where it fails midway
            self.is_cancelled = n_cancels != self.n_cancels
            if self.is_cancelled:
                return 0
            text = len(stops), go_on, ffi.NULL, which
            status = self._draw_by(stream, sampling)
            return status or int(lib.token_trie_stream_generate_until(stream, max_tokens, strings, *text))

        self.decode(run, is_short=True)  # between two tokens, its callback lets an interrupt in
        if raised:
            raise raised[0]
        return None if which[0] < 0 else int(which[0])


def _go_on(_token: Any, _user: Any) -> bool:
    """Let an interrupt from the keyboard be raised between two tokens."""
    return True


def _none() -> None:
    """Stand in for a weak reference, where there is nothing to refer to."""


_fields_of = struct.Struct("NiifN").unpack_from  # all of a struct token_trie_token before its text, in one look
_next = lib.token_trie_stream_next
_unpack = ffi.unpack
_new = tuple.__new__
_GOES_ON = lib.TOKEN_TRIE_STOP_MAX_TOKENS


class _CancelledBetweenSteps(Exception):  # noqa: N818
    """Where the native side has nothing to cancel."""
