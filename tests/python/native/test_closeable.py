from __future__ import annotations

import threading

from token_trie.native.lifetime import Closeable


class Door(Closeable):
    def __init__(self, siblings: set[Closeable]) -> None:
        super().__init__("door", siblings)
        self.inside = 0
        self.freed_by: list[int] = []
        self.is_shut = threading.Event()

    def is_entered_here(self) -> bool:
        return self.inside == threading.get_ident()

    def cancel(self) -> None:
        self.inside = 0

    def shut(self) -> None:
        self.freed_by.append(threading.get_ident())
        self.forget()
        self.is_shut.set()


def test_what_is_closed_twice_is_freed_once_and_forgotten() -> None:
    siblings: set[Closeable] = set()
    door = Door(siblings)
    assert siblings == {door}
    door.close()
    door.close()
    assert door.freed_by == [threading.get_ident()]
    assert door.is_freed
    assert siblings == set()


def test_who_closes_from_inside_a_call_does_not_wait_for_its_end() -> None:
    door = Door(set())
    door.inside = threading.get_ident()
    door.close()
    assert door.is_shut.wait(10)
    assert door.freed_by != [threading.get_ident()]
