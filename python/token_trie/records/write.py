"""Writes a record: forced text, decisions and generated values in order."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import cache, lru_cache
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

from token_trie.decisions.options import RecordMode, RecordOptions
from token_trie.errors import ContextError, GrammarError, LimitError
from token_trie.llama.query import Answer, AskOn, Plan, Query, Sampling
from token_trie.native.core import _core
from token_trie.native.ffi import lib
from token_trie.native.lifetime import LruCache, cache_in
from token_trie.native.options import nth_seed
from token_trie.plan import Model
from token_trie.records.gbnf import Expression, Grammar, Matcher, quote
from token_trie.records.nodes import (
    AFTER_VALUE,
    ARRAY,
    COMPACT,
    OBJECT,
    VALUE,
    Continuation,
    Layout,
    Map,
    Node,
    PendingFields,
    PendingItems,
    PendingPart,
    PendingString,
    PendingValue,
    Printer,
    Slot,
    String,
    VerbatimNode,
    continuations,
    inside,
)
from token_trie.records.spell import Alternatives, Spelled, signs_before, spell
from token_trie.records.verbatim import beginnings, find_spans, spell_spans, with_text
from token_trie.sets.tokenization import inner_seam

MAX_NESTING = 64
"""Depth at which a free value ends: some readers take no more, and Python's raises a RecursionError at a thousand."""
_DECODER = json.JSONDecoder()
_CHARACTER = r'(?:[^"\\]|\\u[0-9A-Fa-f]{4}|\\[^u])'
_CHARACTERS = re.compile(f"({_CHARACTER})|.", re.DOTALL)
_STRING = re.compile(f'"{_CHARACTER}*"?', re.DOTALL)
_PIECE = re.compile(rf'"{_CHARACTER}*("?)|[{{}}\[\],:]|[^\s"{{}}\[\],:]+', re.DOTALL)
_NUMBER = re.compile(r"-?[0-9][0-9.eE+-]*")


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


def close_value(text: str) -> tuple[int, str] | None:
    """Return where an unfinished JSON value may be cut, and the text that closes it there; None: nowhere."""
    found, closers, is_key = None, "", False
    for piece in _PIECE.finditer(text):
        first, is_open = piece[0][0], piece[1] == ""
        if first == "," or first == ":":
            is_key = first == "," and closers[:1] == "}"
        elif first in "{[":
            closers, is_key = ("}" if first == "{" else "]") + closers, first == "{"
            found = piece.end(), closers
        elif first in "}]":
            closers = closers[1:]
            found = piece.end(), closers
        elif is_open and not is_key:
            return piece.end(), '"' + closers
        elif not is_key and (first == '"' or piece.end() < len(text)):
            found = piece.end(), closers
    return found


