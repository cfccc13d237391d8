"""Prompts, tokenized as llama-cpp-python does: texts, token ids, chat messages, templates filled from a table."""

from __future__ import annotations

import ctypes
import json
import logging
import math
import operator
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from string import Formatter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from token_trie.errors import ArgumentError, ContextError, VocabularyError
from token_trie.native.core import Llama, _core, llama_cpp, vocab_of
from token_trie.native.lifetime import LruCache, attachment, cache_in
from token_trie.native.llama_facts import formatter_of, model_of, registered_chat_handler
from token_trie.native.options import encode
from token_trie.sets.control_tokens import Rendered, read, render, tokens_of
from token_trie.sets.tokenization import check_tokens

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger("token_trie.chat")


def has_chat_template(llm: Llama) -> bool:
    """Return whether messages get the model's own chat template, or one given to its Llama."""
    return llm.chat_handler is not None or llm.chat_format != "llama-2" or "tokenizer.chat_template" in llm.metadata


def template_of(llm: Llama) -> str | None:
    """Return the text of the chat template, if llama-cpp-python renders the one of the model's file."""
    name = llm.chat_format or ""
    if llm.chat_handler is not None or not name.startswith("chat_template."):
        return None
    key = "tokenizer.chat_template" + name.removeprefix("chat_template").replace(".default", "")
    text: str | None = llm.metadata.get(key)
    return text


def without_thought(llm: Llama) -> dict[str, bool]:
    """Return the argument by which the chat template leaves room for no thought; none if it has no such argument.

    Templates of models that may think, such as Qwen3's and SmolLM3's, name it `enable_thinking`.
    """
    return {"enable_thinking": False} if "enable_thinking" in (template_of(llm) or "") else {}


def closed(text: str) -> str:
    """End a thought that a chat template has begun, as the templates with `enable_thinking` do."""
    before = text.rstrip()
    return f"{before}\n\n</think>\n\n" if before.endswith("<think>") else text


def warn_of_fallback(llm: Llama) -> None:
    """Warn once for each Llama whose file has no chat template, so that messages get Llama 2's."""
    known = attachment(llm).known
    if has_chat_template(llm) or "warned of its chat template" in known:
        return
    known["warned of its chat template"] = True
    _logger.warning(
        "the model's file has no chat template, and llama-cpp-python puts messages into Llama 2's ([INST] … "
        "[/INST]), with which few models were trained. Make the Llama with chat_format=… (say, 'gemma' or 'chatml') or "
        "chat_handler=…, or give a text in the model's own template in place of messages. (Said once a Llama.)"
    )


Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages.

