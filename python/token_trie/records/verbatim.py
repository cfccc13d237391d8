"""Verbatim values: spans of the text that a record is taken from, which are found, spelled and given to a schema.

A text is cut into words and signs; a span goes from the start of one to the end of another. Each is tokenized as the
model writes it, from the token that opens it to the one that closes it, as both may have a part of it. The tokens of a
longest span serve the shorter ones, up to their last word, which is tokenized with the closing quote:

    Invoice $7 of 3 May     the words and signs:  [Invoice] [$] [7] [of] [3] [May]
    "$7 of 3 May            the longest from $:   ["$] [7] [ of] [ 3] [ May]
    "$7 of"                 its beginning, and    [ of] ["]
"""

from __future__ import annotations

import json
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from token_trie.errors import ArgumentError, LimitError, VocabularyError
from token_trie.native.core import _core
from token_trie.native.options import check_counts, encode
from token_trie.records.gbnf import Expression, Matcher
from token_trie.records.nodes import Array, Map, Node, Object, Union, VerbatimNode, inside
from token_trie.records.spell import Spelled, signs_before
from token_trie.sets.prompt import Filled
from token_trie.sets.tokenization import line_break

MAX_WORDS = 16
"""Default number of words and signs of the longest verbatim value."""
_MAX_SPANS = 200_000
"""Maximum number of spans of a text: they take seconds."""
MAX_LENGTH = 1_000
"""Characters of the longest verbatim value."""


@dataclass(frozen=True)
class Verbatim:
    """Marks a text of a record as a part of the text that the record is taken from: ``Annotated[str, Verbatim()]``.

    `Record.offsets` tells where it stands. With `None` as in ``Annotated[str | None, Verbatim()]``, the model may say
    that there is none. In a JSON Schema it is ``"x_verbatim": true``, or the largest number of words.
    """

    max_words: int = MAX_WORDS
    """Largest number of words and signs of the value."""

    def __post_init__(self) -> None:
        check_counts(max_words=self.max_words)

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]) -> Any:
        """Add the keyword to the schema of the text."""
        schema = handler(core_schema)
        texts = [part for part in schema.get("anyOf", [schema]) if part.get("type") == "string"]
        if len(texts) != 1:
            raise ArgumentError("Verbatim: goes with str, or str | None")
        texts[0]["x_verbatim"] = True if self.max_words == MAX_WORDS else self.max_words
        return schema


def source_of(prompt: object) -> str | None:
    """Return the text that a record is taken from: data of a template, or the user's last message; else None."""
    if isinstance(prompt, Filled):
        return "\n\n".join(data for _, data in prompt.parts if data)
    messages = prompt if isinstance(prompt, Sequence) and not isinstance(prompt, str) else ()
    for message in reversed(messages):
        if not isinstance(message, Mapping):
            return None
        if message.get("role") == "user":
            said = message.get("content")
            parts = said if isinstance(said, Sequence) and not isinstance(said, str) else ()
            text = "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))
            return source_of(said) or said if isinstance(said, str) else text
    return None


# Which spans there are


class Spans(NamedTuple):
    """The spans of a text, each value once."""

    units: list[tuple[int, int]]
    """Where the words and signs of the text begin and end."""
    values: list[str]
    ranges: list[tuple[int, int]]
    """The first and last unit of each span, where it occurs first."""

    def offsets(self, index: int) -> tuple[int, int]:
        """Return where a span begins and ends in the text."""
        first, last = self.ranges[index]
        return self.units[first][0], self.units[last][1]


@lru_cache(maxsize=16)
def find_spans(node: VerbatimNode) -> Spans:
    """Find the spans that are values of a node: words, with the signs around and between them, within a paragraph."""
    text = node.text or ""
    units, are_words = _units_of(text)
    if len(units) * node.max_words > _MAX_SPANS:
        raise LimitError(
            f"text: {len(units):,} words and signs are too many for verbatim values of up to {node.max_words} of them"
        )
    # Up to which unit a span may go that begins before it.
    ends = [0] * len(units)
    for i in reversed(range(len(units))):
        is_last = i + 1 == len(units) or _is_break(text[units[i][1] : units[i + 1][0]])
        ends[i] = i + 1 if is_last else ends[i + 1]
    matches = None if node.content is None else _Matches(node.content, text)
    found: dict[str, tuple[int, int]] = {}
    for i, (start, _) in enumerate(units):
        has_word, stop = False, min(ends[i], i + node.max_words)
        if matches is not None:
            matches.begin(start, min(units[stop - 1][1], start + node.max_length))
        for j in range(i, stop):
            has_word, end = has_word or are_words[j], units[j][1]
            if end - start > node.max_length:
                break
            if has_word and end - start >= node.min_length and (matches is None or matches.has(end)):
                found.setdefault(text[start:end], (i, j))
    return Spans(units, [*found], [*found.values()])


