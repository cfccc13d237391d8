"""Control tokens: their names stay text in data, and become tokens in a template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from token_trie.errors import ArgumentError, VocabularyError
from token_trie.native.core import Llama, _core, llama_cpp, vocab_of
from token_trie.native.lifetime import attachment

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Code points that Unicode never assigns to a character."""
_STRUCTURE = ("role", "type")
"""Keys whose values templates compare, or put into the name of a control token, as in <|user|>."""


class JSONObject(dict[str, Any]):
    """A dict that a template writes as JSON."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


class Control(NamedTuple):
    """An occurrence of a control token's text."""

    begin: int
    end: int
    text: str


class ControlTokens:
    """The control tokens of a vocabulary, and their texts; empty ones are not found in a text."""

    def __init__(self, vocab: _core.Vocab) -> None:
        texts = [(token, text.decode(errors="ignore")) for token, text in vocab.control_texts()]
        # A token of one byte may end a generation and still be text.
        self.of_text = {text: token for token, text in texts if len(text) > 1 or vocab.is_control(token)}
        unknown = llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        self.forbidden = {
            token
            for token in self.of_text.values()
            if not llama_cpp.llama_vocab_get_attr(vocab.address, token) & unknown
        }
        """Tokens that data must not become."""
        self._texts = frozenset(filter(None, self.of_text))
        self._lengths = sorted({len(text) for text in self._texts}, reverse=True)
        self._starts = {text[:n] for text in self._texts for n in range(1, len(text))}
        self._ends = {text[n:] for text in self._texts for n in range(1, len(text))}
        self._joined = "\0".join(self._texts)
        # Most texts that begin like a control token, such as <p>, differ from it within three characters.
        beginnings = sorted({text[:3] for text in self._texts}, reverse=True)
        self._first = re.compile("|".join(f"{re.escape(b[0])}(?={re.escape(b[1:])})" for b in beginnings) or "(?!)")
        edges = sorted({text[0] for text in self._texts} | {text[-1] for text in self._texts})
        self._edges = re.compile("|".join(map(re.escape, edges)) or "(?!)")

    def find(self, text: str) -> list[Control]:
        """Return the occurrences in a text from left to right; at one position, the longest."""
        found = []
        end = 0
        for at in self._first.finditer(text):
            if at.start() >= end:
                for one in self._beginning_at(text, at.start()):
                    found.append(one)
                    end = one.end
                    break
        return found

    def are_in(self, text: str) -> bool:
        """Return whether a text contains a control token."""
        return any(self.begins_at(text, at.start()) for at in self._first.finditer(text))

    def begins_at(self, text: str, position: int) -> bool:
        """Return whether a control token begins at a position of a text."""
        return any(True for _ in self._beginning_at(text, position))

    def mark(self, data: Any, mark: str, *, every_edge: bool) -> Any:
        """Return data (texts in dicts and lists) with marks where a control token is, or may arise.

        With `every_edge`, every first or last character of a control token is marked, because a template may remove the
        text between two of them.
        """
        return _map_texts(data, lambda text, whole: self._mark(text, mark, every_edge, whole))

    def may_come_of(self, data: Any) -> bool:
        """Return whether data contain a first or last character of a control token, or a text that is inside one."""
        for text, whole in texts_in(data):
            if self._edges.search(text) is not None or (whole and self._is_inside(text)):
                return True
        return False

    def _mark(self, text: str, mark: str, every_edge: bool, whole: bool) -> str:
        positions: set[int] = set()
        if every_edge:
            positions.update(at.start() for at in self._edges.finditer(text))
        for at in self._first.finditer(text):
            for one in self._beginning_at(text, at.start()):
                positions.update(range(one.begin, one.end))
        stripped = len(text) - len(text.lstrip()), len(text.rstrip())
        for begin, end in {(0, len(text)), stripped}:
            longest = min(self._lengths[0], end - begin)
            at_end = next((n for n in range(longest, 0, -1) if text[end - n : end] in self._starts), 0)
            at_start = next((n for n in range(longest, 0, -1) if text[begin : begin + n] in self._ends), 0)
            positions.update(range(end - at_end, end), range(begin, begin + at_start))
        if whole and self._is_inside(text):
            positions.update(range(*stripped))
        if not positions:
            return text
        return "".join(char + mark if i in positions else char for i, char in enumerate(text))

    def _is_inside(self, text: str) -> bool:
        stripped = text.strip()
        return 0 < len(stripped) <= self._lengths[0] and stripped in self._joined

    def _beginning_at(self, text: str, begin: int) -> Iterator[Control]:
        for n in self._lengths:
            part = text[begin : begin + n]
            if len(part) == n and part in self._texts:
                yield Control(begin, begin + n, part)


def texts_in(data: Any) -> list[tuple[str, bool]]:
    """Return the texts of data, including keys, each with whether it is a whole value that templates do not compare."""
    found: list[tuple[str, bool]] = []

    def note(text: str, whole: bool) -> str:
        found.append((text, whole))
        return text

    _map_texts(data, note)
    return found


def _map_texts(data: Any, change: Callable[[str, bool], str], *, whole: bool = True) -> Any:
    if isinstance(data, str):
        return change(data, whole)
    if isinstance(data, Mapping):
        made = {
            change(key, False) if isinstance(key, str) else key: _map_texts(
                value, change, whole=not (key in _STRUCTURE and isinstance(value, str) and value.isidentifier())
            )
            for key, value in data.items()
        }
        return JSONObject(made) if isinstance(data, JSONObject) else made
    if isinstance(data, (list, tuple)):
        return [change(value, True) if isinstance(value, str) else _map_texts(value, change) for value in data]
    return data