class FreeText:
    """Text that the model writes: the content of a string or a value, under its grammar, or one of `others`.

    The others begin with other characters than a value does.
    """

    def __init__(self, node: String | Slot, grammar: Grammar, others: tuple[str, ...] = ()) -> None:
        closing = ' "\\""' if isinstance(node, String) else ""
        bodies = [f"( {grammar.body} ){closing} {AFTER_VALUE}"]
        bodies += [f"{quote(text)} ( [\\x00-\\U0010FFFF]* )" for text in others]
        self.body, self.rules = " | ".join(bodies), grammar.rules
        self._node, self._others = node, others

    def end(self, text: str) -> int | None:
        """Return the end position in a text that grows, or None; a string ends at its quote or maximum length."""
        node = self._node
        if isinstance(node, String):
            characters = _characters(text)[: node.max_length]
            at = sum(map(len, characters))
            return at if len(characters) == node.max_length or text[at : at + 1] == '"' else None
        if text[:1] in node.begins_with:
            return value_end(text)
        goes_on = any(other.startswith(text) and other != text for other in self._others)
        return None if goes_on else self._end_of_other(text)

    def is_full(self, text: str) -> bool:
        """Return whether an unfinished text has come to the greatest depth that readers of JSON take."""
        if isinstance(self._node, String) or text.count("[") + text.count("{") < MAX_NESTING:
            return False
        bare = _STRING.sub("", text)
        return sum(map(bare.count, "[{")) - sum(map(bare.count, "]}")) >= MAX_NESTING

    def cut(self, text: str, end: int | None) -> tuple[int, str] | None:
        """Return where the text is valid if cut, at its end or before, and what closes it there; None: nowhere."""
        node = self._node
        if isinstance(node, String):
            if end is None and node.can_end_anywhere:
                characters = _characters(text)
                end = sum(map(len, characters)) if len(characters) >= node.min_length else None
            elif not node.can_end_anywhere and (end is None or text[end : end + 1] != '"'):
                end = _last_end(node.content, text[:end])
        elif end is None:
            if any(other.startswith(text[:1]) for other in self._others):
                end = self._end_of_other(text)
            elif node.value in (VALUE, OBJECT, ARRAY) and (closed := close_value(text)):
                return closed
            else:
                end = _last_end(node.value, text)
        return None if end is None else (end, "")

    def _end_of_other(self, text: str) -> int | None:
        """Return the length of the longest of the other texts with which a text begins, or None."""
        return max((len(other) for other in self._others if text.startswith(other)), default=None)


def _characters(text: str) -> list[str]:
    """Return the whole characters with which a text begins, as a JSON string has them."""
    return [*takewhile(bool, _CHARACTERS.findall(text))]


def _last_end(content: Expression, text: str) -> int | None:
    """Return the last position where a text matches an expression, or None."""
    try:
        ends = Matcher(content).ends(text)
    except (ValueError, RecursionError):
        return None
    return ends.bit_length() - 1 if ends else None


_FORCED = Alternatives(("",), (("",),), ("",))
_MAX_KEPT, _MAX_TEXTS = 1024, 100_000
_MAX_OPEN = 1 << 14
"""Maximum bytes of open text; more is written to the sequence, whose length is limited."""


class Generated:
    """Text that the model writes token by token, until `find_end` returns its end position in the text so far.

    `lead` is text at its beginning that was decided before.
    """

    def __init__(
        self, vocab: _core.Vocab, lead: str, find_end: Callable[[str], int | None], tokens: Iterable[int] = ()
    ) -> None:
        self._vocab = vocab
        self._lead = lead
        self._find_end = find_end
        self._written = ""
        self._ends: list[int] = []  # where each token ends
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_spelled_out = False  # whether its text is tokenized again
        self.tokens: list[int] = []
        self.end: int | None = None
        """The end position; None if no end was found."""
        any(map(self.add, tokens))

    def add(self, token: int) -> bool:
        """Add a token; return whether the end is found."""
        written = self._vocab.detokenize([token])
        piece = self._decoder.decode(written)
        if not written:  # grammars accept a control or unknown token as its text
            piece = self._vocab.detokenize([token], True).decode(errors="replace")
            self._is_spelled_out = self._is_spelled_out or bool(piece)
        # Invalid UTF-8 is written to the sequence as its replacement character.
        self._is_spelled_out = self._is_spelled_out or "\ufffd" in piece
        self._written += piece
        self.tokens.append(token)
        self._ends.append(len(self._written))
        self.end = self._find_end(self.text) if len(self._written) >= len(self._lead) else None
        return self.end is not None

    @property
    def text(self) -> str:
        """The text after the lead."""
        return self._written[len(self._lead) :]

    def kept(self, end: int) -> tuple[list[int], str]:
        """Return the tokens that are kept if the text is cut, and the text after these tokens."""
        at = end + len(self._lead)
        n = 0 if self._is_spelled_out else sum(e <= at for e in self._ends)
        while n and self._ends[n - 1] == (self._ends[n - 2] if n > 1 else 0):
            n -= 1  # an incomplete character has no text of its own
        begin = self._ends[n - 1] if n else 0
        return self.tokens[:n], (self._lead + self.text[:end])[begin:]


