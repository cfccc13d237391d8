"""A second event loop in its own thread: work that grows with a body runs there, so clients never wait for it.

server's loop     reads bodies, enforces time limits, sends answers, answers /health
working loop      parses bodies, calls the engine, writes answers
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_END_S = 0.5
"""Time that cancelled work gets to end."""


class Working:
    """The loop; call its methods from the server's loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="token-trie working", daemon=True).start()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work. If this task is cancelled, cancel the work and wait half a second for its end."""
        here = asyncio.get_running_loop()
        found: asyncio.Future[T] = here.create_future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(end)

        def end(task: asyncio.Task[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the server's loop has ended
                here.call_soon_threadsafe(done, task)

        def done(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                found.cancel()
            elif (error := task.exception()) is not None:
                found.set_exception(error)
            else:
                found.set_result(task.result())

        def cancel() -> None:
            self._loop.call_soon(tasks[0].cancel)  # after its first step, so that it frees what it holds

        self._loop.call_soon_threadsafe(begin)
        try:
            return await asyncio.shield(found)
        except asyncio.CancelledError:
            self._loop.call_soon_threadsafe(cancel)
            found.add_done_callback(lambda _: found.cancelled() or found.exception())  # nobody waits for it
            await asyncio.wait({found}, timeout=_END_S)
            raise

    async def iterate(self, parts: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Yield the parts as the work makes them."""
        queue: asyncio.Queue[tuple[T, ...]] = asyncio.Queue()
        here = asyncio.get_running_loop()

        async def make() -> None:
            async with contextlib.aclosing(parts):
                async for part in parts:
                    here.call_soon_threadsafe(queue.put_nowait, (part,))

        making = asyncio.ensure_future(self.do(make()))
        making.add_done_callback(lambda _: queue.put_nowait(()))
        try:
            while part := await queue.get():
                yield part[0]
            await making
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)

    def close(self) -> None:
        """End the loop if no work is left."""
        self._loop.call_soon_threadsafe(self._loop.stop)
