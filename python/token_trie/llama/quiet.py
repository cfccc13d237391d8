"""llama.cpp's lines, kept off the terminal as a `Llama` that is not verbose does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from token_trie.native.core import Llama

# Of llama-cpp-python's logger: that takes llama.cpp's warnings for errors, as its levels are one off, and shows these
# where a Llama is not verbose; errors it never does.
_QUIET = logging.CRITICAL
_logger = logging.getLogger("llama-cpp-python")
_quiet_lock = threading.RLock()
_n_quiet = 0
_loud = logging.NOTSET


@contextmanager
def quiet() -> Iterator[None]:
    """Keep llama.cpp's thousands of lines about a model it loads off the terminal, as `Llama(verbose=False)` does."""
    global _n_quiet, _loud
    with _quiet_lock:
        if _n_quiet == 0:
            _loud = _logger.level
            _logger.setLevel(_QUIET)
        _n_quiet += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _n_quiet -= 1
            if _n_quiet == 0 and _logger.level == _QUIET:  # a Llama that was made meanwhile has set another
                _logger.setLevel(_loud)


def be_quiet_with(llm: Llama) -> None:
    """Keep warnings about contexts that are made beside a Llama off the terminal, if it is not verbose, for good."""
    if not llm.verbose and _logger.level == logging.ERROR:
        _logger.setLevel(_QUIET)
