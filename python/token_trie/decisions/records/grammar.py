"""Grammars of what a plan lets be written, in compact JSON."""

from __future__ import annotations

from token_trie.decisions.records.gbnf import Either, Expression, Repeat, Rule, Sequence, Text
from token_trie.decisions.records.layout import Layout
from token_trie.decisions.records.pattern import CHAR, read_pattern
from token_trie.decisions.records.plan import Array, Choice, Map, Node, Object, Slot, String, Union

_COMPACT = Layout()
_QUOTE, _COMMA, _END_OF_OBJECT, _END_OF_LIST = Text('"'), Text(","), Text("}"), Text("]")

# A double holds 16 digits, and no exponent of two goes beyond all bounds.
INTEGER = read_pattern("^-?(0|[1-9][0-9]{0,15})$").content
NUMBER = read_pattern(r"^-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?([eE][-+]?[0-9]{1,2})?$").content

# Characters behind a value that a token may go on with; what reaches over its end is cut off again.
BEHIND = r"( [ \t\r\n,}\]:] [\x00-\U0010FFFF]* )?"


def text_between(low: int, high: int | None) -> Expression:
    """Return so many characters of a JSON string."""
    return Repeat(CHAR, low, high)


def _listed(first: str, item: Expression, low: int, high: int | None, last: str) -> Expression:
    """Return a list with commas, of 1 item or more where it has any."""
    more = Repeat(Sequence((_COMMA, item)), max(low - 1, 0), None if high is None else high - 1)
    some = Sequence((Text(first), item, more, Text(last)))
    return some if low else Either((Text(first + last), some))


VALUE = Rule()
"""Any JSON value."""
_STRING = Rule(Sequence((_QUOTE, text_between(0, None), _QUOTE)))
OBJECT = Rule(_listed("{", Sequence((_STRING, Text(":"), VALUE)), 0, None, "}"))
ARRAY = Rule(_listed("[", VALUE, 0, None, "]"))
VALUE.body = Either((OBJECT, ARRAY, _STRING, NUMBER, *map(Text, ("true", "false", "null"))))


def grammar_of(node: Node) -> Expression:
    """Return the grammar of a plan's node; ValueError where none says all of it."""
    return _Writer().of(node)


class _Writer:
    def __init__(self) -> None:
        self._known: dict[Node, Rule] = {}

    def of(self, node: Node) -> Expression:
        if node not in self._known:
            self._known[node] = Rule(self._make(node))
        return self._known[node]

    def _make(self, node: Node) -> Expression:
        if isinstance(node, Choice):
            return Either(tuple(Text(_COMPACT.dumps(value, 0)) for value in node.values))
        if isinstance(node, String):
            if node.is_cut:
                raise ValueError("maxLength beside a pattern or format")
            content = text_between(node.min_length, node.max_length) if node.can_end_anywhere else node.content
            return Sequence((_QUOTE, content, _QUOTE))
        if isinstance(node, Slot):
            return node.value
        if isinstance(node, Union):
            return Either(tuple(map(self.of, node.options)))
        if isinstance(node, Map):
            entry = Sequence((self.of(node.key), Text(":"), self.of(node.node)))
            return _listed("{", entry, node.min_items, node.max_items, "}")
        return self._object(node) if isinstance(node, Object) else self._array(node)

    def _object(self, node: Object) -> Expression:
        # What may come from a field on, where there is one before it, and where there is none.
        behind: list[Expression] = [_END_OF_OBJECT, _END_OF_OBJECT]
        for field in reversed(node.fields):
            value = self.of(field.node)
            ways: list[Expression] = []
            for is_first in (False, True):
                written = Sequence((Text(_COMPACT.key(field.name, is_first, 0)), value, behind[0]))
                ways.append(Rule(written if field.is_required else Either((written, behind[is_first]))))
            behind = ways
        return Sequence((Text("{"), behind[1]))

    def _array(self, node: Array) -> Expression:
        if node.unique:
            raise ValueError("uniqueItems of a list")
        n = min(len(node.heads), node.max_items)
        behind: Expression = _END_OF_LIST
        if node.item is not None and n < node.max_items:
            item, low, high = self.of(node.item), max(node.min_items - n, 0), node.max_items - n
            if n == 0:
                return _listed("[", item, low, high, "]")
            behind = Sequence((Repeat(Sequence((_COMMA, item)), low, high), _END_OF_LIST))
        for i in reversed(range(n)):
            written = Sequence(((_COMMA,) if i else ()) + (self.of(node.kind(i)), behind))
            behind = Rule(written if i < node.min_items else Either((written, _END_OF_LIST)))
        return Sequence((Text("["), behind))
