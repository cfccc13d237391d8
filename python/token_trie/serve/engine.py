"""Answers the requests of all clients, in one batch.

    event loop           workers                       dispatcher
    run() ----------->   read, bind, submit  ------>   waits for answers of the batch, and makes its passes
      ^                                                   |
      '---------------- read an answer <------------------'

What needs a stream of its own is done by one worker at a time, on the Llama's.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from token_trie.decisions.run import Batched, Request, begin, run
from token_trie.errors import CancelledError, InternalError, TokenTrieError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.batch import ENDED, Batch, can_share, cancel
from token_trie.llama.own_stream import chooser
from token_trie.llama.query import Answer
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.lifetime import lease
from token_trie.serve.calibrations import Calibrations
from token_trie.sets.prompt import Prompt

R = TypeVar("R")
T = TypeVar("T")

_NONE = Calibrations()
_N_WORKERS = 4
_N_REMEMBERED = 4096
# Rows of long prompts that a pass has while short ones come: few enough for these not to wait long.
_N_CHUNK = 64
# So long the dispatcher makes passes in one go: one, where somebody reads a text as it is written.
_WAIT_MS, _PASS_MS = 20, 1

OnTokens: TypeAlias = Callable[[list[int]], object]


class Engine:
    """A Llama and its batch; all methods are for the event loop's thread, but for `close`, which is for any other.

    Parameters
    ----------
    llm : Llama
        The model, which is the engine's from here on.
    n_ctx, n_parallel
        As of `Batch`.
    calibrations : Calibrations
        Of questions that may come.
    reproducible : bool
        Whether requests are answered one at a time, from an empty sequence, so that llama.cpp rounds each in the same
        way whatever else is asked.

    Raises
    ------
    CalibrationError
        One of these is another model's.
    """

    def __init__(
        self,
        llm: Llama,
        n_ctx: int | None = None,
        n_parallel: int = 0,
        calibrations: Calibrations = _NONE,
        *,
        reproducible: bool = False,
    ) -> None:
        calibrations.load(llm)
        self.llm = llm
        self.calibrations = calibrations
        self.is_reproducible = reproducible
        # In the batch a row does not pay for the cells of other requests then; what is reproducible goes without.
        given, llm.context_params.flash_attn_type = (
            llm.context_params.flash_attn_type,
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
        )
        self._batch = Batch(llm, n_parallel, n_ctx, _N_CHUNK) if can_share(llm) and not reproducible else None
        llm.context_params.flash_attn_type = given
        self._workers = ThreadPoolExecutor(_N_WORKERS, "token-trie serve")
        self._turn = asyncio.Lock()  # of the Llama's own stream
        self._remembered: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._submitting = threading.Lock()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Answer]]] = {}
        self._early: dict[int, Answer] = {}  # that were there before their ticket was known here
        self._read: dict[int, _Reader] = {}  # of texts under way, by ticket
        self._is_work = threading.Event()
        self._is_closed = False
        self._dispatcher = threading.Thread(target=self._dispatch, name="token-trie batch", daemon=True)
        if self._batch is not None:
            self._dispatcher.start()

    @property
    def n_ctx(self) -> int:
        """Tokens that all requests under way may take together."""
        return self._batch.n_ctx if self._batch is not None else int(self.llm.n_ctx())

    @property
    def n_waiting(self) -> int:
        """Prompts that are under way in the batch."""
        return len(self._waiting)

    async def run(self, prompt: Prompt, request: Request[R]) -> R:
        """Answer a request behind a prompt; a task that is cancelled ends it within a pass.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError
            They fit neither each other nor the model.
        CancelledError
            The engine was closed.
        """
        return await self.read(lambda: (prompt, request))

    async def read(self, made: Callable[[], tuple[Prompt, Request[R]]]) -> R:
        """Answer what is read on a worker; see `run`."""
        return (await self.read_told(made))[0]

    async def read_told(
        self, made: Callable[[], tuple[Prompt, Request[R]]], on_tokens: OnTokens | None = None
    ) -> tuple[R, int]:
        """Do as `read` does; return besides how many tokens of the prompt had been evaluated for another.

        on_tokens is given the tokens of a text, as it is written; the last ones stand in the answer alone.
        """
        batch = self._batch
        if batch is None:
            return await self.alone(lambda: run(self.llm, *made())), 0
        batched = await self.on_worker(partial(self._begin, batch, made))
        n_cached = -1
        while True:
            answer = await self._answer(batch, batched, on_tokens)
            if answer.error is not None:
                raise answer.error
            if n_cached < 0:
                n_cached = int(answer.figures.n_shared)
            told = await self.on_worker(partial(batched.read, answer))
            if not isinstance(told, Batched):
                return told, n_cached
            batched = told

    async def alone(self, call: Callable[[], T]) -> T:
        """Make a call that works on the Llama's own stream, one at a time; a task that is cancelled ends it."""
        async with self._turn:
            return await in_worker(partial(self._afresh, call), lambda thread: cancel(self.llm, thread))

    def _afresh(self, call: Callable[[], T]) -> T:
        if self.is_reproducible:
            with chooser(self.llm) as stream:
                stream.splice(0, [])
        return call()

    async def on_worker(self, call: Callable[[], T]) -> T:
        """Make a short call on a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, call)

    async def remembered(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return what was made by a key, or make it, once for all who ask at the same time."""
        kept = self._remembered.get(key)
        if kept is None:
            kept = self._remembered[key] = _Kept(asyncio.ensure_future(make()))
            kept.task.add_done_callback(partial(self._forget_failed, key, kept))
            while len(self._remembered) > _N_REMEMBERED:
                self._remembered.popitem(last=False)
        else:
            self._remembered.move_to_end(key)
        kept.n_waiting += 1
        try:
            made: T = await asyncio.shield(kept.task)
            return made
        finally:
            kept.n_waiting -= 1
            if not (kept.n_waiting or kept.task.done()):  # all have left
                self._forget(key, kept)
                kept.task.cancel()

    def _forget_failed(self, key: Hashable, kept: _Kept, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._forget(key, kept)

    def _forget(self, key: Hashable, kept: _Kept) -> None:
        if self._remembered.get(key) is kept:
            del self._remembered[key]

    def close(self) -> None:
        """End what is under way, and free the model."""
        self._is_closed = True
        self._is_work.set()
        if self._batch is not None:
            self._batch.close()
            self._dispatcher.join()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self.llm.close()

    def _begin(self, batch: Batch, made: Callable[[], tuple[Prompt, Request[R]]]) -> Batched[R]:
        with lease(self.llm):
            return begin(self.llm, *made(), batch.n_ctx)

    async def _answer(self, batch: Batch, batched: Batched[Any], on_tokens: OnTokens | None = None) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def submit() -> int:
            if future.done():
                return 0
            ticket = batched.submit(batch)  # which may take long: a large set, a grammar
            with self._submitting:
                if self._is_closed:  # and those who wait have been told
                    raise CancelledError(ENDED)
                self._waiting[ticket] = loop, future
                if (early := self._early.pop(ticket, None)) is not None:
                    self._resolve(early)
                elif on_tokens is not None:
                    self._read[ticket] = _Reader(loop, on_tokens)
            self._is_work.set()
            return ticket

        submitted = loop.run_in_executor(self._workers, submit)
        try:
            await asyncio.shield(submitted)
            return await future
        except asyncio.CancelledError:
            future.cancel()
            submitted.add_done_callback(partial(_withdraw, batch))
            raise

    def _dispatch(self) -> None:
        batch = self._batch
        assert batch is not None
        while not self._is_closed:
            self._is_work.wait()
            try:
                answer = batch.next(_PASS_MS if self._read else _WAIT_MS)
                with self._submitting:
                    if answer is not None:
                        self._resolve(answer)
                    for ticket, reader in self._read.items():
                        reader.tell(batch.text(ticket, reader.n_told))
                    if not self._waiting:
                        self._is_work.clear()
            except TokenTrieError as error:
                if self._is_closed:
                    break
                self._fail_all(error)
            except Exception as error:  # a defect, which is not to leave everybody waiting
                self._fail_all(InternalError(repr(error)))
        self._fail_all(CancelledError(ENDED))

    def _resolve(self, answer: Answer) -> None:
        if answer.ticket not in self._waiting:
            self._early[answer.ticket] = answer
            return
        loop, future = self._waiting.pop(answer.ticket)
        self._read.pop(answer.ticket, None)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_set, future, answer)

    def _fail_all(self, error: TokenTrieError) -> None:
        with self._submitting:
            for loop, future in self._waiting.values():
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(_fail, future, error)
            self._waiting.clear()
            self._read.clear()
            self._is_work.clear()


@dataclass
class _Reader:
    """Who reads a text as it is written."""

    loop: asyncio.AbstractEventLoop
    on_tokens: OnTokens
    n_told: int = 0

    def tell(self, tokens: list[int]) -> None:
        """Pass tokens on."""
        self.n_told += len(tokens)
        if tokens:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self.on_tokens, tokens)


@dataclass(eq=False)
class _Kept:
    """What is remembered, or being made."""

    task: asyncio.Task[Any]
    n_waiting: int = 0


def _set(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def _fail(future: asyncio.Future[Answer], error: TokenTrieError) -> None:
    if not future.done():
        future.set_exception(error)


def _withdraw(batch: Batch, submitted: asyncio.Future[int]) -> None:
    if not submitted.cancelled() and submitted.exception() is None and submitted.result():
        batch.withdraw(submitted.result())
