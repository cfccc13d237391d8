"""Lines of llama.cpp's log that are kept off the terminal."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from token_trie.native.core import Llama

# Level of llama-cpp-python's logger. Its levels are one off: it takes llama.cpp's warnings for errors, shows them even
# if a Llama is not verbose, and never shows errors.
_QUIET = logging.CRITICAL
_llama_logger = logging.getLogger("llama-cpp-python")
_quiet_lock = threading.RLock()
_n_quiet = 0
_loud = logging.NOTSET


@contextmanager
def quiet() -> Iterator[None]:
    """Keep llama.cpp's lines about loading a model off the terminal, as `Llama(verbose=False)` does."""
    global _n_quiet, _loud
    with _quiet_lock:
        if _n_quiet == 0:
            _loud = _llama_logger.level
            _llama_logger.setLevel(_QUIET)
        _n_quiet += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _n_quiet -= 1
            if _n_quiet == 0 and _llama_logger.level == _QUIET:  # unless a new Llama has set another level
                _llama_logger.setLevel(_loud)


def be_quiet_with(llm: Llama) -> None:
    """Keep warnings about further contexts of a Llama that is not verbose off the terminal, permanently."""
    if not llm.verbose and _llama_logger.level == logging.ERROR:
        _llama_logger.setLevel(_QUIET)
