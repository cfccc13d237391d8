"""Prompts that a template makes of data. Names of control tokens become these in the template's own text alone.

Marks in the data tell them from the template's text. Most data have nothing that could be part of a control token, and
are rendered without marks. For other data, the template renders twice:

faithful   with marks in each name of a control token, and in text that could become one together with its neighbours;
           the template still finds other text that it looks for in data, such as ``</think>``
strict     with marks wherever a control token could begin or end, so that none arises where a template removes text

If the two texts differ, the template looks for something in the data. The faithful one is then used, unless it has more
control tokens.

llama.cpp tokenizes the text between two control tokens by itself. So such a text can be tokenized without control
tokens where it holds data that name some; the tokens of all other text do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from token_trie.errors import ArgumentError, VocabularyError
from token_trie.native.core import Llama, _core, llama_cpp, vocab_of
from token_trie.native.lease import attachment
from token_trie.sets.control_texts import Control, ControlTexts, free_mark, plain_marks

Tokenize: TypeAlias = Callable[[bytes], list[int]]
_SPACE = " \t\n\v\f\r"
_LINE = b"\n"


class Rendered(NamedTuple):
    """A rendered text, and the control tokens in it that are the template's; None where all control tokens are."""

    text: str
    controls: tuple[Control, ...] | None

    def followed_by(self, llm: Llama, text: str) -> Rendered:
        """Return the text with more text of the template behind it."""
        if self.controls is None:
            return Rendered(self.text + text, None)
        n = len(self.text)
        more = (Control(n + begin, n + end, name) for begin, end, name in _known(llm).texts.find(text))
        return Rendered(self.text + text, (*self.controls, *more))

    def behind(self, llm: Llama, text: str) -> Rendered:
        """Return the text with text in front in which no control token is named."""
        n = len(text)
        own = _known(llm).texts.find(self.text) if self.controls is None else self.controls
        return Rendered(text + self.text, tuple(Control(n + begin, n + end, name) for begin, end, name in own))


class _Known:
    """The control tokens of a vocabulary."""

    def __init__(self, vocab: _core.Vocab) -> None:
        texts = [(token, text.decode(errors="ignore")) for token, text in vocab.control_texts()]
        # A token of one byte may end a generation and be text all the same.
        self.of_text = {text: token for token, text in texts if len(text) > 1 or vocab.is_control(token)}
        self.texts = ControlTexts(filter(None, self.of_text))
        unknown = llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        self.forbidden = {
            token
            for token in self.of_text.values()
            if not llama_cpp.llama_vocab_get_attr(vocab.address, token) & unknown
        }


def may_become_control(llm: Llama, data: Any) -> bool:
    """Tell whether data could become a control token, as far as can be told without a template."""
    return _known(llm).texts.may_come_of(data)


R = TypeVar("R", Rendered, "Rendered | None")


def render(llm: Llama, data: Any, template: Callable[[Any, str], R]) -> R:
    """Let a template render data.

    Parameters
    ----------
    data
        Texts in dicts and lists.
    template : callable
        Called with data, which may have marks in them, and with the mark, or ``""`` for none. It returns `read` of the
        text rendered, or None where it renders no text.
    """
    if not may_become_control(llm, data):
        return template(data, "")
    texts = _known(llm).texts
    mark = free_mark(data)
    if mark is None:
        raise ArgumentError("prompt: holds all characters that Unicode keeps free of a meaning")
    strict = template(texts.mark(data, mark, every_edge=True), mark)
    faithful = template(texts.mark(data, mark, every_edge=False), mark)
    if strict is None or faithful is None or strict.text == faithful.text:
        return strict
    names = [[control.text for control in rendered.controls or ()] for rendered in (strict, faithful)]
    return faithful if names[0] == names[1] else strict


def read(llm: Llama, text: str, mark: str) -> Rendered:
    """Read the text that a template made of data with these marks, or with none."""
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
    """Tokens of a rendered text, by what parses control tokens; VocabularyError: data can only be spelled with one."""
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
    # llama.cpp parses user-defined tokens in any text, and some tokenizers merge texts into any token: none across two.
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
        # SentencePiece puts a space before a text; so the text is tokenized behind a line break.
        line, both = (llm.tokenize(one, add_bos=False, special=False) for one in (_LINE, _LINE + encoded))
        if both[: len(line)] == line:
            tokens = both[len(line) :]
    return tokens
