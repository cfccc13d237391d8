"""Answers the requests of all clients in one batch.

    event loop           workers                       dispatcher
    read() ---------->   read, bind, submit  ------>   waits for answers of the batch, and makes its passes
      ^                                                   |
      '---------------- read an answer <------------------'

Calls that need the Llama's own stream run on one worker at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from token_trie.asynchronous import in_worker
from token_trie.decisions.run import Request, Running, begin, drive
from token_trie.errors import CancelledError, InternalError, TokenTrieError
from token_trie.llama.batch import ENDED, Batch, can_share, cancel, chooser
from token_trie.llama.query import Answer
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.threads import release_threads
from token_trie.sets.prompt import Prompt

T = TypeVar("T")

R = TypeVar("R")

_N_WORKERS = 4
_MAX_CACHED = 4096
# Rows of long prompts in a pass while short ones arrive: few, so that these need not wait long.
CHUNK_ROWS = 64
# Time of one call for passes; short (one pass) while a client streams a text.
_WAIT_MS, _PASS_MS = 20, 1

OnTokens: TypeAlias = Callable[[list[int]], object]


class Engine:
    """A Llama, which it owns, and its batch.

    All methods are for the event loop's thread, except `close`, which is for any other. With `reproducible`, requests
    are answered one at a time from an empty sequence, so that rounding in llama.cpp does not depend on other requests.
    """

    def __init__(
        self,
        llm: Llama,
        n_parallel: int = 0,
        *,
        reproducible: bool = False,
    ) -> None:
        self.llm = llm
        self.is_reproducible = reproducible
        # On a device, a row then does not pay for the cells of other requests. On a processor it slows down few rows.
        given = llm.context_params.flash_attn_type
        if llm.model_params.n_gpu_layers:
            llm.context_params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
        self._batch = Batch(llm, n_parallel, n_chunk=CHUNK_ROWS) if can_share(llm) and not reproducible else None
        llm.context_params.flash_attn_type = given
        self._workers = ThreadPoolExecutor(_N_WORKERS, "token-trie serve")
        self._turn = asyncio.Lock()  # guards the Llama's own stream
        self._cached: OrderedDict[Hashable, asyncio.Future[Any]] = OrderedDict()
        self._submitting = threading.Lock()
        self._waiting: dict[int, Future[Answer | None]] = {}
        self._early: dict[int, Answer] = {}  # answers that arrived before their ticket was known
        self._read: dict[int, _TextReader] = {}  # streamed texts, by ticket
        self._is_work = threading.Event()
        self._is_closed = False
        release_threads()  # the dispatcher evaluates from here on, not this thread
        self._dispatcher = threading.Thread(target=self._dispatch, name="token-trie batch", daemon=True)
        if self._batch is not None:
            self._dispatcher.start()

    @property
    def n_ctx(self) -> int:
        """Tokens of the context that all requests share."""
        return self._batch.n_ctx if self._batch is not None else int(self.llm.n_ctx())

    async def read(
        self, made: Callable[[], tuple[Prompt, Request[R]]], on_tokens: OnTokens | None = None
    ) -> Outcome[R]:
        """Make a prompt and a request on a worker and answer them; cancelling the task ends it within a pass.

        `on_tokens` gets the tokens of a free text as it is generated, except the last, which only the answer has.
        ArgumentError, VocabularyError or ContextError if they do not fit each other or the model; CancelledError if the
        engine was closed.
        """
        batch = self._batch
        if batch is None:
            return await self.alone(lambda: self._run(*made()))
        running = await self.on_worker(lambda: begin(self.llm, *made(), self.n_ctx))
        tokens, n_cached = _tokens_of(running), None
        while (answer := await self._answer(batch, running, on_tokens)) is not None:
            n_cached = int(answer.figures.n_shared) if n_cached is None else n_cached
            await self.on_worker(partial(running.read, answer.found))
        return Outcome(running.result, tokens, n_cached or 0)

    async def alone(self, call: Callable[[], T]) -> T:
        """Make a call that uses the Llama's own stream, one at a time; cancelling the task ends it."""
        async with self._turn:
            return await in_worker(partial(self._from_empty, call), lambda thread: cancel(self.llm, thread))

    def _from_empty(self, call: Callable[[], T]) -> T:
        if self.is_reproducible:
            with chooser(self.llm) as stream:
                stream.splice(0, [])
        return call()

    async def on_worker(self, call: Callable[[], T]) -> T:
        """Make a short call on a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, call)

    async def cached(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the cached value of a key, or make it, once for all concurrent callers."""
        made = self._cached.get(key)
        if made is None or (made.done() and (made.cancelled() or made.exception() is not None)):
            made = self._cached[key] = asyncio.ensure_future(make())
            while len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        self._cached.move_to_end(key)
        found: T = await asyncio.shield(made)  # others may wait for it, if this task is cancelled
        return found

    def close(self) -> None:
        """Cancel all requests and free the model."""
        self._is_closed = True
        self._is_work.set()
        if self._batch is not None:
            self._batch.close()
            self._dispatcher.join()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self.llm.close()

    def _run(self, prompt: Prompt, request: Request[R]) -> Outcome[R]:
        running = begin(self.llm, prompt, request, self.n_ctx)
        tokens = _tokens_of(running)
        with chooser(self.llm) as stream:
            return Outcome(drive(running, stream), tokens, 0)

    async def _answer(self, batch: Batch, running: Running[Any], on_tokens: OnTokens | None = None) -> Answer | None:
        loop = asyncio.get_running_loop()
        future: Future[Answer | None] = Future()
        query = None if running.step is None else running.step.query
        if query is None or query.mode != "text" or query.until is not None:  # no text, or a part of a record
            on_tokens = None

        def submit() -> int:
            if future.cancelled():
                return 0
            ticket = running.submit(batch)  # slow for a large set
            if not ticket:
                _settle(future, None)
                return 0
            with self._submitting:
                if self._is_closed:  # waiting callers already have this error
                    raise CancelledError(ENDED)
                self._waiting[ticket] = future
                if (early := self._early.pop(ticket, None)) is not None:
                    self._resolve(early)
                elif on_tokens is not None:
                    self._read[ticket] = _TextReader(loop, on_tokens)
            self._is_work.set()
            return ticket

        submitted = loop.run_in_executor(self._workers, submit)
        try:
            await asyncio.shield(submitted)
            return await asyncio.wrap_future(future)
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
                        reader.send(batch.text(ticket, reader.n_sent))
                    if not self._waiting:
                        self._is_work.clear()
            except TokenTrieError as error:
                if self._is_closed:
                    break
                self._fail_all(error)
            except Exception as error:  # a defect: callers must not wait forever
                self._fail_all(InternalError(repr(error)))
        self._fail_all(CancelledError(ENDED))

    def _resolve(self, answer: Answer) -> None:
        if answer.ticket not in self._waiting:
            self._early[answer.ticket] = answer
            return
        self._read.pop(answer.ticket, None)
        _settle(self._waiting.pop(answer.ticket), answer)

    def _fail_all(self, error: TokenTrieError) -> None:
        with self._submitting:
            for future in self._waiting.values():
                _settle(future, error)
            self._waiting.clear()
            self._read.clear()
            self._is_work.clear()


class Outcome(NamedTuple, Generic[R]):
    """The result of a request."""

    result: R
    tokens: list[int]
    """Tokens of the prompt that its answer follows."""
    n_cached: int
    """Number of these from the prefix cache."""


def _tokens_of(running: Running[Any]) -> list[int]:
    return [] if running.step is None else running.step.tokens


@dataclass
class _TextReader:
    """Reader of a streamed text."""

    loop: asyncio.AbstractEventLoop
    on_tokens: OnTokens
    n_sent: int = 0

    def send(self, tokens: list[int]) -> None:
        """Pass tokens on."""
        self.n_sent += len(tokens)
        if tokens:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self.on_tokens, tokens)


def _settle(future: Future[Answer | None], found: Answer | TokenTrieError | None) -> None:
    """Give a waiting caller the answer or error, unless it has left."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(found, TokenTrieError):
        future.set_exception(found)
    else:
        future.set_result(found)


def _withdraw(batch: Batch, submitted: asyncio.Future[int]) -> None:
    if not submitted.cancelled() and submitted.exception() is None and submitted.result():
        batch.withdraw(submitted.result())
