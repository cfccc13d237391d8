"""Long native calls under asyncio: a worker thread makes them, and a task that is cancelled ends its call."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# As many as a batch has sequences; asyncio's own workers are as few as there are processors.
_N_WORKERS = 64
_workers = ThreadPoolExecutor(_N_WORKERS, "token-trie")


def asynchronous(function: Callable[P, T], cancel: Callable[[Any, int], Any]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make the async form of a function or method, whose name begins with a.

    Parameters
    ----------
    function : callable
        What a worker thread does.
    cancel : callable
        Given the function's first argument and a thread, ends what that is doing there; see `in_worker`.
    """

    async def call(*arguments: P.args, **options: P.kwargs) -> T:
        return await in_worker(lambda: function(*arguments, **options), lambda thread: cancel(arguments[0], thread))

    name = function.__name__
    call.__name__, call.__module__ = f"a{name}", function.__module__
    call.__qualname__ = function.__qualname__.removesuffix(name) + f"a{name}"
    call.__doc__ = f"Do as `{name}` does, on a worker thread; a task that is cancelled ends it."
    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


async def in_worker(call: Callable[[], T], cancel: Callable[[int], bool | None]) -> T:
    """Make a call on a worker thread; when the task is cancelled, the call has ended natively, or never begins.

    Parameters
    ----------
    call : callable
        What to do there.
    cancel : callable
        Given the worker thread, ends what that is doing natively, and nobody else's work; called again and again, until
        the call has ended, or it returns True: what is left of the call is not to be waited for.
    """
    worker = [0]
    turn = [True]  # for who takes it out first: the worker, or the task when it is cancelled

    def work() -> Any:
        worker[0] = get_ident()
        return call() if _take(turn) else None

    future = asyncio.get_running_loop().run_in_executor(_workers, work)
    try:
        result: T = await asyncio.shield(future)
    except asyncio.CancelledError:
        is_left = False
        while not (is_left or future.done() or _take(turn)):
            # Again and again: it might come before the native call has begun, and a task may be cancelled twice.
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
