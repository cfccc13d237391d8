from __future__ import annotations

import copy
from typing import Any

import oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from token_trie import TokenTrie
from token_trie.llama.query import SpanOptions, follow_set, read_span
from token_trie.native.core import _core

RELEASE, END, RESTART = 0, 1, 2
CONSTRAINED, COMPLETE, ESCAPED = 0, 1, 2
EOS, COMMA = 90, 91

members = st.sets(st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12)


def make_cursor(
    leaves: set[oracle.Member],
    on_complete: int,
    end_tokens: tuple[int, ...] = (),
    separator: tuple[int, ...] = (),
    max_items: int = 0,
    min_items: int = 0,
    unique: bool = False,
    exclude: frozenset[oracle.Member] = frozenset(),
    start_after: tuple[int, ...] = (),
    max_before: int = -1,
) -> _core.Cursor:
    trie = TokenTrie.from_sequences({repr(leaf): leaf for leaf in sorted(leaves)}).core
    of_lists: Any = {"separator": separator, "max_items": max_items or None, "unique": unique, "max_span": None}
    rules = SpanOptions(
        on_complete=("release", "end", "restart")[on_complete],
        end_tokens=end_tokens if on_complete != RELEASE else None,
        exclude=list(map(repr, sorted(exclude))),
        start_after=start_after,
        max_before=None if max_before < 0 else max_before,
        **(of_lists if on_complete == RESTART else {}),
    )
    span = read_span(_core.Vocab(0), None, rules)
    span.min_items = min_items
    return _core.Cursor(trie, follow_set(trie, _core.Vocab(0), span))


def allowed(cursor: _core.Cursor) -> list[int] | None:
    tokens = cursor.allowed()
    return None if tokens is None else tokens.tolist()


def test_a_walk_by_hand() -> None:
    #       .
    #      7|
    #     (READ)
    #      8|
    #    (READ_FILE)
    cursor = make_cursor({(7,), (7, 8)}, END, (EOS,))
    assert allowed(cursor) == [7]
    assert cursor.accept(7)
    assert allowed(cursor) == [8, EOS]
    other = copy.copy(cursor)
    assert cursor.accept(8)
    assert allowed(cursor) == [EOS]
    assert cursor.accept(EOS)
    assert (cursor.state, cursor.leaf, allowed(cursor)) == (COMPLETE, 1, None)
    assert other.accept(EOS)
    assert (other.state, other.leaf) == (COMPLETE, 0)
    other.reset()
    assert (allowed(other), other.leaf) == ([7], None)


@given(members, st.data())
def test_allowed_sets_are_those_of_a_plain_set(leaves: set[oracle.Member], data: st.DataObject) -> None:
    cursor = make_cursor(leaves, END, (EOS,))
    walked: oracle.Member = ()
    while cursor.state == CONSTRAINED:
        expected = sorted(oracle.allowed(leaves, walked, {EOS}))
        assert allowed(cursor) == expected
        token = data.draw(st.sampled_from(expected))
        assert cursor.accept(token)
        walked += (token,)
    assert walked[:-1] in leaves


@given(members, st.integers(0, 3), st.sampled_from([(), (COMMA,), (COMMA, 5)]), st.data())
def test_every_list_that_restart_lets_through_is_made_of_members(
    leaves: set[oracle.Member], max_items: int, separator: tuple[int, ...], data: st.DataObject
) -> None:
    cursor = make_cursor(leaves, RESTART, (EOS,), separator, max_items)
    walked: oracle.Member = ()
    while cursor.state == CONSTRAINED and len(walked) < 12:
        token = data.draw(st.sampled_from(cursor.allowed().tolist()))
        assert cursor.accept(token)
        walked += (token,)
    if cursor.state == COMPLETE:
        assert can_split(walked[:-1], leaves, separator, max_items or 99)


def can_split(tokens: oracle.Member, leaves: set[oracle.Member], separator: tuple[int, ...], at_most: int) -> bool:
    if tokens in leaves:
        return at_most > 0
    heads = (leaf + separator for leaf in leaves)
    return any(tokens[: len(h)] == h and can_split(tokens[len(h) :], leaves, separator, at_most - 1) for h in heads)


@given(members, st.data())
@settings(max_examples=300)
def test_a_unique_list_has_no_repeat_nothing_excluded_and_no_dead_end(
    leaves: set[oracle.Member], data: st.DataObject
) -> None:
    exclude = data.draw(st.frozensets(st.sampled_from(sorted(leaves)), max_size=len(leaves) - 1))
    least = data.draw(st.integers(0, len(leaves - exclude)))
    cursor = make_cursor(leaves, RESTART, (EOS,), (COMMA,), 0, least, unique=True, exclude=exclude)
    left, items, item = leaves - exclude, set(), ()
    while cursor.state == CONSTRAINED:
        expected = oracle.allowed(left, item, {COMMA, EOS})
        expected -= {COMMA} if left == {item} else set()
        expected -= {EOS} if len(items) + 1 < least else set()
        assert allowed(cursor) == sorted(expected)
        token = data.draw(st.sampled_from(sorted(expected)))
        cursor.accept(token)
        if token in (COMMA, EOS):
            left = left - {item}
            items.add(item)
            item = ()
        else:
            item += (token,)
    assert least <= len(items) == cursor.n_items
    assert items == leaves - exclude - left


@given(members, st.data())
def test_a_token_outside_the_allowed_set_ends_the_span(leaves: set[oracle.Member], data: st.DataObject) -> None:
    cursor = make_cursor(leaves, END, (EOS,))
    for token in data.draw(st.sampled_from(sorted(leaves)))[:-1]:
        cursor.accept(token)
    assert not cursor.accept(77)
    assert (cursor.state, allowed(cursor)) == (ESCAPED, None)


def test_release_ends_the_span_at_a_leaf_that_leads_no_further() -> None:
    cursor = make_cursor({(7,), (7, 8)}, RELEASE)
    cursor.accept(7)
    assert (cursor.state, allowed(cursor), cursor.leaf) == (CONSTRAINED, None, 0)
    cursor.accept(8)
    assert (cursor.state, cursor.leaf) == (COMPLETE, 1)
    assert allowed(cursor) is None
