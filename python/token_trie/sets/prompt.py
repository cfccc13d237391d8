"""Prompts as llama-cpp-python would feed them to a model."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import llama_cpp
import numpy as np

from token_trie.errors import ArgumentError, ContextError, TokenTrieError, VocabularyError
from token_trie.native.arguments import encode
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.lease import attachment
from token_trie.sets.chat_form import warn_of_fallback
from token_trie.sets.rendered import Rendered, may_become_control, read, render, tokens_of
from token_trie.sets.retokenize import Retokenizer
from token_trie.sets.tokens import check_tokens

if TYPE_CHECKING:
    from typing_extensions import Self

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages.

A text is a template of its own, in which names of control tokens become these. Those in chat messages are text.
"""


class Filled(str):
    """A text with data in it, in whose own stretches alone names of control tokens become these.

    Parameters
    ----------
    parts : sequence of tuple
        Stretches, each with the data behind it.
    """

    parts: Sequence[tuple[str, str]]

    def __new__(cls, parts: Sequence[tuple[str, str]]) -> Self:  # noqa: D102
        made = super().__new__(cls, "".join(own + data for own, data in parts))
        made.parts = parts
        return made

    def render(self, llm: Llama) -> Rendered:
        """Return it with what is its own told from data."""
        own = [own for own, _ in self.parts]

        def template(data: list[str], mark: str) -> Rendered:
            return read(llm, "".join(map(operator.add, own, data)), mark)

        return render(llm, [data for _, data in self.parts], template)


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
        rendered = prompt.render(llm) if isinstance(prompt, Filled) else Rendered(prompt, None)
        tokens = bos + (tokenize_rendered(llm, rendered, room) if prompt else [])
    elif all(isinstance(message, Mapping) for message in prompt) and len(prompt) > 0:
        tokens = _render_chat(llm, {"messages": list(prompt)}, room)
    else:
        tokens = check_tokens(prompt, llm.n_vocab())
    if not tokens or tokens[0] < 0:
        raise ArgumentError("prompt: empty, and this model has no token to begin with")
    return tokens


def tokenize_rendered(llm: Llama, rendered: Rendered, room: int | None) -> list[int]:
    """Tokens of a prompt that a chat template has made; errors as of `tokenize_prompt`."""
    encoded = encode(rendered.text, "prompt")
    if room is not None:
        check_length(llm, encoded, room)
    return tokens_of(llm, rendered, lambda text: _tokenize(llm, text))


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


class _Sent(BaseException):
    """Carries the prompt out of a chat handler, past its `except Exception`."""

    def __init__(self, prompt: str | list[int]) -> None:
        self.prompt = prompt


class _Tokens(list[int]):
    """Tokens of a text as a template has rendered it."""

    def __init__(self, tokens: list[int], rendered: Rendered) -> None:
        super().__init__(tokens)
        self.rendered = rendered


class _RenderOnly:
    """Stands in for the Llama in a chat handler, which then renders the prompt but generates nothing."""

    def __init__(self, llm: Llama, room: int | None) -> None:
        self._llm = llm
        self._room = room
        self._known: dict[tuple[Rendered, bool], _Tokens] = {}  # as the same text is often rendered twice
        self.mark = ""

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> Any:
        rendered = read(self._llm, text.decode(errors="surrogateescape"), self.mark)
        if (rendered, add_bos) in self._known:
            return self._known[rendered, add_bos]
        text = rendered.text.encode(errors="surrogateescape")
        if self._room is not None:
            check_length(self._llm, text, self._room)
        if not special or (add_bos and rendered.controls is None):
            return self._llm.tokenize(text, add_bos, special)
        tokens = tokens_of(self._llm, rendered, lambda part: _tokenize(self._llm, part))
        model = self._llm._model
        begin = [model.token_bos()] if add_bos and model.add_bos_token() else []
        end = [model.token_eos()] if add_bos and model.add_eos_token() else []
        made = self._known[rendered, add_bos] = _Tokens(begin + tokens + end, rendered)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def create_completion(self, prompt: str | list[int], **_: Any) -> None:
        raise _Sent(prompt)


def tokenize_chat(llm: Llama, asked: Mapping[str, Any]) -> list[int] | None:
    """Tokens of a chat, by the names of `create_chat_completion`; None if llama-cpp-python's own have no other control.

    Errors are those of `tokenize_prompt`.
    """
    return _render_chat(llm, asked, None) if may_become_control(llm, asked) else None


def _render_chat(llm: Llama, asked: Mapping[str, Any], room: int | None) -> list[int]:
    warn_of_fallback(llm)
    instead = _RenderOnly(llm, room)
    made: dict[Rendered | None, list[int]] = {}

    def template(asked: Mapping[str, Any], mark: str) -> Rendered | None:
        instead.mark = mark
        prompt = _sent(llm, instead, asked)
        if isinstance(prompt, str):
            begins = bool(llm._model.add_bos_token()) or not prompt
            bos = [llm.token_bos()] if begins else []
            rendered = read(llm, prompt, mark)
            made[rendered] = bos + (tokenize_rendered(llm, rendered, room) if prompt else [])
            return rendered
        found = prompt.rendered if isinstance(prompt, _Tokens) else None
        made.setdefault(found, prompt)
        return found

    try:
        return made[render(llm, asked, template)]
    except TokenTrieError:
        raise
    except Exception as error:
        raise ArgumentError(f"prompt: the chat template {llm.chat_format!r} refuses these messages: {error}") from error


def _sent(llm: Llama, instead: _RenderOnly, asked: Mapping[str, Any]) -> str | list[int]:
    """Return what a chat handler would send."""
    # The same look-up as Llama.create_chat_completion, so the prompt is the one that it would send.
    handler: Any = (
        llm.chat_handler
        or llm._chat_handlers.get(llm.chat_format)
        or llama_cpp.llama_chat_format.get_chat_completion_handler(llm.chat_format)
    )
    try:
        handler(llama=instead, **asked)
    except _Sent as sent:
        return sent.prompt
    raise ArgumentError(f"prompt: the chat format {llm.chat_format!r} renders no text prompt")
