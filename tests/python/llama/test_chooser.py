from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from token_trie import CancelledError
from token_trie.llama.batch import OwnStream, chooser
from token_trie.native.lifetime import attachment


def own_of(llm: Any) -> OwnStream:
    with chooser(llm):
        own = attachment(llm).made(OwnStream)
        assert own is not None
        return own


def wait_in_line(own: OwnStream, n: int) -> None:
    until = time.monotonic() + 60
    while len(own._queue) < n:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_those_who_wait_have_the_stream_in_the_order_in_which_they_came(tiny: Any) -> None:
    own = own_of(tiny)
    order = []

    def take(i: int) -> None:
        with chooser(tiny):
            order.append(i)

    with chooser(tiny):
        threads = [threading.Thread(target=take, args=(i,)) for i in range(8)]
        for i, thread in enumerate(threads):
            thread.start()
            wait_in_line(own, i + 1)
    for thread in threads:
        thread.join()
    assert order == list(range(8))
    assert not own.is_taken


def test_a_cancelled_request_leaves_the_queue_and_later_ones_stay_in_it(tiny: Any) -> None:
    own = own_of(tiny)
    ended: list[object] = []

    def take() -> None:
        try:
            with chooser(tiny):
                ended.append("taken")
        except CancelledError as error:
            ended.append(error)

    with chooser(tiny):
        threads = [threading.Thread(target=take) for _ in range(3)]
        for i, thread in enumerate(threads):
            thread.start()
            wait_in_line(own, i + 1)
        own.cancel_of(threads[0].ident or 0)
        threads[0].join(60)
        assert [str(each) for each in ended] == ["the decision was cancelled"]
    for thread in threads[1:]:
        thread.join(60)
    assert ended[1:] == ["taken", "taken"]


def test_an_error_of_the_one_who_has_it_calls_the_next(tiny: Any) -> None:
    own = own_of(tiny)
    taken = threading.Event()

    def take() -> None:
        with chooser(tiny):
            taken.set()

    thread = threading.Thread(target=take)

    def fail() -> None:
        with chooser(tiny):
            thread.start()
            wait_in_line(own, 1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    thread.join(60)
    assert taken.is_set()