def _escaped(mark: str) -> str:
    return json.dumps(mark)[1:-1]


Tokenize: TypeAlias = Callable[[bytes], list[int]]
_SPACE = " \t\n\v\f\r"
_LINE = b"\n"


class Rendered(NamedTuple):
    """A rendered text, and the template's control tokens in it; None if all control tokens are the template's."""

    text: str
    controls: tuple[Control, ...] | None

    def preceded_by(self, llm: Llama, text: str) -> Rendered:
        """Return the text after a text in which names of control tokens stay text."""
        n = len(text)
        own = _controls(llm).find(self.text) if self.controls is None else self.controls
        return Rendered(text + self.text, tuple(Control(n + begin, n + end, name) for begin, end, name in own))


def may_become_control(llm: Llama, data: Any) -> bool:
    """Return whether data could become a control token in some template."""
    return _controls(llm).may_come_of(data)


def render(llm: Llama, data: Any, template: Callable[[Any, str], Rendered]) -> Rendered:
    """Render data (texts in dicts and lists) with a template, so that control tokens come only from the template.

    `template` is called with data, which may contain marks, and with the mark, or ``""`` for none. It returns `read` of
    the rendered text.
    """
    controls = _controls(llm)
    if not controls.may_come_of(data):
        return template(data, "")
    texts = [text for text, _ in texts_in(data)]
    mark = next((mark for mark in _MARKS if not any(mark in text or _escaped(mark) in text for text in texts)), None)
    if mark is None:
        raise ArgumentError("prompt: holds all characters that Unicode keeps free of a meaning")
    strict = template(controls.mark(data, mark, every_edge=True), mark)
    faithful = template(controls.mark(data, mark, every_edge=False), mark)
    if strict.text == faithful.text:
        return strict
    names = [[control.text for control in rendered.controls or ()] for rendered in (strict, faithful)]
    return faithful if names[0] == names[1] else strict


def read(llm: Llama, text: str, mark: str) -> Rendered:
    """Read a rendered text: remove the marks, and find the control tokens without marks."""
    if not mark:
        return Rendered(text, None)
    text = text.replace(_escaped(mark), mark)  # some JSON writers escape marks
    controls = []
    n_marks, last = 0, 0
    for control in _controls(llm).find(text):
        n_marks += text.count(mark, last, control.begin)
        last = control.begin
        if not text.startswith(mark, control.end):
            n = n_marks * len(mark)
            controls.append(Control(control.begin - n, control.end - n, control.text))
    return Rendered(text.replace(mark, ""), tuple(controls))


def tokens_of(llm: Llama, rendered: Rendered, tokenize: Tokenize) -> list[int]:
    """Tokenize a rendered text; VocabularyError if a text in data can only be spelled with a control token."""
    if rendered.controls is None:
        return tokenize(rendered.text.encode(errors="surrogateescape"))
    known = _controls(llm)
    if tuple(known.find(rendered.text)) == rendered.controls:
        return tokenize(rendered.text.encode(errors="surrogateescape"))
    tokens: list[int] = []
    text, begin, at, strips = rendered.text, 0, 0, False
    for control in (*rendered.controls, Control(len(text), len(text), "")):
        between = text[at : control.begin]
        if known.are_in(between):
            tokens += tokenize(text[begin:at].encode(errors="surrogateescape")) if at > begin else []
            between = between.lstrip(_SPACE) if strips else between
            if _has(llm, known, control, llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP):
                between = between.rstrip(_SPACE)
            tokens += _as_data(llm, known, between)
            begin = control.begin
        at, strips = control.end, _has(llm, known, control, llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP)
    return tokens + (tokenize(text[begin:].encode(errors="surrogateescape")) if begin < len(text) else [])


def _controls(llm: Llama) -> ControlTokens:
    known = attachment(llm).known
    if "control tokens" not in known:
        known["control tokens"] = ControlTokens(vocab_of(llm))
    found = known["control tokens"]
    assert isinstance(found, ControlTokens)
    return found


def _has(llm: Llama, known: ControlTokens, control: Control, attribute: int) -> bool:
    token = known.of_text.get(control.text)
    return token is not None and bool(llama_cpp.llama_vocab_get_attr(vocab_of(llm).address, token) & attribute)


def _as_data(llm: Llama, known: ControlTokens, text: str) -> list[int]:
    tokens = _plain(llm, text)
    if known.forbidden.isdisjoint(tokens):
        return tokens
    # llama.cpp parses user-defined tokens in any text, and some tokenizers merge texts into any token, but not across
    # two calls.
    tokens, last = [], 0
    for i in range(1, len(text) + 1):
        if i == len(text) or known.begins_at(text, i - 1):
            tokens += _plain(llm, text[last:i], is_inner=last > 0)
            last = i
    if not known.forbidden.isdisjoint(tokens):
        raise VocabularyError("prompt: a text in it is spelled with a control token, however it is tokenized")
    return tokens


def _plain(llm: Llama, text: str, *, is_inner: bool = False) -> list[int]:
    encoded = text.encode(errors="surrogateescape")
    tokens: list[int] = llm.tokenize(encoded, add_bos=False, special=False) if encoded else []
    if is_inner and vocab_of(llm).detokenize(tokens, True) != encoded:
        # SentencePiece puts a space before a text, so the text is tokenized after a line break.
        line, both = (llm.tokenize(one, add_bos=False, special=False) for one in (_LINE, _LINE + encoded))
        if both[: len(line)] == line:
            tokens = both[len(line) :]
    return tokens
