"""Writes a record: forced text, decisions and generated values in order.

Decided text stays open until the next decision, and is tokenized together with its options:

    sequence          … [Answer] [:] [{"] [city] [":"] [Oslo]
    open text                                                 ","unit":"
    options                                                             C"   F"
    followers                                                                  ,"days":
    tokenized                                                 [","] [unit] [":"] [C] [","] …
                                                              [","] [unit] [":"] [F] [","] …
    forced            the common beginning                    [","] [unit] [":"]
    trie              the rest, to the option's end                                [C] [","], [F] [","]
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.decisions.options import RecordMode
from token_trie.errors import CancelledError, ContextError, GrammarError, LimitError, VocabularyError
from token_trie.llama.query import Query, Sampling
from token_trie.llama.stream import Generation, Stream
from token_trie.native.core import _core
from token_trie.records.gbnf import Expression, Matcher, quote
from token_trie.records.plan import (
    AFTER_VALUE,
    LAYOUTS,
    Content,
    Entry,
    Items,
    Layout,
    Node,
    Position,
    Rest,
    String,
    Way,
    Whole,
    beginnings,
    is_choice,
    item_choices,
    layout_choices,
    ways,
)
from token_trie.sets.lru import Memory
from token_trie.sets.spelling import Seam, inner_seam, joined
from token_trie.sets.trie import TokenTrie

_DECODER = json.JSONDecoder()
_NUMBER = re.compile(r"-?[0-9][0-9.eE+-]*")


@dataclass
class StringEnd:
    """Finds the end of a JSON string in growing text: its closing quote or its maximum length."""

    min_length: int
    max_length: int | None
    n_characters: int = 0
    last_whole: int = 0
    """The position after the last whole character."""
    _at: int = 0
    _until: int = 0  # the earliest end of an escape

    def __call__(self, text: str) -> int | None:
        """Return the end position, or None."""
        while self._at < len(text) and self.n_characters != self.max_length:
            char, is_escaped = text[self._at], self._at < self._until
            if char == '"' and not is_escaped:
                return self._at
            self._at += 1
            if not is_escaped and char == "\\":
                self._until = self._at + 1
            elif is_escaped and char == "u" and self._at == self._until == self.last_whole + 2:
                self._until += 4
            if self._at >= self._until:
                self.n_characters += 1
                self.last_whole = self._at
        return self._at if self.n_characters == self.max_length else None

    @property
    def is_long_enough(self) -> bool:
        """Whether the string may end here."""
        return self.n_characters >= self.min_length


def value_end(text: str) -> int | None:
    """Return the end of a JSON value, or None; a number ends before another character."""
    number = _NUMBER.match(text)
    if number is not None:
        return number.end() if number.end() < len(text) else None
    try:
        end: int = _DECODER.raw_decode(text)[1]
    except (ValueError, RecursionError):
        return None
    return end


Followers: TypeAlias = tuple[tuple[str, ...], ...]
"""For each option, the possible beginnings of the text after it."""

_MAX_SETS, _MAX_TEXTS = 512, 100_000
_MAX_OPEN = 1 << 14
"""Maximum bytes of open text; more is written to the sequence, whose length is limited."""


class Spelled(NamedTuple):
    """Tokens of the options after open text."""

    n_back: int
    """Tokens at the end of the sequence that are replaced."""
    forced: list[int]
    """Their replacement, which all options begin with."""
    trie: TokenTrie | None
    """The remaining tokens; None for a single option, which is forced."""
    option_of: npt.NDArray[np.int64]
    """The option of each leaf."""
    rests: list[bytes]
    """Text of each option after the forced tokens."""


class Generated(NamedTuple):
    """Text that was generated under a grammar."""

    text: str
    end: int | None
    """The end position; None if no end was found."""
    n_tokens: int


class Writer:
    """The open text after a stream's sequence.

    A given prompt replaces the sequence, and is evaluated in one batch with the forced text after it.
    """

    def __init__(
        self,
        stream: Stream,
        mode: RecordMode,
        sampling: Sampling,
        max_nodes: int | None,
        prompt: list[int] | None = None,
    ) -> None:
        self._stream = stream
        self._mode = mode
        self._max_nodes = max_nodes or 0
        self._sampling = sampling
        self._tokens = stream.tokens if prompt is None else prompt
        self._is_prefilled = prompt is None
        self._n_settled = len(self._tokens)  # tokens before the open text
        self._open = b""
        self._n_cancels = stream.n_cancels
        self.text = ""
        self.n_choices = self.n_searched = self.n_evaluated = self.n_unproved = self.n_ends = 0

    @property
    def is_exact(self) -> bool:
        """Whether whole texts are searched for."""
        return self._mode == "exact"

    def write(self, text: str) -> None:
        """Append text."""
        self._check_cancelled()
        self._open += text.encode()
        self.text += text
        if len(self._open) > _MAX_OPEN:
            self.flush()

    def choose(self, texts: tuple[str, ...], followers: Followers, *, by_steps: bool = False) -> tuple[int, float]:
        """Write one of several texts; return its index, and the logarithm of its probability.

        The followers decide how the last token of each is spelled. With `by_steps`, exact mode takes the best token at
        each branch point instead of searching for the best text.
        """
        self._check_cancelled()
        mode: RecordMode = "greedy" if by_steps and self._mode == "exact" else self._mode
        spelled = self._stream.with_model(lambda vocab, known: self._spell(vocab, known, texts, followers, mode))
        assert spelled.trie is not None
        self._settle(spelled)
        leaf, logprob = self._search(spelled.trie) if mode == "exact" else self._take_steps(spelled.trie, mode)
        index = int(spelled.option_of[leaf])
        self._open = spelled.rests[index]
        self.text += texts[index]
        self.n_choices += 1
        return index, logprob

    def generate(self, body: str, rules: str, max_tokens: int, find_end: Callable[[str], int | None]) -> Generated:
        """Let the model write under a grammar until an end is found; then pass the result to `keep`.

        If the context is nearly full, some of it is reserved for the rest of the record. A space at the end of the open
        text is generated by the model, because words begin with one.
        """
        self._check_cancelled()
        stream = self._stream
        lead = " " if self._open.endswith(b" ") else ""
        self._open = self._open.removesuffix(b" ")
        self.flush()
        stream.clear_span()
        quoted = f'"{lead}"' if lead else ""
        stream.set_grammar(f"root ::= {quoted} ( {body} )\n{rules}", "root")
        self._lead = len(lead)
        self._ends: list[int] = []
        self._is_spelled_out = False
        written = ""
        end = None
        n_left = stream.n_ctx_max - len(self._tokens)
        n_kept = min(max(n_left // 8, 16), 64)
        steps = Generation(stream, min(max_tokens, max(n_left - n_kept, 1)), self._sampling)
        for step in steps:
            self._tokens.append(step.token)
            piece = step.text or self._control(step.token)
            # Invalid UTF-8 is written to the sequence as its replacement character.
            self._is_spelled_out = self._is_spelled_out or "\ufffd" in piece
            written += piece
            self._ends.append(len(written))
            end = find_end(written[self._lead :]) if len(written) >= self._lead else None
            if end is not None:
                steps.close()
                break
        else:
            if (stop := stream.state.stop) == "cancelled":
                raise CancelledError("the record was cancelled")
            self.n_ends += stop == "end"
            end = len(written) - self._lead if stop in ("end", "complete") else None
        return Generated(written[self._lead :], end, len(self._ends))

    def keep(self, generated: Generated, end: int) -> str:
        """Keep the generated text up to a position; return it."""
        text = generated.text[:end]
        at = end + self._lead
        n = 0 if self._is_spelled_out else sum(e <= at for e in self._ends)
        while n and self._ends[n - 1] == (self._ends[n - 2] if n > 1 else 0):
            n -= 1  # an incomplete character has no text of its own
        begin = self._ends[n - 1] if n else 0
        self._n_settled += n
        self._open = (" " * self._lead + text)[begin:].encode()
        self.text += text
        return text

    def flush(self) -> None:
        """Write the open text to the sequence."""
        if self._open:
            self._settle(
                self._stream.with_model(lambda vocab, known: self._spell(vocab, known, ("",), (("",),), self._mode))
            )
        else:
            self._put(self._n_settled, [])

    def _take_steps(self, trie: TokenTrie, mode: Literal["greedy", "sampled"]) -> tuple[int, float]:
        answer = self._stream.answer(Query(mode, trie, sampling=self._sampling))
        self._tokens += answer.tokens
        return answer.leaf, answer.logprob

    def _search(self, trie: TokenTrie) -> tuple[int, float]:
        found = self._stream.answer(Query("best", trie, max_nodes=self._max_nodes))
        self.n_searched += found.figures.n_passes
        self.n_evaluated += found.figures.n_evaluated
        self.n_unproved += found.figures.gap > 0
        if len(found.leaves) == 0:
            raise ContextError("the model gives no way to go on a finite score")
        return found.leaf, found.logprob

    def _settle(self, spelled: Spelled) -> None:
        self._put(self._n_settled - spelled.n_back, spelled.forced)
        self._open = b""

    def _put(self, n_kept: int, tokens: list[int]) -> None:
        """Replace the sequence after its first tokens, and settle it; equal tokens are kept."""
        old = self._tokens
        whole = old[:n_kept] + tokens
        if not self._is_prefilled:
            self._stream.prefill(whole)
            self._is_prefilled = True
            old = whole
        n_same = n_kept + _common_prefix(whole[n_kept:], old[n_kept:])
        if n_same < max(len(whole), len(old)):
            self._stream.splice(n_same, whole[n_same:])
        self._tokens = whole
        self._n_settled = len(whole)

    def _spell(
        self,
        vocab: _core.Vocab,
        known: dict[object, Any],
        texts: tuple[str, ...],
        followers: Followers,
        mode: RecordMode,
    ) -> Spelled:
        before = self._tokens[max(0, self._n_settled - 64) : self._n_settled]
        memory: Memory[Spelled] = known.setdefault("records", Memory(_MAX_SETS, _MAX_TEXTS))
        seam = inner_seam(vocab, before)
        each_way = mode == "exact"

        def make() -> Spelled:
            return _spell(vocab, seam, self._open, texts, followers, each_way)

        spelled = memory.get((seam, self._open, texts, followers, each_way), len(texts), make)
        if spelled.n_back >= len(before) and not spelled.forced:
            # If the text merges with all tokens before it, keep them: the model continues from a token.
            seam = inner_seam(vocab, [])
            spelled = make()
        return spelled

    def _control(self, token: int) -> str:
        """Return the text of a control token, which grammars accept as text; otherwise an empty text."""

        def spell(vocab: _core.Vocab, _: object) -> str:
            is_control = vocab.is_control(token)
            return vocab.detokenize([token], True).decode(errors="replace") if is_control else ""

        text: str = self._stream.with_model(spell)
        self._is_spelled_out = self._is_spelled_out or bool(text)
        return text

    def _check_cancelled(self) -> None:
        if self._stream.n_cancels != self._n_cancels:
            raise CancelledError("the record was cancelled")


def _spell(
    vocab: _core.Vocab, seam: Seam, text: bytes, texts: tuple[str, ...], followers: Followers, each_way: bool
) -> Spelled:
    """Tokenize the options after open text."""
    ordered = sorted(texts)
    is_open = any(b.startswith(a) for a, b in pairwise(ordered))
    options = [
        (i, seam.text + text + option.encode(), after.encode())
        for i, (option, all_after) in enumerate(zip(texts, followers, strict=True))
        # In the step-by-step modes, do not decide the follower twice if no option depends on it.
        for after in (all_after if each_way or is_open or len(all_after) == 1 else ("",))
    ]
    tokens, offsets = vocab.tokenize([option + after for _, option, after in options], "record")
    rows = [tokens[offsets[i] : offsets[i + 1]].tolist() for i in range(len(options))]
    whole = rows[0]
    # A closing quote distinguishes a text from longer ones; without longer ones the end is not scored.
    n_distinct = [len(option) - (each_way and _is_alone(texts[i], ordered)) for i, option, _ in options]
    n_needed = [
        _n_covering(vocab, row, len(option) + len(after), n if n < len(option) else n + (is_open and after != b""))
        for row, (_, option, after), n in zip(rows, options, n_distinct, strict=True)
    ]
    n_least = min(n_needed) - (len(texts) > 1)
    n_same = _common_prefix(*(row[:n_least] for row in rows))
    n_tail = _common_prefix(whole[:n_same], seam.tail)
    rests = [b""] * len(texts)
    for (i, option, after), row in zip(options, rows, strict=True):
        rest = vocab.detokenize(row[n_same:])
        if not (option + after).endswith(rest):
            raise VocabularyError(f"record: {texts[i]!r} cannot be spelled in this vocabulary")
        rests[i] = option[len(option) + len(after) - len(rest) :]
    forced = whole[n_tail:n_same]
    n_back = len(seam.tail) - n_tail
    if len(texts) == 1:
        return Spelled(n_back, forced, None, np.zeros(0, np.int64), rests)
    members = [row[n_same:n] for row, n in zip(rows, n_needed, strict=True)]
    core = _core.Trie.build(*joined(members), [str(i) for i in range(len(rows))], vocab.fingerprint())
    trie = TokenTrie.of_core(core)
    option_of = np.array([options[int(core.name(leaf))][0] for leaf in range(core.n_leaves)], np.int64)
    return Spelled(n_back, forced, trie, option_of, rests)


def _is_alone(text: str, ordered: list[str]) -> bool:
    """Return whether a text ends in a quote and its content begins no other of the ordered texts."""
    content = text.removesuffix('"')
    first = bisect_left(ordered, content)
    return content != text and not any(
        other.startswith(content) for other in ordered[first : first + 2] if other != text
    )


def _n_covering(vocab: _core.Vocab, tokens: list[int], n_bytes: int, n_wanted: int) -> int:
    """Count the tokens that cover the first bytes of a text."""
    n = len(tokens)
    while n > 1 and (before := n_bytes - len(vocab.detokenize(tokens[n - 1 : n]))) >= n_wanted:
        n_bytes = before
        n -= 1
    return n


def _common_prefix(*rows: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*rows, strict=False)))


_N_FOLLOWING = 12  # characters that decide how the last token before them is spelled


class RecordDecoder:
    """Writes one record by its plan: forced text, decisions, and generated values."""

    def __init__(
        self, writer: Writer, layout: Layout | None, max_tokens: int, on_text: Callable[[str], object] | None
    ) -> None:
        self._writer = writer
        self._layout_given = layout  # None: the model chooses
        self._layout = layout or LAYOUTS[0]
        self._ahead = ""  # text of the layout's choice, which the next ways begin with
        self._max_tokens = max_tokens
        self._on_text = on_text
        self._n_reported = 0
        self.probabilities: dict[str, float] = {}
        self.truncated: list[str] = []

    def run(self, node: Node, end: str = "") -> str:
        """Write a value; return its text. `end`, the text after it, decides how its last token is spelled."""
        self._end = end
        begin = len(self._writer.text)
        if self._layout_given is None:
            self._choose_layout(node)
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
                way = self._decide(rest, waiting)
                waiting.extend(reversed(way.rests))
            self._report()
        return self._writer.text[begin:]

    def choose(self, texts: tuple[str, ...], after: str) -> tuple[int, float]:
        """Write one of several texts, with the same text after each; return its index and probability."""
        followers = ((after,),) * len(texts)
        index, logprob = self._writer.choose(texts, followers) if len(texts) > 1 else (0, 0.0)
        if len(texts) == 1:
            self._writer.write(texts[0])
        self._report()
        return index, math.exp(logprob)

    def _decide(self, rest: Rest, waiting: list[Rest]) -> Way:
        """Write one of the ways to continue.

        Values are chosen whole. What the schema dictates is not charged for: whether a field, an item or an alternative
        follows is decided by the token that the model would write there.
        """
        options, pointer = self._left(ways(rest, self._layout)), rest.position.pointer
        if any(way.slot is not None for way in options):
            return self._write_value(options, pointer)
        if len(options) == 1:
            self._writer.write(options[0].text)
            return options[0]
        listed = item_choices(rest, options) if self._writer.is_exact else None
        if listed is not None:
            begin, end = listed
            firsts = sorted({way.text[len(begin) :][:1] for way in options[:-1]})
            last = followers(waiting, self._layout, self._end)
            index, logprob = self._writer.choose((begin, end.text), (tuple(firsts), last), by_steps=True)
            self._count(end.pointer, logprob)
            if index == 1:
                return end
            options = [replace(way, text=way.text[len(begin) :]) for way in options[:-1]]
        of_text = {way.text: way for way in reversed(options)}
        texts = tuple(dict.fromkeys(way.text for way in options))
        if len(texts) == 1:
            self._writer.write(texts[0])
            return of_text[texts[0]]
        all_rests = [of_text[text].rests for text in texts]
        of_rests = {rests: followers([*waiting, *reversed(rests)], self._layout, self._end) for rests in set(all_rests)}
        after = tuple(of_rests[rests] for rests in all_rests)
        by_steps = any(way.by_digits for way in options) or not (
            listed or (isinstance(rest, Whole) and is_choice(rest.node))
        )
        index, logprob = self._writer.choose(texts, after, by_steps=by_steps)
        way = of_text[texts[index]]
        self._count(way.pointer, logprob)
        return way

    def _choose_layout(self, node: Node) -> None:
        texts, after = layout_choices(node)
        if texts:
            index, _ = self._writer.choose(texts, after, by_steps=True)
            self._layout, self._ahead = LAYOUTS[index], texts[index]

    def _left(self, options: list[Way]) -> list[Way]:
        """Return ways without the text that is written already."""
        ahead, self._ahead = self._ahead, ""
        if len(options) == 1 and ahead.startswith(options[0].text):
            self._ahead = ahead.removeprefix(options[0].text)
            return [replace(options[0], text="")]
        return [replace(way, text=way.text.removeprefix(ahead)) for way in options] if ahead else options

    def _count(self, pointer: str, logprob: float) -> None:
        self.probabilities[pointer] = self.probabilities.get(pointer, 1.0) * math.exp(logprob)

    def _write_value(self, options: list[Way], pointer: str) -> Way:
        """Let the model write a value under a grammar, or one of the alternative texts."""
        free = next(way for way in options if way.slot is not None)
        slot = free.slot
        assert slot is not None
        texts = [way for way in options if way.slot is None]
        bodies = [f"( {slot.grammar.body} ) {AFTER_VALUE}"]
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
        text = self._generate(
            f'( {node.grammar.body} ) "\\"" {AFTER_VALUE}', node.grammar.rules, pointer, find_end, content
        )
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
        """Let the model write until an end is found; at `max_tokens`, cut at the last valid end."""
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

    def _report(self) -> None:
        if self._on_text is not None and self._n_reported < len(self._writer.text):
            piece = self._writer.text[self._n_reported :]
            self._n_reported = len(self._writer.text)
            self._on_text(piece)


def _last_end(text: str, content: Expression | None, find_end: Callable[[str], int | None]) -> int | None:
    """Return the last position where generated text may end, or None."""
    if content is None:
        return find_end.last_whole if isinstance(find_end, StringEnd) and find_end.is_long_enough else None
    try:
        ends = Matcher(content).ends(text)
    except (ValueError, RecursionError):
        return None
    return ends.bit_length() - 1 if ends else None


def followers(rests: list[Rest], layout: Layout, end: str) -> tuple[str, ...]:
    """Return the possible beginnings of the rests (last first): the forced text, else each first character.

    `end` is the text after all rests.
    """
    waiting = list(rests)
    text = ""
    while waiting and len(text) < _N_FOLLOWING:
        rest = waiting.pop()
        if isinstance(rest, Items) and rest.taken and rest.n < rest.node.max_items:
            # Unique items: the remaining ways differ, their first characters do not.
            return (text,) if text else beginnings(rest, layout)
        found = [] if isinstance(rest, (Content, Entry)) else ways(rest, layout)
        if len(found) != 1 or found[0].slot is not None:
            return (text,) if text or not found else tuple(dict.fromkeys(way.text[:1] for way in found))
        text += found[0].text
        waiting.extend(reversed(found[0].rests))
    return (text if waiting else text + end,)