In a text, the names of control tokens become these tokens. In chat messages they stay text.
"""


class Filled(str):
    """A template filled with data: its pieces, each with the data that follow it.

    Names of control tokens become control tokens only in the template.
    """

    parts: Sequence[tuple[str, str]]

    def __new__(cls, parts: Sequence[tuple[str, str]]) -> Self:  # noqa: D102
        made = super().__new__(cls, "".join(own + data for own, data in parts))
        made.parts = parts
        return made

    def render(self, llm: Llama) -> Rendered:
        """Return the text, with the control tokens of the template."""
        own = [own for own, _ in self.parts]

        def template(data: list[str], mark: str) -> Rendered:
            return read(llm, "".join(map(operator.add, own, data)), mark)

        return render(llm, [data for _, data in self.parts], template)


def tokenize_prompt(llm: Llama, prompt: Prompt, n_ctx: int | None = None, *, thinks: bool = False) -> list[int]:
    """Return the tokens of a prompt, as llama-cpp-python does.

    After messages, the answer follows at once, `without_thought` or after an empty one, unless the model `thinks`: then
    the chat template decides. ArgumentError if it has another type, or is empty and the model has no first token;
    ContextError if it is too long for n_ctx tokens.
    """
    is_array = isinstance(prompt, np.ndarray) and prompt.ndim == 1
    if not (is_array or isinstance(prompt, (str, Sequence))) or isinstance(prompt, (bytes, bytearray)):
        raise ArgumentError(f"prompt must be str, token ids or chat messages, not {type(prompt).__name__}")
    vocab_of(llm)
    if isinstance(prompt, str):
        bos = [llm.token_bos()] if model_of(llm).add_bos_token() or not prompt else []
        rendered = prompt.render(llm) if isinstance(prompt, Filled) else Rendered(prompt, None)
        tokens = bos + (tokenize_rendered(llm, rendered, n_ctx) if prompt else [])
    elif all(isinstance(message, Mapping) for message in prompt) and len(prompt) > 0:
        messages: Any = prompt
        tokens = _tokenize_chat(llm, messages, n_ctx, thinks=thinks)
    else:
        tokens = check_tokens(prompt, llm.n_vocab())
    if not tokens or tokens[0] < 0:
        raise ArgumentError("prompt: empty, and this model has no token to begin with")
    return tokens


def tokenize_rendered(llm: Llama, rendered: Rendered, n_ctx: int | None) -> list[int]:
    """Return the tokens of a rendered prompt; errors as of `tokenize_prompt`."""
    encoded = encode(rendered.text, "prompt")
    if n_ctx is not None:
        check_length(llm, encoded, n_ctx)
    return _tokenize(llm, encoded) if rendered.controls is None else tokens_of(llm, rendered, partial(_tokenize, llm))


def tokenize_alone(vocab: _core.Vocab, prompt: Prompt) -> list[int]:
    """Return the tokens of a text or of token ids, without a Llama; errors as of `tokenize_prompt`."""
    if isinstance(prompt, str):
        return tokenize_text(vocab, encode(prompt, "prompt"), "prompt", begins=True)
    return check_tokens(prompt, len(vocab))


def tokenize_text(vocab: _core.Vocab, text: bytes, what: str, *, begins: bool, special: bool = True) -> list[int]:
    """Return the tokens of a text; with `special`, names of control tokens become control tokens.

    With `begins`, the text begins a sequence, and gets the model's first tokens.
    """
    buffer = (llama_cpp.llama_token * (len(text) + 8))()
    n = llama_cpp.llama_tokenize(vocab.address, text, len(text), buffer, len(buffer), begins, special)
    if n < 0:
        raise VocabularyError(f"{what}: it cannot be tokenized")
    return list(buffer[:n])


def first_token(vocab: _core.Vocab) -> int:
    """Return the token that begins a text, such as <s>; without one, the token that ends a text."""
    bos = llama_cpp.llama_vocab_bos(vocab.address)
    return int(bos if bos >= 0 else llama_cpp.llama_vocab_eos(vocab.address))


def check_length(llm: Llama, text: bytes, n_ctx: int) -> None:
    """Raise ContextError for a text that certainly has more than n_ctx tokens.

    Tokenizing megabytes takes seconds; finding a model's longest token takes less than one, once.
    """
    if len(text) <= 64 * n_ctx:
        return
    known = attachment(llm).known
    key = "token bytes", _merges(llm, vocab_of(llm))  # a Llama may get another tokenizer
    if key not in known:
        known[key] = _token_bytes(llm)
    longest, loose = known[key]
    if len(text.translate(None, loose)) > n_ctx * longest:
        raise ContextError(f"prompt: {len(text):,} bytes do not fit the context of {n_ctx} tokens")


def _token_bytes(llm: Llama) -> tuple[int, bytes]:
    """Return the length of the longest token, in bytes, and the bytes that the tokens of a text may lack.

    They are white space, which a control token may remove, and bytes that no token spells alone, as llama.cpp drops
    them.
    """
    owner = vocab_of(llm)
    if not _merges(llm, owner):
        return 1, bytes(range(256))
    vocab = owner.address
    longest, kept, buffer = 1, set(), ctypes.create_string_buffer(1)
    for token in range(llama_cpp.llama_vocab_n_tokens(vocab)):
        n = abs(llama_cpp.llama_token_to_piece(vocab, token, buffer, 1, 0, True))
        longest = max(longest, n)
        if n == 1:
            kept.add(buffer.raw[0])
    return longest, bytes(byte for byte in range(256) if byte not in kept or byte in b" \t\n\v\f\r")


def _merges(llm: Llama, vocab: _core.Vocab) -> bool:
    """Return whether the tokenizer is llama.cpp's SPM or BPE, whose tokens together spell the text."""
    faithful = (llama_cpp.LLAMA_VOCAB_TYPE_SPM, llama_cpp.LLAMA_VOCAB_TYPE_BPE)
    own = type(llm.tokenizer_) is llama_cpp.llama_tokenizer.LlamaTokenizer
    return own and llama_cpp.llama_vocab_type(vocab.address) in faithful


_N_TEXTS = 4
"""Texts whose tokens are remembered."""


def _tokenize(llm: Llama, text: bytes) -> list[int]:
    if not _merges(llm, vocab_of(llm)):
        return list(llm.tokenize(text, add_bos=False, special=True))
    texts: LruCache[list[int]] = cache_in(attachment(llm).known, "texts", _N_TEXTS, _N_TEXTS)
    return texts.get(text, 1, lambda: llm.tokenize(text, add_bos=False, special=True)).copy()


def chat_handler_of(llm: Llama) -> Any:
    """Return the chat handler, found as in `Llama.create_chat_completion`."""
    return (
        llm.chat_handler
        or registered_chat_handler(llm)
        or llama_cpp.llama_chat_format.get_chat_completion_handler(llm.chat_format)
    )


