"""A generation: steps, one after the other, each whole, all to one reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from threading import get_ident
from typing import NoReturn

from token_trie.errors import ArgumentError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.interrupts import interruptible
from token_trie.llama.sampling import Sampling
from token_trie.llama.state import Step
from token_trie.llama.stream import Stream
from token_trie.native.arguments import check_integers


class Generation(Iterator[Step], AsyncIterator[Step]):
    """An iterator over the steps of one `StreamHandle.generate`; each step is computed when it is requested.

    From its first step on, it occupies the handle, until it ends, is closed, or is garbage-collected. In the meantime,
    another generation raises BusyError. So does a change of the handle by another thread than the one that requested
    the last step. With ``async for``, a worker thread computes the steps; if the task is cancelled, the stream is
    cancelled.
    """

    def __init__(self, stream: Stream, max_tokens: int, sampling: Sampling) -> None:
        if type(max_tokens) is not int:
            check_integers(max_tokens=max_tokens)
        self._steps = stream.steps
        self._reader = self._steps.reader(max_tokens, sampling)

    def __iter__(self) -> Generation:
        return self

    def __aiter__(self) -> Generation:
        return self

    def __next__(self) -> Step:
        reader = self._reader
        if reader.left <= 0:
            reader.require_kept()
            raise StopIteration
        thread = get_ident()
        steps = self._steps
        if steps.is_behind:
            step = interruptible(lambda: steps.step(reader, thread), steps.native.cancel)
            steps.is_behind = False
        else:
            step = steps.step(reader, thread, thread)
        if step is None:
            raise StopIteration
        return step

    async def __anext__(self) -> Step:
        reader, steps = self._reader, self._steps
        if reader.left <= 0:
            reader.require_kept()
            raise StopAsyncIteration
        asking = get_ident()
        try:
            step = await in_worker(lambda: steps.step(reader, asking), steps.cancel_of)
        except asyncio.CancelledError:
            self.close()  # whether or not there was a step, which nobody gets
            raise
        if step is None:
            raise StopAsyncIteration
        return step

    def close(self) -> None:
        """End it, so that the handle is free for other calls; what was generated stays in the sequence."""
        self._steps.dismiss(self._reader)

    async def aclose(self) -> None:
        """Do as `close` does."""
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a generation cannot be copied or pickled: its steps are of one stream")
