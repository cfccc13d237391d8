from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_trie import ArgumentError, TokenTrie
from token_trie.engines import UniqueMatchers

END, V = 0, 40

sets = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=5), min_size=1, max_size=12, unique_by=tuple)


def trie_of(members: list[list[int]]) -> TokenTrie:
    return TokenTrie.from_sequences({f"m{i}": member for i, member in enumerate(members)})


def tokens_of(row: np.ndarray) -> list[int]:
    bits = np.unpackbits(row.astype("<i4").view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[:V]).tolist()


@given(sets, st.data(), st.integers(0, 2**32))
def test_no_two_sequences_give_the_same_member_and_none_is_left_without_a_token(
    members: list[list[int]], data: st.DataObject, seed: int
) -> None:
    n = data.draw(st.integers(1, len(members)))
    rows, rng = UniqueMatchers(trie_of(members), n, V, end_tokens=[END]), random.Random(seed)
    given_by: list[list[int]] = [[] for _ in range(n)]
    while waiting := [row for row in range(n) if not rows.is_terminated(row)]:
        row = rng.choice(waiting)
        allowed = rows.allowed_tokens(row)
        assert allowed
        mask = np.zeros((n, 2), np.int32)
        rows.fill_next_token_bitmask(mask)
        assert tokens_of(mask[row]) == allowed
        token = rng.choice(allowed)
        assert rows.accept_token(row, token)
        if token != END:
            given_by[row].append(token)
    assert len({tuple(member) for member in given_by}) == n
    assert all(member in members for member in given_by)


@given(sets)
def test_what_a_sequence_may_say_is_what_brute_force_finds(members: list[list[int]]) -> None:
    rows = UniqueMatchers(trie_of(members), len(members), V, end_tokens=[END])
    for row, member in enumerate(members[:-1]):
        for token in [*member, END]:
            assert rows.accept_token(row, token)
    last = members[-1]
    for i in range(len(last)):
        assert rows.allowed_tokens(len(members) - 1) == [last[i]]
        assert rows.accept_token(len(members) - 1, last[i])
    assert rows.allowed_tokens(len(members) - 1) == [END]


def test_the_second_to_draw_the_last_place_is_refused() -> None:
    rows = UniqueMatchers(trie_of([[1, 2], [1, 3], [4]]), 3, V, end_tokens=[END])
    assert [rows.accept_token(row, token) for row, token in ((0, 4), (1, 4), (1, 1), (2, 1))] == [
        True,
        False,
        True,
        True,
    ]
    assert [rows.accept_token(row, 2) for row in (1, 2)] == [True, False]
    assert rows.allowed_tokens(2) == [3]


def test_the_last_bit_of_a_word_is_cleared() -> None:
    rows = UniqueMatchers(trie_of([[31], [32]]), 2, V, end_tokens=[END])
    assert rows.accept_token(0, 31)
    mask = np.zeros((2, 2), np.int32)
    rows.fill_next_token_bitmask(mask, [1, 0])
    assert tokens_of(mask[0]) == [32]
    assert tokens_of(mask[1]) == [END]


def test_a_filtered_set_has_positions_for_what_is_left() -> None:
    trie = trie_of([[1, 2], [1, 3], [1]]).filtered(np.array([True, False, True]))
    rows = UniqueMatchers(trie, 2, V, end_tokens=[END])
    assert rows.accept_token(0, 1)
    assert rows.accept_token(1, 1)
    assert rows.accept_token(0, END)
    assert rows.allowed_tokens(1) == [2]
    with pytest.raises(ArgumentError, match="3 sequences, and 2 members"):
        UniqueMatchers(trie, 3, V, end_tokens=[END])


@pytest.mark.parametrize("is_filtered", [False, True])
def test_a_member_that_every_end_token_continues_is_refused(is_filtered: bool) -> None:
    trie = trie_of([[1], [1, END], [2], [2, 3]])
    if is_filtered:
        trie = trie.filtered(np.ones(4, bool))
    with pytest.raises(ArgumentError, match="n: 4 sequences, and fewer members that can end"):
        UniqueMatchers(trie, 4, V, end_tokens=[END])
    rows = UniqueMatchers(trie, 3, V, end_tokens=[END])
    assert rows.accept_token(0, 1)
    assert rows.allowed_tokens(1) == [2]
    assert not rows.accept_token(1, 1)
    another = UniqueMatchers(trie, 4, V, end_tokens=[END, 9])
    for row in range(2):
        assert another.accept_token(row, 1)
    assert another.accept_token(0, END)
    assert another.allowed_tokens(1) == [9]


members_with_ends = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, unique_by=tuple)


@given(members_with_ends, st.sets(st.integers(0, 4), min_size=1, max_size=2), st.integers(0, 2**32))
def test_end_tokens_that_continue_members_leave_no_sequence_without_a_token(
    members: list[list[int]], ends: set[int], seed: int
) -> None:
    can_end = [
        member
        for member in members
        if any([*member, end] not in [m[: len(member) + 1] for m in members] for end in ends)
    ]
    n, rng = len(can_end), random.Random(seed)
    if n < len(members):
        with pytest.raises(ArgumentError, match="members"):
            UniqueMatchers(trie_of(members), n + 1, V, end_tokens=sorted(ends))
    rows, given_by = UniqueMatchers(trie_of(members), n, V, end_tokens=sorted(ends)), [list[int]() for _ in range(n)]
    while waiting := [row for row in range(n) if not rows.is_terminated(row)]:
        row = rng.choice(waiting)
        allowed = rows.allowed_tokens(row)
        assert allowed
        token = rng.choice(allowed)
        assert rows.accept_token(row, token)
        if not rows.is_terminated(row):
            given_by[row].append(token)
    assert sorted(given_by) == sorted(can_end)


class Scalar:
    """As a scalar tensor: an index that hashes by identity."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


@pytest.mark.parametrize("scalar", [Scalar, np.int64])
def test_scalars_of_another_library_are_the_tokens_that_they_stand_for(scalar: Any) -> None:
    rows = UniqueMatchers(trie_of([[5], [6], [7, 8]]), 2, V, end_tokens=[END])
    assert [rows.accept_token(row, scalar(5)) for row in range(2)] == [True, False]
    assert rows.allowed_tokens(1) == [6, 7]


def test_rows_that_there_are_none_of_are_refused() -> None:
    rows = UniqueMatchers(trie_of([[5], [6]]), 2, V, end_tokens=[END])
    for row, message in ((-1, "row: -1 of 2"), (2, "row: 2 of 2"), (None, "row: NoneType")):
        for call in (lambda row: rows.accept_token(row, 5), rows.allowed_tokens, rows.is_terminated):
            with pytest.raises(ArgumentError, match=message):
                call(row)
    assert [rows.allowed_tokens(row) for row in range(2)] == [[5, 6], [5, 6]]


def test_a_copy_goes_its_own_way_and_a_pickle_is_refused_by_name() -> None:
    rows = UniqueMatchers(trie_of([[5], [6]]), 2, V, end_tokens=[END])
    assert rows.accept_token(0, 5)
    again = copy.deepcopy(rows)
    assert again.accept_token(1, 6)
    assert again.allowed_tokens(1) == [END]
    assert rows.allowed_tokens(1) == [6]
    with pytest.raises(ArgumentError, match="a TrieMatcher cannot be pickled"):
        pickle.dumps(rows)