@lru_cache(maxsize=16)
def beginnings(node: VerbatimNode) -> list[str]:
    """Return the signs with which the spans of a node begin, as JSON has them."""
    return [*dict.fromkeys(signs_before(_escaped(value[:4]))[:4] for value in find_spans(node).values)]


class _Matches:
    """The parts of a text that match a pattern, which is about their JSON."""

    def __init__(self, content: Expression, text: str) -> None:
        self._written = [*map(_escaped, text)]
        self._at = [*accumulate(map(len, self._written), initial=0)]
        self._matcher = Matcher(content)
        self._start = self._ends = 0

    def begin(self, start: int, end: int) -> None:
        """Match what begins at a character, up to another one."""
        try:
            self._start, self._ends = start, self._matcher.ends("".join(self._written[start:end]))
        except ValueError as error:
            raise LimitError(f"text: a pattern or format of a verbatim value is sought in it, and {error}") from error

    def has(self, end: int) -> bool:
        """Return whether the part to a character matches."""
        return bool(self._ends >> self._at[end] - self._at[self._start] & 1)


def _units_of(text: str) -> tuple[list[tuple[int, int]], list[bool]]:
    """Return where words and signs begin and end, and which are words. Equal signs in a row are one."""
    units: list[tuple[int, int]] = []
    are_words: list[bool] = []
    last = ""
    for i, char in enumerate(text):
        kind = _kind(char)
        if kind == "mark" and last:
            kind = last
            is_new = False
        else:
            kind = "word" if kind == "mark" else kind
            is_new = kind != last or kind == "wide"
        if kind and is_new:
            units.append((i, i + 1))
            are_words.append(kind in ("word", "wide"))
        elif kind:
            units[-1] = units[-1][0], i + 1
        last = kind
    return units, are_words


@lru_cache(maxsize=4096)
def _kind(char: str) -> str:
    """Return "word" or "wide" for a letter or digit, "mark" for what joins what is before it, or "" for white space.

    Others, which are signs, are their own kind. A "wide" letter is of a script without spaces, and a word by itself.
    """
    if char.isspace():
        return ""
    if unicodedata.category(char)[0] == "M" or char in "\u200c\u200d":
        return "mark"
    if not (char.isalnum() or char == "_"):
        return char
    name = unicodedata.name(char, "")
    return "wide" if name.startswith(_WITHOUT_SPACES) else "word"


_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


def _is_break(space: str) -> bool:
    """Return whether white space has an empty line."""
    return len(space.splitlines()) + space.endswith(("\n", "\r")) > 2


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


# How they are spelled


class _Row:
    """The tokens of a text, and the bytes of the text where they end."""

    def __init__(self, tokens: list[int], ends: list[int]) -> None:
        self._tokens, self._ends = tokens, ends
        self._at = {0: 0} | {end: n for n, end in enumerate(ends, 1)}

    def before(self, end: int) -> list[int] | None:
        """Return the tokens before a byte; None if it is inside one."""
        n = self._at.get(end)
        return None if n is None else self._tokens[:n]

    def after(self, start: int, covered: int) -> list[int] | None:
        """Return the tokens from a byte on, until another byte is covered; None if it is inside one."""
        n = self._at.get(start)
        return None if n is None else self._tokens[n : bisect_left(self._ends, covered) + 1]


def _tokenize(vocab: _core.Vocab, texts: Sequence[bytes]) -> list[_Row]:
    """Tokenize texts as parts of a longer one."""
    line = b"\n" if line_break(vocab) else b""  # after it, no space is put before the text
    tokens, offsets = vocab.tokenize([line + text for text in texts], "text")
    sizes = {token: len(vocab.detokenize([token])) for token in np.unique(tokens).tolist()}
    flat, rows = tokens.tolist(), []
    for text, (start, stop) in zip(texts, pairwise(offsets.tolist()), strict=True):
        row = flat[start:stop]
        ends = [*accumulate((sizes[token] for token in reversed(row)), initial=0)]
        n = bisect_left(ends, len(text))  # tokens of the text, without those of the line
        if ends[n] != len(text):
            raise VocabularyError(f"text: {text.decode()!r} cannot be spelled inside another in this vocabulary")
        rows.append(_Row(row[len(row) - n :], [len(text) - end for end in reversed(ends[:n])]))
    return rows


