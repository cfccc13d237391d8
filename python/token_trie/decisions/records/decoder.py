"""Goes through a plan: writes what is forced, decides what is a choice, lets the model write the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from token_trie.decisions.records.ends import StringEnd, value_end
from token_trie.decisions.records.gbnf import Expression, Matcher, quote
from token_trie.decisions.records.grammar import BEHIND
from token_trie.decisions.records.layout import (
    Content,
    Entry,
    Items,
    Layout,
    Position,
    Rest,
    Way,
    Whole,
    beginnings,
    ways,
)
from token_trie.decisions.records.plan import Node, String
from token_trie.decisions.records.writer import Writer
from token_trie.errors import GrammarError, LimitError

_N_BEHIND = 12  # characters, enough to tell how the last token before them is spelled


class RecordDecoder:
    """One record."""

    def __init__(
        self, writer: Writer, layout: Layout, max_tokens: int, on_text: Callable[[str], object] | None
    ) -> None:
        self._writer = writer
        self._layout = layout
        self._max_tokens = max_tokens
        self._on_text = on_text
        self._n_told = 0
        self.probabilities: dict[str, float] = {}
        self.truncated: list[str] = []

    def run(self, node: Node, end: str = "") -> str:
        """Write a value; return its text. What will stand behind it tells how its last token is spelled."""
        self._end = end
        begin = len(self._writer.text)
        waiting: list[Rest] = [Whole(node, Position())]
        while waiting:
            rest = waiting.pop()
            if isinstance(rest, Content):
                self._write_string(rest.node, rest.position.pointer)
            elif isinstance(rest, Entry):
                name = self._write_string(rest.node.key, rest.position.pointer)
                self._writer.write(self._layout.colon)
                waiting.append(Items(rest.node, rest.position, rest.n + 1))
                waiting.append(Whole(rest.node.node, rest.position.inside(name)))
            else:
                way = self._decide(ways(rest, self._layout), rest.position.pointer, waiting)
                waiting.extend(reversed(way.rests))
            self._tell()
        return self._writer.text[begin:]

    def choose(self, texts: tuple[str, ...], behind: str) -> tuple[int, float]:
        """Write one of several texts, with the same behind all of them; return its index and probability."""
        followers = ((behind,),) * len(texts)
        index, logprob = self._writer.choose(texts, followers) if len(texts) > 1 else (0, 0.0)
        if len(texts) == 1:
            self._writer.write(texts[0])
        self._tell()
        return index, math.exp(logprob)

    def _decide(self, options: list[Way], pointer: str, waiting: list[Rest]) -> Way:
        if any(way.slot is not None for way in options):
            return self._write_value(options, pointer)
        if len(options) == 1:
            self._writer.write(options[0].text)
            return options[0]
        of_text = {way.text: way for way in reversed(options)}
        texts = tuple(dict.fromkeys(way.text for way in options))
        if len(texts) == 1:
            self._writer.write(texts[0])
            return of_text[texts[0]]
        all_rests = [of_text[text].rests for text in texts]
        of_rests = {rests: followers([*waiting, *reversed(rests)], self._layout, self._end) for rests in set(all_rests)}
        behind = tuple(of_rests[rests] for rests in all_rests)
        index, logprob = self._writer.choose(texts, behind, by_steps=any(way.by_digits for way in options))
        way = of_text[texts[index]]
        self.probabilities[way.pointer] = self.probabilities.get(way.pointer, 1.0) * math.exp(logprob)
        return way

    def _write_value(self, options: list[Way], pointer: str) -> Way:
        """Let the model write a value under a grammar, or one of the texts that may stand in its place."""
        free = next(way for way in options if way.slot is not None)
        slot = free.slot
        assert slot is not None
        texts = [way for way in options if way.slot is None]
        bodies = [f"( {slot.grammar.body} ) {BEHIND}"]
        bodies += [f"{quote(way.text)} ( [\\x00-\\U0010FFFF]* )" for way in texts]

        def find_end(text: str) -> int | None:
            way = next((way for way in texts if text.startswith(way.text)), None)
            if way is not None:
                return len(way.text)
            return value_end(text) if text[:1] in slot.begins_with else None

        text = self._generate(" | ".join(bodies), slot.grammar.rules, pointer, find_end, slot.value)
        chosen = next((way for way in texts if way.text == text), None)
        return chosen or replace(free, rests=free.rests[1:])

    def _write_string(self, node: String, pointer: str) -> str:
        find_end = StringEnd(node.min_length, node.max_length)
        content = None if node.can_end_anywhere else node.content
        text = self._generate(f'( {node.grammar.body} ) "\\"" {BEHIND}', node.grammar.rules, pointer, find_end, content)
        self._writer.write('"')
        return text

    def _generate(
        self,
        body: str,
        rules: str,
        pointer: str,
        find_end: Callable[[str], int | None],
        content: Expression | None,
    ) -> str:
        """Let the model write until an end is found; what has none at `max_tokens` ends as its content lets it."""
        try:
            generated = self._writer.generate(body, rules, self._max_tokens, find_end)
        except GrammarError as error:
            raise GrammarError(f"record{pointer}: {error}") from error
        end = generated.end
        if (
            end is not None
            and isinstance(find_end, StringEnd)
            and content is not None
            and generated.text[end : end + 1] != '"'
        ):
            end = _last_end(generated.text[:end], content, find_end)
        elif end is None:
            end = _last_end(generated.text, content, find_end)
            self.truncated.append(pointer)
        if end is None:
            raise LimitError(f"record{pointer}: no end after {generated.n_tokens} tokens: {generated.text[-40:]!r}")
        return self._writer.keep(generated, end)

    def _tell(self) -> None:
        if self._on_text is not None and self._n_told < len(self._writer.text):
            piece = self._writer.text[self._n_told :]
            self._n_told = len(self._writer.text)
            self._on_text(piece)


def _last_end(text: str, content: Expression | None, find_end: Callable[[str], int | None]) -> int | None:
    """Return the last position where what was generated may end; None where it may not."""
    if content is None:
        return find_end.last_whole if isinstance(find_end, StringEnd) and find_end.is_long_enough else None
    try:
        ends = Matcher(content).ends(text)
    except (ValueError, RecursionError):
        return None
    return ends.bit_length() - 1 if ends else None


def followers(rests: list[Rest], layout: Layout, end: str) -> tuple[str, ...]:
    """Return how what is left may go on, the last of it first: as far as it is forced, and where nothing is, each way.

    `end` stands behind all of it.
    """
    waiting = list(rests)
    text = ""
    while waiting and len(text) < _N_BEHIND:
        rest = waiting.pop()
        if isinstance(rest, Items) and rest.taken and rest.n < rest.node.max_items:
            # Of a set of which each may come once, the ways differ by what is out; they begin alike.
            return (text,) if text else beginnings(rest, layout)
        found = [] if isinstance(rest, (Content, Entry)) else ways(rest, layout)
        if len(found) != 1 or found[0].slot is not None:
            return (text,) if text or not found else tuple(dict.fromkeys(way.text[:1] for way in found))
        text += found[0].text
        waiting.extend(reversed(found[0].rests))
    return (text if waiting else text + end,)
