"""Prompts that a template makes of data, in which its own control tokens alone become these.

What the template writes is told from data by marks in the data. Most data have nothing that could be part of a control
token, and go as they are. Otherwise two renderings are made:

faithful   marks in what is a control token, or would be one with what stands beside it; the template still finds all
           else that it looks for in data, such as ``</think>``
strict     marks wherever a control token could begin or end, so that none comes of text that has another taken out

Where they are not the same text, the template looks for something, and the faithful one is taken if it has no control
token more.

Between two control tokens of the template's, llama.cpp tokenizes a text for itself. So may we, without control tokens
where data have some, and the tokens of the rest stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import llama_cpp

from token_trie.errors import ArgumentError, VocabularyError
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.lease import attachment
from token_trie.sets.control_texts import Control, ControlTexts, free_mark, plain_marks

Tokenize: TypeAlias = Callable[[bytes], list[int]]
_SPACE = " \t\n\v\f\r"
_LINE = b"\n"


class Rendered(NamedTuple):
    """A template's text, and the control tokens in it that are its own, or None where no others can be."""

    text: str
    controls: tuple[Control, ...] | None

    def followed_by(self, llm: Llama, text: str) -> Rendered:
        """Return it with more text of the template's."""
        if self.controls is None:
            return Rendered(self.text + text, None)
        n = len(self.text)
        more = (Control(n + begin, n + end, name) for begin, end, name in _known(llm).texts.find(text))
        return Rendered(self.text + text, (*self.controls, *more))


class _Known:
    """What is remembered of a vocabulary."""

    def __init__(self, vocab: _core.Vocab) -> None:
        texts = [(token, text.decode(errors="ignore")) for token, text in vocab.control_texts()]
        # One byte that ends a generation is text as well.
        self.of_text = {text: token for token, text in texts if len(text) > 1 or vocab.is_control(token)}
        self.texts = ControlTexts(filter(None, self.of_text))
        unknown = llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        self.forbidden = {
            token
            for token in self.of_text.values()
            if not llama_cpp.llama_vocab_get_attr(vocab.address, token) & unknown
        }


def may_become_control(llm: Llama, data: Any) -> bool:
    """Whether a control token could come of data, as far as can be seen without a template."""
    return _known(llm).texts.may_come_of(data)


R = TypeVar("R", Rendered, "Rendered | None")


def render(llm: Llama, data: Any, template: Callable[[Any, str], R]) -> R:
    """Let a template render data.

    Parameters
    ----------
    data
        Texts in dicts and lists.
    template : callable
        Is given data, in which there may be marks, and the mark, or ``""`` for none; returns `read` of what it renders,
        or None where it has no text.
    """
    if not may_become_control(llm, data):
        return template(data, "")
    texts = _known(llm).texts
    mark = free_mark(data)
    if mark is None:
        raise ArgumentError("prompt: has all characters that Unicode keeps free of a meaning")
    strict = template(texts.mark(data, mark, every_edge=True), mark)
    faithful = template(texts.mark(data, mark, every_edge=False), mark)
    if strict is None or faithful is None or strict.text == faithful.text:
        return strict
    names = [[control.text for control in rendered.controls or ()] for rendered in (strict, faithful)]
    return faithful if names[0] == names[1] else strict


def read(llm: Llama, text: str, mark: str) -> Rendered:
    """Read what a template made of data with these marks, or with none at all."""
    if not mark:
        return Rendered(text, None)
    text = plain_marks(text, mark)
    controls = []
    n_marks, last = 0, 0
    for control in _known(llm).texts.find(text):
        n_marks += text.count(mark, last, control.begin)
        last = control.begin
        if not text.startswith(mark, control.end):
            n = n_marks * len(mark)
            controls.append(Control(control.begin - n, control.end - n, control.text))
    return Rendered(text.replace(mark, ""), tuple(controls))


def tokens_of(llm: Llama, rendered: Rendered, tokenize: Tokenize) -> list[int]:
    """Return the tokens of what a template rendered; `tokenize` parses control tokens.

    Raises
    ------
    VocabularyError
        A text of data is spelled with a control token, however it is tokenized.
    """
    known = _known(llm)
    if rendered.controls is None or tuple(known.texts.find(rendered.text)) == rendered.controls:
        return tokenize(rendered.text.encode(errors="surrogateescape"))
    tokens: list[int] = []
    text, begin, at, strips = rendered.text, 0, 0, False
    for control in (*rendered.controls, Control(len(text), len(text), "")):
        between = text[at : control.begin]
        if known.texts.are_in(between):
            tokens += tokenize(text[begin:at].encode(errors="surrogateescape")) if at > begin else []
            between = between.lstrip(_SPACE) if strips else between
            if _has(llm, known, control, llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP):
                between = between.rstrip(_SPACE)
            tokens += _as_data(llm, known, between)
            begin = control.begin
        at, strips = control.end, _has(llm, known, control, llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP)
    return tokens + (tokenize(text[begin:].encode(errors="surrogateescape")) if begin < len(text) else [])


def _known(llm: Llama) -> _Known:
    known = attachment(llm).known
    if "control texts" not in known:
        known["control texts"] = _Known(vocab_of(llm))
    found = known["control texts"]
    assert isinstance(found, _Known)
    return found


def _has(llm: Llama, known: _Known, control: Control, attribute: int) -> bool:
    token = known.of_text.get(control.text)
    return token is not None and bool(llama_cpp.llama_vocab_get_attr(vocab_of(llm).address, token) & attribute)


def _as_data(llm: Llama, known: _Known, text: str) -> list[int]:
    tokens = _plain(llm, text)
    if known.forbidden.isdisjoint(tokens):
        return tokens
    # User-defined tokens are parsed everywhere, and some tokenizers merge texts into any token. Not across two texts.
    tokens, last = [], 0
    for i in range(1, len(text) + 1):
        if i == len(text) or known.texts.begins_at(text, i - 1):
            tokens += _plain(llm, text[last:i], is_inner=last > 0)
            last = i
    if not known.forbidden.isdisjoint(tokens):
        raise VocabularyError("prompt: a text in it is spelled with a control token, however it is tokenized")
    return tokens


def _plain(llm: Llama, text: str, *, is_inner: bool = False) -> list[int]:
    encoded = text.encode(errors="surrogateescape")
    tokens: list[int] = llm.tokenize(encoded, add_bos=False, special=False) if encoded else []
    if is_inner and vocab_of(llm).detokenize(tokens, True) != encoded:
        # SentencePiece puts a space before a text; so another one goes before this.
        line, both = (llm.tokenize(one, add_bos=False, special=False) for one in (_LINE, _LINE + encoded))
        if both[: len(line)] == line:
            tokens = both[len(line) :]
    return tokens