_COSTS = ("n_choices", "n_branches", "n_free", "n_passes", "n_evaluated", "n_unproved")


Checkpoint: TypeAlias = tuple[list[int], bytes, str]
"""The tokens, the open text and the whole text of a `Writer`."""


class Writer:
    """Text after a prompt: the tokens that are decided, and the open text after them."""

    def __init__(self, model: Model, options: RecordOptions, tokens: list[int]) -> None:
        self._model = model
        self._known: LruCache[Any] = cache_in(model.known, "records", _MAX_KEPT, _MAX_TEXTS)
        self._mode: RecordMode = options.mode or "exact"
        self._max_nodes = options.max_nodes or 0
        self._sampling = options.settled(self._mode == "sampled")
        self._seed = options.seed
        self._n_drawn = 0
        self._open = b""
        self.is_exact = self._mode == "exact"
        """Whether values are decided by their whole texts."""
        self.tokens = tokens
        """Tokens before the open text."""
        self.text = ""
        self.cost = dict.fromkeys(_COSTS, 0)
        """Counts of `RecordStats`."""

    def write(self, text: str) -> None:
        """Append text."""
        self._open += text.encode()
        self.text += text
        if len(self._open) > _MAX_OPEN:
            self.flush()

    @property
    def checkpoint(self) -> Checkpoint:
        """The state to which `restore` goes back."""
        return self.tokens, self._open, self.text

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take back what was written after a checkpoint."""
        self.tokens, self._open, self.text = checkpoint

    def flush(self) -> None:
        """Spell the open text."""
        if self._open:
            (self.tokens, _), self._open = self._spell(_FORCED), b""
        if len(self.tokens) > self._model.n_ctx:
            raise ContextError(f"the record does not fit the context of {self._model.n_ctx:,} tokens")

    def choose(self, alternatives: Alternatives) -> Plan[tuple[int, float, float | None]]:
        """Write one of several texts.

        Returns
        -------
        tuple of int and two floats
            Index of the text, and the logarithms of the probabilities of its kind and of the text, which is None if no
            other is of this kind.
        """
        kind, of_kind, of_text = alternatives.kinds[0], 0.0, None
        if len(alternatives.parts) > 1:
            kind, of_kind = yield from self._choose_kind(alternatives)
        indices, part = alternatives.parts[kind]
        index = indices[0]
        if len(indices) > 1:
            tokens, spelled = self._spell(part)
            option, of_text = yield from self._choose_member(tokens, spelled, "exact")
            index = indices[option]
        else:
            self._open += alternatives.texts[index].encode()
        self.text += alternatives.texts[index]
        self.cost["n_choices"] += 1
        return index, of_kind, of_text

    def choose_span(self, node: VerbatimNode, followers: Iterable[str]) -> Plan[tuple[int, float]]:
        """Write one of the spans of a node and its closing quote; return its index and the log of its probability."""
        self.flush()
        vocab, tokens = self._model.vocab, self.tokens[:-1]
        # The token of the opening quote may have the beginning of the value too.
        opening = vocab.detokenize(self.tokens[-1:])
        key = node, opening, tuple(dict.fromkeys(map(signs_before, followers)))
        n = len(find_spans(node).values) * len(key[2])
        spelled: Spelled = self._known.get(key, n, lambda: spell_spans(vocab, *key))
        option, logprob = yield from self._choose_member(tokens, spelled, self._mode)
        self.text += spelled.unforced[option][len(opening) :].decode()
        self.cost["n_choices"] += 1
        return option, logprob

    def _choose_member(self, tokens: list[int], spelled: Spelled, mode: RecordMode) -> Plan[tuple[int, float]]:
        """Decide an option by its whole tokens, or in a mode that goes step by step; return it and its log-share."""
        query = Query("best", spelled.trie, max_nodes=self._max_nodes)
        if mode != "exact":
            query = Query(mode, spelled.trie, sampling=self._drawn())
        answer = yield from self._ask(tokens, query)
        if mode == "exact" and len(answer.leaves) == 0:
            raise ContextError("the model gives no way to go on a finite score")
        option = spelled.option_of(answer.leaf)
        self.tokens, self._open = tokens, spelled.unforced[option]
        return option, answer.logprob

    def _choose_kind(self, alternatives: Alternatives) -> Plan[tuple[Hashable, float]]:
        """Decide a kind token by token; return it and its log-share.

        Of the tokens that may come next, those that leave the same kinds are worth their sum, however they spell them.
        """
        tokens, spelled = self._spell(alternatives)
        if self._mode == "sampled":
            answer = yield from self._ask(tokens, Query("sampled", spelled.trie, sampling=self._drawn()))
            return alternatives.kinds[spelled.option_of(answer.leaf)], answer.logprob
        members = [(row, alternatives.kinds[i]) for row, i in zip(spelled.members, spelled.options, strict=True)]
        path: tuple[int, ...] = ()
        of_kind = 0.0
        while True:
            kinds: dict[int, set[Hashable]] = {}
            for row, kind in members:
                for token in row[len(path) : len(path) + 1] or self._model.vocab.end_of_generation():
                    kinds.setdefault(token, set()).add(kind)
            shares = dict.fromkeys(kinds, 0.0)
            if len(kinds) > 1:
                trie, order = spelled.next_tokens(path, [*kinds])
                query = Query("scores", trie, leaf_end="any", branches=True)
                answer = yield from self._ask([*tokens, *path], query)
                shares = dict(zip(order, map(float, answer.logprobs), strict=True))
                self.cost["n_branches"] += 1
            alike: dict[frozenset[Hashable], float] = {}
            for token, share in shares.items():
                among = frozenset(kinds[token])
                alike[among] = alike.get(among, 0.0) + math.exp(share)
            left = max(alike, key=lambda among: alike[among])
            of_kind += math.log(alike[left])
            if len(left) == 1:
                return next(iter(left)), of_kind
            path = (*path, max((token for token in kinds if kinds[token] == left), key=lambda token: shares[token]))
            members = [(row, kind) for row, kind in members if [*row[: len(path)]] == [*path]]

    def generate(self, free: FreeText, max_tokens: int) -> Plan[Generated]:
        """Let the model write until an end is found or the text is full; then pass the result to `keep`.

        If the context is nearly full, some of it is reserved for the rest of the record. A space at the end of the open
        text is generated by the model, because words begin with one.
        """
        lead = " " if self._open.endswith(b" ") else ""
        self._open = self._open.removesuffix(b" ")
        self.flush()
        n_left = self._model.n_ctx - len(self.tokens)
        n_kept = min(max(n_left // 8, 16), 64)
        generated = Generated(self._model.vocab, lead, free.end)

        def hear(token: int) -> bool:
            return generated.add(token) or free.is_full(generated.text)

        query = Query(
            "text",
            sampling=self._drawn(),
            gbnf=f"root ::= {quote(lead) if lead else ''} ( {free.body} )\n{free.rules}",
            max_tokens=min(max_tokens, max(n_left - n_kept, 1)),
            until=hear,
        )
        answer = yield from self._ask(self.tokens, query)
        if generated.tokens != [*answer.tokens]:
            generated = Generated(self._model.vocab, lead, free.end, answer.tokens)
        if generated.end is None and answer.figures.stop in (lib.TOKEN_TRIE_STOP_END, lib.TOKEN_TRIE_STOP_COMPLETE):
            generated.end = len(generated.text)
        return generated

    def keep(self, generated: Generated, end: int) -> str:
        """Keep the generated text up to a position; return it."""
        text = generated.text[:end]
        tokens, rest = generated.kept(end)
        self.tokens = [*self.tokens, *tokens]
        self._open = rest.encode()
        self.text += text
        return text

    def _ask(self, tokens: list[int], query: Query) -> Plan[Answer]:
        (answer,) = yield [AskOn(tokens, query)]
        figures = answer.figures
        for name in ("n_branches", "n_free", "n_passes"):
            self.cost[name] += getattr(figures, name)
        if query.mode == "text":
            self.cost["n_free"] += figures.stop == lib.TOKEN_TRIE_STOP_END
        elif query.mode == "best":
            self.cost["n_evaluated"] += figures.n_evaluated
            self.cost["n_unproved"] += figures.gap > 0
        return answer

    def _drawn(self) -> Sampling:
        """Return the sampling of the next step: each draws by a seed of its own."""
        if self._seed is None:
            return self._sampling
        self._n_drawn += 1
        return replace(self._sampling, seed=nth_seed(self._seed, self._n_drawn))

    def _spell(self, alternatives: Alternatives) -> tuple[list[int], Spelled]:
        """Spell alternatives after the open text; return the tokens before the remaining ones, and these."""
        vocab, before = self._model.vocab, tuple(self.tokens[-64:])
        key = self._known.get(before, 1, lambda: inner_seam(vocab, before)), self._open, alternatives
        spelled: Spelled = self._known.get(key, len(alternatives.texts), lambda: spell(vocab, *key))
        if spelled.n_back >= len(before) and not spelled.forced:
            # If the text merges with all tokens before it, keep them: the model continues from a token.
            spelled = spell(vocab, inner_seam(vocab, []), self._open, alternatives)
        return self.tokens[: len(self.tokens) - spelled.n_back] + spelled.forced, spelled


_N_FOLLOWING = 12
"""Characters that decide how the last token before them is spelled."""
_MAX_FOLLOWED, _MAX_SPELLED = 200, 4096


class _Decision(NamedTuple):
    """How the record goes on: continuations by their texts, each with the layouts that have it."""

    continuations: dict[str, tuple[Continuation, tuple[Layout, ...]]]
    alternatives: Alternatives | None
    """The texts, if one of several is to be decided."""
    is_of_record: bool
    """Whether this decides more than the layout."""


@lru_cache(maxsize=4096)
def _decision_of(
    pending: PendingPart, waiting: tuple[PendingPart, ...], among: tuple[Layout, ...], end: str, is_exact: bool
) -> _Decision:
    """Return how to continue what is pending, before what waits, in any of the layouts."""
    layouts: dict[str, dict[Layout, Continuation]] = {}
    for layout in among:
        for each in continuations(pending, layout):
            layouts.setdefault(each.text, {}).setdefault(layout, each)
    found = {text: (next(iter(each.values())), tuple(each)) for text, each in layouts.items()}
    if len(found) == 1 or ("" in found and found[""][0].slot is not None):
        return _Decision(found, None, False)

    @cache
    def followers_of(after: tuple[PendingPart, ...], layouts: tuple[Layout, ...]) -> tuple[str, ...]:
        parts = *after, *waiting
        return tuple(dict.fromkeys(each for layout in layouts for each in followers(parts, layout, end)))

    def all_after(each: Continuation, of: tuple[Layout, ...]) -> tuple[str, ...]:
        # Which items may not repeat makes no difference to the signs that follow.
        parts = tuple(p._replace(taken=frozenset()) if isinstance(p, PendingItems) else p for p in each.pending)
        return followers_of(parts, of)

    kinds = tuple((of, each.is_whole or text if is_exact else text) for text, (each, of) in found.items())
    after = [all_after(each, of) for each, of in found.values()]
    if sum(map(len, after)) > _MAX_SPELLED:
        after = [tuple({each[:1]: "" for each in some}) for some in after]
    # If each layout has one kind, the choice of the layout is none of the record.
    is_of_record = sum(len(of) for of, _ in set(kinds)) > len(among)
    return _Decision(found, Alternatives(tuple(found), tuple(after), kinds), is_of_record)


@lru_cache(maxsize=512)
def _alternatives_of(texts: tuple[str, ...], after: str, is_exact: bool) -> Alternatives:
    return Alternatives(texts, ((after,),) * len(texts), ("",) * len(texts) if is_exact else texts)


class RecordDecoder:
    """Writes one record by the node of its schema: forced text, decisions, and generated values.

    Keys, brackets, commas and white space are decided token by token, by what the model would write there. In exact
    mode, chosen values are decided by their whole texts.
    """

    def __init__(
        self,
        writer: Writer,
        layouts: tuple[Layout, ...],
        printed: Layout | None,
        max_tokens: int,
        on_text: Callable[[str], object] | None,
        source: str | None = None,
    ) -> None:
        self.writer = writer
        self._layouts = layouts  # that the text so far can have
        self._printed = printed
        self._max_tokens = max_tokens
        self._on_text = on_text
        self._source = source
        self._n_reported = 0
        self.probabilities: dict[str, float] = {}
        self.offsets: dict[str, tuple[int, int]] = {}
        self.truncated: list[str] = []

    def run(self, node: Node, end: str = "") -> Plan[str]:
        """Write a value; return its text as it is printed. `end`, the text after it, decides how it is spelled."""
        self._end = end
        self._report()
        show = str if self._printed is None else Printer(self._printed).add
        parts: list[str] = []
        waiting: tuple[PendingPart, ...] = (PendingValue(with_text(node, self._source)),)
        before_key = self.writer.checkpoint
        while waiting:
            pending, *others = waiting
            following: tuple[PendingPart, ...] = ()
            if isinstance(pending, PendingFields):
                before_key = self.writer.checkpoint
            if isinstance(pending, PendingString) and isinstance(pending.node, VerbatimNode):
                yield from self._choose_span(pending.node, pending.pointer, tuple(others))
            elif isinstance(pending, PendingString):
                assert isinstance(pending.node, String)
                text = yield from self._generate(FreeText(pending.node, pending.node.grammar), pending.pointer)
                self.writer.write('"')
                if (of := pending.key_of) is not None:
                    assert isinstance(of.node, Map)
                    value = PendingValue(of.node.node, inside(of.pointer, text), is_after_key=True)
                    following = value, PendingItems(of.node, of.pointer, of.n + 1)
            else:
                chosen = yield from self._decide(pending, tuple(others))
                following = chosen.pending
                if chosen.leaves_out:
                    self.writer.restore(before_key)
                    others.pop(0)  # the fields after this one, if it were written
            waiting = (*following, *others)
            # A key is passed on with the beginning of its value, as it may be taken back.
            if not (waiting and isinstance(waiting[0], PendingValue) and waiting[0].otherwise is not None):
                parts.append(self._report(show))
        return "".join(parts)

    def choose(self, texts: tuple[str, ...], after: str) -> Plan[tuple[int, float]]:
        """Write one of several texts, with the same text after each; return its index and probability."""
        if len(texts) == 1:
            self.writer.write(texts[0])
            index, logprob = 0, 0.0
        else:
            alternatives = _alternatives_of(texts, after, self.writer.is_exact)
            index, of_kind, of_text = yield from self.writer.choose(alternatives)
            logprob = of_kind + (of_text or 0.0)
        self._report()
        return index, math.exp(logprob)

    def _decide(self, pending: PendingPart, waiting: tuple[PendingPart, ...]) -> Plan[Continuation]:
        """Write the beginning of what is pending; return how it goes on."""
        decision = _decision_of(pending, waiting, self._layouts, self._end, self.writer.is_exact)
        found = decision.continuations
        if decision.alternatives is not None:
            index, of_kind, of_value = yield from self.writer.choose(decision.alternatives)
            text = decision.alternatives.texts[index]
            chosen, _ = found[text]
            if decision.is_of_record:
                self._multiply(chosen.pointer if chosen.is_value and of_value is None else pending.pointer, of_kind)
            if of_value is not None:
                self._multiply(chosen.pointer, of_value)
        elif "" in found and (slot := found[""][0].slot) is not None:
            grammar = slot.compact_grammar if self._layouts == (COMPACT,) else slot.grammar
            free = FreeText(slot, grammar, tuple(filter(None, found)))
            text = yield from self._generate(free, pending.pointer)
            text = text if text in found else ""
        else:
            (text,) = found
            self.writer.write(text)
        chosen, self._layouts = found[text]
        return chosen

    def _choose_span(self, node: VerbatimNode, pointer: str, waiting: tuple[PendingPart, ...]) -> Plan[None]:
        after = [each for layout in self._layouts for each in followers(waiting, layout, self._end)]
        index, logprob = yield from self.writer.choose_span(node, after)
        if self.writer.is_exact:
            self.probabilities.pop(pointer, None)  # the opening quote is a part of the value's own probability
        self._multiply(pointer, logprob)
        self.offsets[pointer] = find_spans(node).offsets(index)

    def _multiply(self, pointer: str, logprob: float) -> None:
        self.probabilities[pointer] = self.probabilities.get(pointer, 1.0) * math.exp(logprob)

    def _generate(self, free: FreeText, pointer: str) -> Plan[str]:
        """Let the model write until an end is found; else, cut at the last valid end, or close brackets."""
        try:
            generated = yield from self.writer.generate(free, self._max_tokens)
        except GrammarError as error:
            raise GrammarError(f"record{pointer}: {error}") from error
        if generated.end is None:
            self.truncated.append(pointer)
        cut = free.cut(generated.text, generated.end)
        if cut is None:
            n = len(generated.tokens)
            raise LimitError(f"record{pointer}: no end after {n} tokens: {generated.text[-40:]!r}")
        end, closers = cut
        text = self.writer.keep(generated, end)
        self.writer.write(closers)
        return text + closers

    def _report(self, show: Callable[[str], str] = str) -> str:
        """Return what is new in the text, as it is shown."""
        piece = show(self.writer.text[self._n_reported :])
        self._n_reported = len(self.writer.text)
        if piece and self._on_text is not None:
            self._on_text(piece)
        return piece


def followers(waiting: tuple[PendingPart, ...], layout: Layout, end: str) -> tuple[str, ...]:
    """Return the possible beginnings of what waits; of those with the same signs before a first letter, only one.

    `end` is the text after all of it, which a line break may follow.
    """
    found: dict[str, str] = {}
    todo, n = [("", waiting)], 0

    def note(text: str) -> None:
        found.setdefault(signs_before(text), text)

    while todo:
        text, waiting = todo.pop()
        signs, n = signs_before(text), n + 1
        if signs != text and signs in found:
            continue
        if not waiting:
            note(text + end)
            note(f"{text}{end}\n")
            continue
        if isinstance(waiting[0], PendingString) and isinstance(waiting[0].node, VerbatimNode):
            any(map(note, (text + first for first in beginnings(waiting[0].node))))
            continue
        ways = [] if isinstance(waiting[0], PendingString) else continuations(waiting[0], layout)
        ways = [each for each in ways if not each.leaves_out]
        if not ways or len(text) >= _N_FOLLOWING or (len(ways) > 1 and (signs != text or n > _MAX_FOLLOWED)):
            note(text)
            continue
        for each in ways:
            if each.slot is None:
                todo.append((text + each.text, (*each.pending, *waiting[1:])))
            else:
                any(map(note, (text + first for first in each.begins_with)))
    return tuple(found.values())