def render_chat(llm: Llama, messages: Sequence[Mapping[str, Any]], *, is_prompt: bool = True, **arguments: Any) -> Any:
    """Render chat messages by the template of the model's file, or by the Llama's chat format or chat handler.

    `is_prompt`: whether the beginning of an answer follows; False goes with the template of the file. `arguments` are
    those of the template, such as `tools` and `enable_thinking`. Returns a `ChatFormatterResponse` of llama_cpp.
    ArgumentError if the chat handler has no template, or the template refuses the messages.
    """
    try:
        formatter = _formatter_of(llm, is_prompt)
        if formatter is not None:
            return formatter(messages=list(messages), **arguments)
    except Exception as error:  # a template may raise anything
        raise ArgumentError(f"prompt: the chat template {llm.chat_format!r} refuses these messages: {error}") from error
    given = llm.chat_handler
    name = llm.chat_format if given is None else getattr(given, "__name__", type(given).__name__)
    raise ArgumentError(f"prompt: the chat handler {name!r} has no template to render; give a text or tokens")


def _formatter_of(llm: Llama, is_prompt: bool) -> Any:
    template = template_of(llm)
    if template is None:
        return formatter_of(chat_handler_of(llm))
    tokens = llm.token_eos(), llm.token_bos()
    eos, bos = (model_of(llm).token_get_text(token) if token >= 0 else "" for token in tokens)
    return _compiled(template, eos, bos, is_prompt)


@lru_cache(maxsize=16)
def _compiled(template: str, eos: str, bos: str, is_prompt: bool) -> Any:
    return llama_cpp.llama_chat_format.Jinja2ChatFormatter(template, eos, bos, add_generation_prompt=is_prompt)


def _tokenize_chat(llm: Llama, messages: Sequence[Mapping[str, Any]], n_ctx: int | None, *, thinks: bool) -> list[int]:
    warn_of_fallback(llm)
    is_whole = True

    def template(messages: Sequence[Mapping[str, Any]], mark: str) -> Rendered:
        nonlocal is_whole
        response = render_chat(llm, messages, **({} if thinks else without_thought(llm)))
        is_whole = response.added_special
        return read(llm, response.prompt if thinks else closed(response.prompt), mark)

    rendered = render(llm, messages, template)
    if n_ctx is not None:
        check_length(llm, rendered.text.encode(errors="surrogateescape"), n_ctx)
    tokens = tokens_of(llm, rendered, partial(_tokenize, llm))
    if is_whole:
        return tokens
    model = model_of(llm)
    begin = [model.token_bos()] if model.add_bos_token() else []
    return begin + tokens + ([model.token_eos()] if model.add_eos_token() else [])


_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


class Template:
    r"""A text in which ``{text}`` is replaced by a row's value in the column text, and ``{{`` by a brace.

    With `has_escapes`, ``\n``, ``\t`` and ``\\`` have the same meaning as in Python, as a shell does not translate
    them. ArgumentError, beginning with `what`, if the text has no column, or an unmatched brace.
    """

    def __init__(self, text: str, has_escapes: bool, what: str = "--prompt") -> None:
        if has_escapes:
            text = re.sub(r"\\[nt\\]", lambda found: _ESCAPES[found[0]], text)
        try:
            self._parts = [
                (literal, None if name is None else name + ("!" + kind if kind else "") + (":" + spec if spec else ""))
                for literal, name, spec, kind in Formatter().parse(text)
            ]
        except ValueError as error:
            raise ArgumentError(f"{what}: {error}; write a brace twice where it is text") from error
        self.text = text
        self.columns = list(dict.fromkeys(name for _, name in self._parts if name is not None))
        if not self.columns:
            raise ArgumentError(what + ": no {column} in it, so that all rows would be one prompt")

    def check(self, columns: list[str], where: str = "") -> None:
        """Raise ArgumentError if a column of the text is not among these."""
        for name in self.columns:
            if name not in columns:
                raise ArgumentError(f"{where}no column {name!r}, which the prompt has; there are {', '.join(columns)}")

    def fill(self, values: dict[str, Any]) -> Filled:
        """Return the prompt of a row, with its values as data; ArgumentError if a value is missing."""
        self.check(list(values))
        empty = [name for name in self.columns if values[name] is None]
        if empty:
            raise ArgumentError(f"nothing in column {empty[0]!r}, which the prompt has")
        binary = [name for name in self.columns if isinstance(values[name], bytes)]
        if binary:
            raise ArgumentError(f"column {binary[0]!r}, which the prompt has: bytes that are not UTF-8")
        return Filled([(literal, "" if name is None else text_of(values[name])) for literal, name in self._parts])


def text_of(value: Any) -> str:
    """Return the text of a value for a prompt or a CSV field; numbers, bools, lists and dicts are written as JSON."""
    if value is None:
        return ""
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return to_json(value) if isinstance(value, (list, dict)) else str(value)


def to_json(value: Any, sort_keys: bool = False) -> str:
    """Return a value as JSON; NaN and infinities become null, types that JSON does not have become text."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str, allow_nan=False, sort_keys=sort_keys)
    except ValueError:
        return json.dumps(_with_nulls(value), ensure_ascii=False, default=str, sort_keys=sort_keys)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_nulls(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
