"""Decisions under asyncio, on worker threads: a task that is cancelled continues when its call has ended."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any, ParamSpec, TypeVar

from token_trie.decisions.choose import choose, score
from token_trie.decisions.lists import choose_list
from token_trie.decisions.many import choose_many
from token_trie.llama.batch import cancel
from token_trie.native.threads import and_release_threads, release_threads
from token_trie.plan import run, run_many
from token_trie.questions.decide import decide, decide_many
from token_trie.records.fill import fill, fill_many
from token_trie.records.tools import choose_tool, choose_tool_many
from token_trie.show.explain import explain

P = ParamSpec("P")
T = TypeVar("T")

# As many as a batch has sequences; asyncio's own pool is limited by the number of processors.
_N_WORKERS = 64
_workers = ThreadPoolExecutor(_N_WORKERS, "token-trie")


def _form_of(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make the async form of a function whose first argument is a Llama."""

    async def call(*arguments: P.args, **options: P.kwargs) -> T:
        llm: Any = arguments[0] if arguments else next(iter(options.values()))
        return await in_worker(lambda: function(*arguments, **options), lambda thread: cancel(llm, thread))

    return _named_after(function, call)


def _iterator_of(function: Callable[P, Iterator[T]]) -> Callable[P, AsyncGenerator[T, None]]:
    """Make the async form of a function that returns `Results`; work begins when the first is requested."""

    async def call(*arguments: P.args, **options: P.kwargs) -> AsyncGenerator[T, None]:
        results: Any = function(*arguments, **options)
        nothing: Any = object()

        def following() -> T:
            result: T = next(results, nothing)
            return result

        try:
            while (result := await in_worker(following, lambda _: results.interrupt())) is not nothing:
                yield result
        finally:
            results.close()

    return _named_after(function, call)


def _named_after(function: Callable[..., Any], form: Callable[P, T]) -> Callable[P, T]:
    name = function.__name__
    form.__name__, form.__module__ = f"a{name}", function.__module__
    form.__qualname__ = function.__qualname__.removesuffix(name) + f"a{name}"
    form.__doc__ = f"Do as `{name}` does, on a worker thread; a task that is cancelled ends it, within a pass."
    form.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return form


async def in_worker(call: Callable[[], T], cancel: Callable[[int], bool | None]) -> T:
    """Make a call on a worker thread. If the task is cancelled, the call has ended, or never begins.

    `cancel` is called with the worker thread, repeatedly, until the call has ended; it ends the native work of this
    thread only. If it returns True, the rest of the call is not waited for.
    """
    worker = [0]
    turn = [True]  # taken by the worker when it begins, or by the task when it is cancelled first

    def work() -> Any:
        worker[0] = get_ident()
        return and_release_threads(call) if _take(turn) else None

    release_threads()  # before the worker starts its own
    future = asyncio.get_running_loop().run_in_executor(_workers, work)
    try:
        result: T = await asyncio.shield(future)
    except asyncio.CancelledError:
        is_left = False
        while not (is_left or future.done() or _take(turn)):
            # Repeatedly, because the native call may not have begun yet, and a task may be cancelled twice.
            is_left = bool(cancel(worker[0]))
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future], timeout=0.01)
        if future.done():
            future.exception()
        raise
    return result


def _take(turn: list[bool]) -> bool:
    try:
        return turn.pop()
    except IndexError:
        return False


def _start_anew() -> None:
    global _workers
    _workers = ThreadPoolExecutor(_N_WORKERS, "token-trie")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


achoose = _form_of(choose)
achoose_list = _form_of(choose_list)
achoose_many = _iterator_of(choose_many)
achoose_tool = _form_of(choose_tool)
achoose_tool_many = _iterator_of(choose_tool_many)
adecide = _form_of(decide)
adecide_many = _iterator_of(decide_many)
aexplain = _form_of(explain)
afill = _form_of(fill)
afill_many = _iterator_of(fill_many)
arun = _form_of(run)
arun_many = _iterator_of(run_many)
ascore = _form_of(score)
