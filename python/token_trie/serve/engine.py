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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from token_trie.asynchronous import in_worker
from token_trie.errors import CancelledError, InternalError, TokenTrieError
from token_trie.llama.batch import ENDED, Batch, can_share, cancel, chooser
from token_trie.llama.contexts import require_decoder
from token_trie.llama.drivers import BatchDriver, Run, StreamDriver
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.lifetime import attachment
from token_trie.native.threads import release_threads
from token_trie.plan import A, Model, PlanOf

T = TypeVar("T")
R = TypeVar("R")

_N_WORKERS = 4
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
        require_decoder(llm)
        self.llm = llm
        self.is_reproducible = reproducible
        # On a device, a row then does not pay for the cells of other requests. On a processor it slows down few rows.
        given = llm.context_params.flash_attn_type
        if llm.model_params.n_gpu_layers:
            llm.context_params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
        self._batch = Batch(llm, n_parallel, n_chunk=CHUNK_ROWS) if can_share(llm) and not reproducible else None
        llm.context_params.flash_attn_type = given
        self._driver = None if self._batch is None else BatchDriver(self._batch, attachment(llm).known)
        large, short = ThreadPoolExecutor(1, "token-trie large"), ThreadPoolExecutor(_N_WORKERS, "token-trie serve")
        self._workers = {True: large, False: short}  # by whether a call is large
        self._turn = asyncio.Lock()  # guards the Llama's own stream
        self._woken: dict[Run[Any], Callable[[], object]] = {}  # called when a plan can go on
        self._read: dict[int, _TextReader] = {}  # streamed texts, by ticket
        self._lock = threading.Lock()  # guards the texts, and whether there is work, against the dispatcher
        self._is_work = threading.Event()
        self._is_closed = False
        release_threads()  # because from here on the dispatcher evaluates
        self._dispatcher = threading.Thread(target=self._dispatch, name="token-trie batch", daemon=True)
        if self._batch is not None:
            self._dispatcher.start()

    @property
    def n_ctx(self) -> int:
        """Tokens of the context that all requests share."""
        return self._batch.n_ctx if self._batch is not None else int(self.llm.n_ctx())

    @property
    def n_prompt_max(self) -> int:
        """Tokens that a prompt and its answer can have together: a batch keeps an eighth for short prompts."""
        return self.n_ctx - (self.n_ctx // 8 if self._batch is not None else 0)

    async def read(
        self,
        about: A,
        plan: PlanOf[A, R],
        on_tokens: OnTokens | None = None,
        *,
        reproducible: bool = False,
        is_large: bool = False,
    ) -> Outcome[R]:
        """Run a plan; its code runs on workers, a large one's after the others'. Cancelling ends it within a pass.

        `on_tokens` gets the tokens of a free text as it is generated, except the last, which only the answer has.
        Errors are those of the plan; CancelledError if the engine was closed.
        """
        driver = self._driver
        if driver is None or reproducible:
            async with self._turn:
                call = lambda: self._run(about, plan, reproducible)  # noqa: E731
                return await in_worker(call, lambda thread: cancel(self.llm, thread))
        loop, is_ready = asyncio.get_running_loop(), asyncio.Event()
        run = await self.on_worker(lambda: Run(plan(Model.of(self.llm, self.n_ctx), about)), is_large=is_large)
        self._woken[run] = lambda: loop.call_soon_threadsafe(is_ready.set)
        try:
            while not await self._advance(driver, run, on_tokens, is_large):
                while not run.can_go_on:
                    await is_ready.wait()
                    is_ready.clear()
            return Outcome.of(run)
        finally:
            self._woken.pop(run, None)
            self._leave(driver, run)

    async def _advance(self, driver: BatchDriver, run: Run[Any], on_tokens: OnTokens | None, is_large: bool) -> bool:
        """Let a worker run the code of a plan and submit its steps; return whether it is over."""
        loop = asyncio.get_running_loop()
        advancing = loop.run_in_executor(self._workers[is_large], driver.advance, run)
        try:
            is_over = await asyncio.shield(advancing)
        except asyncio.CancelledError:
            advancing.add_done_callback(lambda done: done.cancelled() or done.exception())  # else it is logged
            advancing.add_done_callback(lambda _: self._leave(driver, run))
            raise
        with self._lock:
            if self._is_closed:
                raise CancelledError(ENDED)
            for ticket, step in driver.tickets(run).items():
                if on_tokens is not None and step.query.mode == "text" and step.query.until is None:
                    self._read[ticket] = _TextReader(loop, on_tokens)  # no part of a record
            self._is_work.set()
        return is_over

    def _leave(self, driver: BatchDriver, run: Run[Any]) -> None:
        """Withdraw what a plan still waits for, which may have been submitted without waking the dispatcher."""
        driver.leave(run)
        with self._lock:
            if not driver.is_idle:
                self._is_work.set()

    async def on_worker(self, call: Callable[[], T], *, is_large: bool = False) -> T:
        """Make a short call on a worker thread; a large one after the others, so that short calls find a worker."""
        return await asyncio.get_running_loop().run_in_executor(self._workers[is_large], call)

    def close(self) -> None:
        """Cancel all requests and free the model."""
        self._is_closed = True
        self._is_work.set()
        if self._batch is not None:
            self._batch.close()
            self._dispatcher.join()
        for executor in self._workers.values():
            executor.shutdown(wait=True, cancel_futures=True)
        self.llm.close()

    def _run(self, about: A, plan: PlanOf[A, R], reproducible: bool) -> Outcome[R]:
        run = Run(plan(Model.of(self.llm), about))
        with chooser(self.llm) as stream:
            StreamDriver(stream, from_empty=reproducible or self.is_reproducible).finish(run)
        return Outcome.of(run)

    def _dispatch(self) -> None:
        batch, driver = self._batch, self._driver
        assert batch is not None
        assert driver is not None
        while not self._is_closed:
            self._is_work.wait()
            try:
                answer = batch.next(_PASS_MS if self._read else _WAIT_MS)
                with self._lock:
                    ready = []
                    if answer is not None:
                        self._read.pop(answer.ticket, None)
                        ready = driver.take(answer)
                    for ticket, reader in self._read.items():
                        reader.send(batch.text(ticket, reader.n_sent))
                    if driver.is_idle:
                        self._is_work.clear()
            except TokenTrieError as error:
                if self._is_closed:
                    break
                ready = self._fail_all(driver, error)
            except Exception as error:  # a defect: callers must not wait forever
                ready = self._fail_all(driver, InternalError(repr(error)))
            self._wake(ready)
        self._wake(self._fail_all(driver, CancelledError(ENDED)))

    def _fail_all(self, driver: BatchDriver, error: TokenTrieError) -> list[Run[Any]]:
        with self._lock:
            self._read.clear()
            self._is_work.clear()
            return driver.fail_all(error)

    def _wake(self, runs: list[Run[Any]]) -> None:
        for run in runs:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._woken.get(run, lambda: None)()


class Outcome(NamedTuple, Generic[R]):
    """The result of a plan."""

    result: R
    tokens: list[int]
    """Tokens of its first prompt."""
    n_cached: int
    """Number of these from the prefix cache."""

    @classmethod
    def of(cls, run: Run[R]) -> Outcome[R]:
        """Return that of a plan that is over."""
        if run.first is None:
            return cls(run.result, [], 0)
        step, answer = run.first
        return cls(run.result, step.tokens, int(answer.figures.n_shared))


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
