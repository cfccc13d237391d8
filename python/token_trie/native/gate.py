"""What is open in native code, until any thread closes it, its Llama is closed, or the process is forked."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod

from token_trie.errors import ArgumentError


class Gate(ABC):
    """Something open.

    Parameters
    ----------
    what : str
        What it is, for messages.
    beside : set of Gate
        Those of the same Llama, among which it stands while it is open.
    """

    def __init__(self, what: str, beside: set[Gate]) -> None:
        self.is_closing = False
        self.is_freed = False
        self.is_disowned = False  # it belongs to the process that this one was forked from
        self._what = what
        self._beside = beside
        beside.add(self)
        _open.add(self)

    def require_own_process(self) -> None:
        """Raise ArgumentError in a forked process."""
        if self.is_disowned:
            raise ArgumentError(f"{self._what}: opened before this process was forked; open one of its own")

    @abstractmethod
    def is_entered_here(self) -> bool:
        """Whether this very thread is inside a call."""

    @abstractmethod
    def cancel(self) -> None:
        """End what is under way, if there is something."""

    def close(self) -> None:
        """End what is under way, wait for that, free; closing twice does nothing."""
        if self.is_disowned or self.is_freed:
            return
        if self.is_entered_here():
            # By a signal's handler or a log callback, where its end cannot be waited for; also of what closing logs.
            if not self.is_closing:
                threading.Thread(target=self.close, daemon=True).start()
            return
        self.is_closing = True
        self.shut()

    @abstractmethod
    def shut(self) -> None:
        """End what is under way, wait for that, free, say so by `forget`."""

    def forget(self) -> None:
        """Be freed: nobody need close it."""
        self.is_freed = True
        self._beside.discard(self)
        _open.discard(self)

    def disown(self) -> bool:
        """Forget it unfreed, in a forked process; whether it is of use there."""
        self.is_disowned = True
        return False


_open: set[Gate] = set()


def _disown_all() -> None:
    for gate in list(_open):
        gate.disown()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