def spell_spans(vocab: _core.Vocab, node: VerbatimNode, opening: bytes, followers: Iterable[str]) -> Spelled:
    """Spell the spans of a node after the text of an opening token, each with its closing quote before any follower."""
    spans, text = find_spans(node), node.text or ""
    closings = [f'"{follower}'.encode() for follower in followers]
    bare = [_escaped(text[start:end]).encode() for start, end in spans.units]
    befores = [0, *(end for _, end in spans.units)]
    led = [_escaped(text[before:end]).encode() for before, (_, end) in zip(befores, spans.units, strict=False)]
    ends = [*accumulate(map(len, led))]

    longest = dict(spans.ranges)
    texts = [opening + bare[first] + b"".join(led[first + 1 : last + 1]) for first, last in longest.items()]
    starts = dict(zip(longest, _tokenize(vocab, texts), strict=True))
    lasts = dict.fromkeys(last for first, last in spans.ranges if first < last)
    # The sign or word before the last one is there to be a neighbour.
    rows = iter(_tokenize(vocab, [bare[last - 1] + led[last] + closing for last in lasts for closing in closings]))
    tails: dict[int, list[list[int] | None]] = {}
    for last in lasts:
        at = len(bare[last - 1])
        tails[last] = [next(rows).after(at, at + len(led[last]) + 1) for _ in closings]

    unforced = [opening + _escaped(value).encode() + b'"' for value in spans.values]
    members: dict[tuple[int, tuple[int, ...]], None] = {}
    alone: list[tuple[int, bytes]] = []  # tokenized whole
    for option, (first, last) in enumerate(spans.ranges):
        at = len(opening) + len(bare[first]) + ends[last - 1] - ends[first]
        head = starts[first].before(at) if first < last else None
        for closing, tail in zip(closings, tails[last] if head else [None] * len(closings), strict=True):
            if head and tail:
                members[option, (*head, *tail)] = None
            else:
                alone.append((option, closing))
    for (option, _), row in zip(alone, _tokenize(vocab, [unforced[i][:-1] + end for i, end in alone]), strict=True):
        members[option, (*(row.after(0, len(unforced[option])) or ()),)] = None
    return Spelled(vocab, 0, [], [[*row] for _, row in members], [option for option, _ in members], unforced)


# The nodes of a record from a text


def with_text(node: Node, text: str | None) -> Node:
    """Return a node whose verbatim values are spans of a text, without optional parts that have none.

    ArgumentError if there is no text, or a part that is required has no span in it.
    """
    if not has_verbatim(node):
        return node
    if text is None:
        raise ArgumentError("text: missing; give the text that verbatim values are taken from")
    encode(text, "text")
    binding = _Binding(text)
    bound = binding.bind(node, "")
    if bound is None:
        raise ArgumentError(f"text: no part of it can be the verbatim value record{binding.missing}")
    return bound


def check_used(text: object, nodes: Iterable[Node]) -> None:
    """Raise ArgumentError if a text is given and no value is verbatim."""
    if text is not None and not any(map(has_verbatim, nodes)):
        raise ArgumentError("text: has no effect, as no value is verbatim")


@lru_cache(maxsize=4096)
def has_verbatim(node: Node) -> bool:
    """Return whether a node has a verbatim value."""
    return isinstance(node, VerbatimNode) or any(map(has_verbatim, _parts(node)))


def _parts(node: Node) -> list[Node]:
    if isinstance(node, Union):
        return [*node.options]
    if isinstance(node, Object):
        return [field.node for field in node.fields]
    if isinstance(node, Map):
        return [node.node]
    return [*node.heads, *([] if node.item is None else [node.item])] if isinstance(node, Array) else []


class _Binding:
    """Binds the nodes of a schema to a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._known: dict[Node, Node | None] = {}
        self.missing = ""
        """Where the last value is that has no span."""

    def bind(self, node: Node, pointer: str) -> Node | None:
        """Return a node of the text; None if it has no value there."""
        if not has_verbatim(node):
            return node
        if node not in self._known:
            self._known[node] = self._bind(node, pointer)
        return self._known[node]

    def _bind(self, node: Node, pointer: str) -> Node | None:
        if isinstance(node, VerbatimNode):
            of_text = replace(node, text=self._text)
            if find_spans(of_text).values:
                return of_text
            self.missing = pointer
            return None
        if isinstance(node, Union):
            options = [bound for option in node.options if (bound := self.bind(option, pointer)) is not None]
            return Union(tuple(options)) if len(options) > 1 else next(iter(options), None)
        if isinstance(node, Object):
            fields = [(field, self.bind(field.node, inside(pointer, field.name))) for field in node.fields]
            if any(bound is None and field.is_required for field, bound in fields):
                return None
            return Object(tuple(field._replace(node=bound) for field, bound in fields if bound is not None))
        if isinstance(node, Map):
            value = self.bind(node.node, pointer)
            return replace(node, node=value) if value is not None else None if node.min_items else Object(())
        assert isinstance(node, Array)
        heads = [self.bind(head, inside(pointer, i)) for i, head in enumerate(node.heads)]
        whole = [*heads[: heads.index(None)]] if None in heads else heads
        item = (
            None if node.item is None or len(whole) < len(heads) else self.bind(node.item, inside(pointer, len(whole)))
        )
        most = node.max_items if item is not None else min(len(whole), node.max_items)
        return None if most < node.min_items else replace(node, heads=tuple(whole), item=item, max_items=most)  # type: ignore[arg-type]
