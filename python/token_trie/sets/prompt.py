"""Prompts as llama-cpp-python would feed them to a model."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import llama_cpp
import numpy as np

from token_trie.errors import ArgumentError, ContextError, VocabularyError
from token_trie.native.arguments import encode
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.lease import attachment
from token_trie.sets.chat_form import warn_of_fallback
from token_trie.sets.retokenize import Retokenizer
from token_trie.sets.tokens import check_tokens

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages."""


def tokenize_prompt(llm: Llama, prompt: Prompt, room: int | None = None) -> list[int]:
    """Tokens of a prompt, as llama-cpp-python would feed them to the model.

    Raises
    ------
    ArgumentError
        The prompt is of another type, or empty and the model has no token to begin with.
    ContextError
        Its length alone tells that it has more tokens than there is room for.
    """
    is_array = isinstance(prompt, np.ndarray) and prompt.ndim == 1
    if not (is_array or isinstance(prompt, (str, Sequence))) or isinstance(prompt, (bytes, bytearray)):
        raise ArgumentError(f"prompt: {type(prompt).__name__} where text, token ids or chat messages belong")
    vocab_of(llm)
    if isinstance(prompt, str):
        bos = [llm.token_bos()] if llm._model.add_bos_token() or not prompt else []
        encoded = encode(prompt, "prompt")
        if room is not None:
            check_length(llm, encoded, room)
        tokens = bos + (_tokenize(llm, encoded) if prompt else [])
    elif all(isinstance(message, Mapping) for message in prompt) and len(prompt) > 0:
        tokens = _render_chat(llm, prompt, room)
    else:
        tokens = check_tokens(prompt, llm.n_vocab())
    if not tokens or tokens[0] < 0:
        raise ArgumentError("prompt: empty, and this model has no token to begin with")
    return tokens


def tokenize_rendered(llm: Llama, text: str, room: int) -> list[int]:
    """Tokens of a prompt that a chat template has made; errors as of `tokenize_prompt`."""
    encoded = encode(text, "prompt")
    check_length(llm, encoded, room)
    return _tokenize(llm, encoded)


def tokenize_alone(vocab: _core.Vocab, prompt: Prompt) -> list[int]:
    """Tokens of a prompt, no messages, for a model without a Llama; errors as of `tokenize_prompt`, VocabularyError."""
    if isinstance(prompt, str):
        return tokenize_text(vocab, encode(prompt, "prompt"), "prompt", begins=True)
    return check_tokens(prompt, len(vocab))


def tokenize_text(vocab: _core.Vocab, text: bytes, what: str, *, begins: bool) -> list[int]:
    """Tokens of a text of any length, in which names of control tokens become these.

    Parameters
    ----------
    begins : bool
        Whether it gets what the model has at the beginning of a sequence.
    """
    buffer = (llama_cpp.llama_token * (len(text) + 8))()
    n = llama_cpp.llama_tokenize(vocab.address, text, len(text), buffer, len(buffer), begins, True)
    if n < 0:
        raise VocabularyError(f"{what}: it cannot be tokenized")
    return list(buffer[:n])


def first_token(vocab: _core.Vocab) -> int:
    """Return the token that begins a text: <s> or the like, or what ends one where there is none."""
    bos = llama_cpp.llama_vocab_bos(vocab.address)
    return int(bos if bos >= 0 else llama_cpp.llama_vocab_eos(vocab.address))


def check_length(llm: Llama, text: bytes, room: int) -> None:
    """Raise ContextError for a text whose length alone tells that there is no room for its tokens.

    To tokenize megabytes takes seconds, and to look up the longest token once in a model a fraction of one.
    """
    if len(text) <= 64 * room:
        return
    known = attachment(llm).known
    if "token bytes" not in known:
        known["token bytes"] = _token_bytes(llm)
    longest, loose = known["token bytes"]
    if len(text.translate(None, loose)) > room * longest:
        raise ContextError(f"prompt: {len(text):,} bytes do not fit the context of {room} tokens")


def _token_bytes(llm: Llama) -> tuple[int, bytes]:
    """Length of the longest token in bytes, and the bytes that a text may have and none of its tokens.

    These are white space, which a control token may swallow, and what no token spells alone, which llama.cpp drops.
    """
    vocab = vocab_of(llm).address
    if not _merges(llm):
        return 1, bytes(range(256))
    longest, kept, buffer = 1, set(), ctypes.create_string_buffer(1)
    for token in range(llama_cpp.llama_vocab_n_tokens(vocab)):
        n = abs(llama_cpp.llama_token_to_piece(vocab, token, buffer, 1, 0, True))
        longest = max(longest, n)
        if n == 1:
            kept.add(buffer.raw[0])
    return longest, bytes(byte for byte in range(256) if byte not in kept or byte in b" \t\n\v\f\r")


def _merges(llm: Llama) -> bool:
    """Whether the tokenizer is llama.cpp's and merges neighbours, so that tokens together spell the text."""
    faithful = (llama_cpp.LLAMA_VOCAB_TYPE_SPM, llama_cpp.LLAMA_VOCAB_TYPE_BPE)
    own = type(llm.tokenizer_) is llama_cpp.llama_tokenizer.LlamaTokenizer
    return own and llama_cpp.llama_vocab_type(vocab_of(llm).address) in faithful


def _tokenize(llm: Llama, text: bytes) -> list[int]:
    def whole(text: bytes) -> list[int]:
        tokens: list[int] = llm.tokenize(text, add_bos=False, special=True)
        return tokens

    if not _merges(llm):
        return whole(text)
    vocab = vocab_of(llm)
    retokenizer = attachment(llm).known.setdefault("texts", Retokenizer())
    assert isinstance(retokenizer, Retokenizer)
    return retokenizer.tokens_of(text, whole, lambda token: vocab.detokenize([token], True))


class _Rendered(BaseException):
    """Carries the prompt out of a chat handler, past its `except Exception`."""

    def __init__(self, prompt: str | list[int]) -> None:
        self.prompt = prompt


class _RenderOnly:
    """Stands in for the Llama in a chat handler, which then renders the prompt but generates nothing."""

    def __init__(self, llm: Llama, room: int | None) -> None:
        self._llm = llm
        self._room = room

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> Any:
        if self._room is not None:
            check_length(self._llm, text, self._room)
        if special and not add_bos:
            return _tokenize(self._llm, text)
        return self._llm.tokenize(text, add_bos, special)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def create_completion(self, prompt: str | list[int], **_: Any) -> None:
        raise _Rendered(prompt)


def _render_chat(llm: Llama, messages: Sequence[Any], room: int | None) -> list[int]:
    warn_of_fallback(llm)
    try:
        # The same look-up as Llama.create_chat_completion, so the prompt is the one that it would send.
        handler: Any = (
            llm.chat_handler
            or llm._chat_handlers.get(llm.chat_format)
            or llama_cpp.llama_chat_format.get_chat_completion_handler(llm.chat_format)
        )
        handler(llama=_RenderOnly(llm, room), messages=list(messages))
    except _Rendered as rendered:
        return rendered.prompt if isinstance(rendered.prompt, list) else tokenize_prompt(llm, rendered.prompt, room)
    except ContextError:
        raise
    except Exception as error:
        raise ArgumentError(f"prompt: the chat template {llm.chat_format!r} refuses these messages: {error}") from error
    raise ArgumentError(f"prompt: the chat format {llm.chat_format!r} renders no text prompt")
