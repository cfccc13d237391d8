"""All errors of token-trie.

TokenTrieError (a ValueError)
├── ArgumentError      a parameter is out of range, unknown, or not applicable
├── PayloadError       a payload is not a TokenTreePayload; the message begins with the position
├── VocabularyError    tokens or texts do not fit the model's vocabulary
├── LimitError         larger than the documented limits
├── LlamaVersionError  the loaded llama.cpp is not the one compiled against, or missing
├── NativeMemoryError  out of memory in native code (also a MemoryError)
├── InternalError      a defect in token-trie
├── ContextError       the context is full, or the model could not be evaluated
├── CancelledError     a prefill, score or search was cancelled
├── GrammarError       a grammar does not parse, or does not fit the text so far
├── CalibrationError   a calibration is broken, was fitted on something else, or cannot be fitted
└── BusyError          the model is already constrained, or in use by another thread

A call that fails changes nothing: the state before the call still holds.
"""

from __future__ import annotations


class TokenTrieError(ValueError):
    """Base of all errors of this package."""

    step = 0
    """In a plan: the index, in the list that was yielded, of the step that failed."""


class ArgumentError(TokenTrieError):
    """A parameter is out of range, unknown, or not applicable."""


class PayloadError(TokenTrieError):
    """A payload is not a TokenTreePayload; the message begins with the position."""


class VocabularyError(TokenTrieError):
    """Tokens or texts do not fit the model's vocabulary."""


class LimitError(TokenTrieError):
    """Larger than the documented limits."""


class LlamaVersionError(TokenTrieError):
    """The loaded llama.cpp is not the one compiled against, or missing."""


class NativeMemoryError(TokenTrieError, MemoryError):
    """Out of memory in native code."""


class InternalError(TokenTrieError):
    """A defect in token-trie; please report it."""


class ContextError(TokenTrieError):
    """The context is full, or the model could not be evaluated."""


def is_too_long(error: BaseException) -> bool:
    """Whether an error says that something does not fit the context, so that a larger one would help."""
    return "do not fit the context of" in str(error)  # there is no class for it, and the error may be a row's


class CancelledError(TokenTrieError):
    """A prefill, score or search was cancelled."""


class GrammarError(TokenTrieError):
    """A grammar does not parse, or does not fit the text so far."""


class CalibrationError(TokenTrieError):
    """A calibration is broken, was fitted on something else than it is used for, or cannot be fitted."""


class BusyError(TokenTrieError):
    """The model is already constrained, or in use by another thread."""


# The values of enum token_trie_status in token_trie.h.
BY_STATUS: dict[int, type[TokenTrieError]] = {
    -1: ArgumentError,
    -2: PayloadError,
    -3: VocabularyError,
    -4: LimitError,
    -5: LlamaVersionError,
    -6: NativeMemoryError,
    -7: InternalError,
    -8: ContextError,
    -9: CancelledError,
    -10: GrammarError,
    -11: BusyError,
}


def from_status(status: int, message: str) -> TokenTrieError:
    """Make the exception for a native status code."""
    return BY_STATUS.get(status, InternalError)(message)
