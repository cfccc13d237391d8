from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_trie import ArgumentError, TokenTrie, choose
from token_trie.errors import PayloadError
from token_trie.native.core import _core

sequences = st.lists(st.integers(0, 5), min_size=1, max_size=6).map(tuple)
sets = st.lists(sequences, min_size=1, max_size=40, unique=True)


def tree_of(trie: TokenTrie, prefix: tuple[int, ...] = ()) -> Any:
    """Everything that is allowed, from the root on."""
    return {token: tree_of(trie, (*prefix, token)) for token in trie.children(prefix).tolist()}


@given(sets, st.data())
def test_what_is_left_is_as_a_set_built_of_it(members: list[tuple[int, ...]], data: st.DataObject) -> None:
    trie = TokenTrie.from_sequences({str(i): list(member) for i, member in enumerate(members)})
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(members), max_size=len(members))))
    again = np.array(data.draw(st.lists(st.booleans(), min_size=len(members), max_size=len(members))))
    if not (mask & again).any():
        with pytest.raises(ArgumentError, match="no member of the set is left"):
            trie.filtered(mask & again)
        return
    left = trie.filtered(mask)
    if data.draw(st.booleans()):
        left, mask = left.filtered(again), mask & again
    expected = TokenTrie.from_sequences({str(i): list(members[i]) for i in np.flatnonzero(mask)})
    assert tree_of(left) == tree_of(expected)
    assert list(left) == list(expected)
    assert left.names == expected.names
    assert len(left) == len(expected)
    assert TokenTrie.from_payload(left.payload()).names == expected.names
    pickled = pickle.loads(pickle.dumps(left))
    for some in (left, pickled):
        require_left(some, trie, members, mask)
    by_index = trie.filtered(np.flatnonzero(mask))
    assert tree_of(by_index) == tree_of(pickled) == tree_of(expected)


def require_left(left: TokenTrie, trie: TokenTrie, members: list[tuple[int, ...]], mask: Any) -> None:
    assert left.names == [str(i) for i in np.flatnonzero(mask)]
    for i, member in enumerate(members):
        assert (list(member) in left) == (str(i) in left) == mask[i]
        if mask[i]:
            assert left[i] == trie[i]
        else:
            with pytest.raises(IndexError, match="filtered out"):
                left[i]


@given(st.lists(st.tuples(sequences, st.sampled_from("abcdef")), min_size=1, max_size=20), st.data())
def test_a_pickled_filter_keeps_indices_names_and_aliases(
    rows: list[tuple[tuple[int, ...], str]], data: st.DataObject
) -> None:
    flat = np.array([token for tokens, _ in rows for token in tokens], np.int32)
    offsets = np.cumsum([0, *(len(tokens) for tokens, _ in rows)])
    trie = TokenTrie.from_arrays(flat, offsets, [name for _, name in rows])
    keep = data.draw(st.sets(st.integers(0, len(trie) - 1), min_size=1))
    left = trie.filtered(sorted(keep))
    again = pickle.loads(pickle.dumps(left))
    of = {tokens: i for i, tokens in enumerate(dict.fromkeys(tokens for tokens, _ in rows))}
    for tokens, i in of.items():
        named = sorted({name for own, name in rows if own == tokens})
        assert (list(tokens) in again) == (i in keep)
        if i in keep:
            assert again[i] == (named[0], tokens)
    assert again.aliases == left.aliases
    assert sorted(again.core.aliases) == sorted(trie.core.aliases)
    assert again.vocab == left.vocab
    # A member that is filtered out has its name still, and a filter of the filter goes by the same indices.
    assert [again.core.name(i) for i in range(len(trie))] == trie.names
    first = min(keep)
    assert list(again.filtered([first])) == [trie[first]]
    assert list(pickle.loads(pickle.dumps(again))) == list(left)


def test_a_pickled_filter_keeps_its_start_token() -> None:
    trie = TokenTrie.from_prefix_dict({"prefix_dict": {"225": [7], "225_7": [8, 9], "225_7_8": [2], "225_7_9": [2]}})
    left = pickle.loads(pickle.dumps(trie.filtered([1])))
    assert (left.start_token, list(left)) == (225, [trie[1]])


def test_a_column_of_arrow_is_a_mask() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    trie = TokenTrie.from_sequences({"a": [1, 2], "b": [1, 3], "c": [4]})
    for mask in (pyarrow.array([True, False, True]), pyarrow.chunked_array([[True], [False, True]])):
        assert trie.filtered(mask).names == ["a", "c"]
    with pytest.raises(ArgumentError, match="mask must be bool"):
        trie.filtered(pyarrow.array([True, None, True]))


@given(st.lists(sequences, min_size=1, max_size=30), st.data())
def test_a_mask_of_the_rows_of_a_table_keeps_what_one_of_its_rows_keeps(
    table: list[tuple[int, ...]], data: st.DataObject
) -> None:
    skus = [f"sku {i}" for i in range(len(table))]
    trie = TokenTrie.from_arrays(np.concatenate(table), np.cumsum([0, *map(len, table)]), skus)
    rows = trie.rows(skus)
    assert [trie[leaf].tokens for leaf in rows.tolist()] == table
    in_stock = np.array(data.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table))))
    kept = {tokens for tokens, is_in_stock in zip(table, in_stock, strict=True) if is_in_stock}
    for mask in (in_stock, np.flatnonzero(in_stock)):
        if kept:
            assert {leaf.tokens for leaf in trie.filtered(mask, rows=rows)} == kept
        else:
            with pytest.raises(ArgumentError, match="no member of the set is left"):
                trie.filtered(mask, rows=rows)


def test_rows_may_repeat_a_name_that_gave_way_to_another() -> None:
    names = ["b", "a", "b", "c"]
    trie = TokenTrie.from_arrays(np.array([7, 7, 7, 8]), np.arange(5), names)
    assert trie.rows(names).tolist() == [0, 0, 0, 1]


def test_a_row_without_its_own_member_is_named() -> None:
    trie = TokenTrie.from_arrays(np.array([1, 2, 3]), np.array([0, 1, 2, 2, 3]), ["a", "b", "none", "b"])
    with pytest.raises(ArgumentError, match=r"names\[2\]: 'none' is no member of the set"):
        trie.rows(["a", "a", "none"])
    assert trie.rows(["none", "a"], missing_ok=True).tolist() == [-1, 0]
    with pytest.raises(ArgumentError, match=r"names\[1\]: 'b' is the name of several members"):
        trie.rows(["a", "b"], missing_ok=True)
    assert trie.filtered([True, True], rows=trie.rows(["none", "a"], missing_ok=True)).names == ["a"]
    for wrong in ([0.5], [[0]], [3], [-2]):
        with pytest.raises(ArgumentError, match="rows must be"):
            trie.filtered([True], rows=np.array(wrong))


def test_a_saved_filter_is_the_set_of_what_is_left(tmp_path: Path) -> None:
    trie = TokenTrie.from_sequences({"a": [1, 2], "b": [1, 3], "c": [4]})
    trie.filtered([True, False, True]).save(tmp_path / "left.trie")
    assert TokenTrie.open(tmp_path / "left.trie").names == ["a", "c"]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([True], r"mask must be bool, shape \(2,\), or indices, not bool, shape \(1,\); for .* rows, give rows="),
        ([0.5, 1.0], "not float64"),
        ([[True, False]], r"shape \(1, 2\)"),
        ([0, 2], r"mask\[1\]: 2 is no leaf's index; there are 2"),
        ([-1], r"mask\[0\]: -1"),
        (np.array([1, 1], np.uint8), "an index comes twice; a mask of one number a leaf must be of booleans"),
        ([], "no member of the set is left"),
        ([False, False], "no member of the set is left"),
        (["a", "b"], "not <U1"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TokenTrie.from_sequences({"a": [1], "b": [2]}).filtered(mask)


def test_answers_are_members_that_are_left(llm: Any) -> None:
    texts = [f"{color} {thing}" for color in ("red", "green", "blue") for thing in ("car", "house", "door", "sky")]
    trie = TokenTrie.from_choices(llm, texts, prompt="The thing is a")
    rng = np.random.default_rng(2)
    for _ in range(2):
        mask = rng.random(len(texts)) < 0.4
        mask[3] = True
        left = trie.filtered(mask)
        kept = [text for text, is_left in zip(texts, mask, strict=True) if is_left]
        plain = TokenTrie.from_choices(llm, kept, prompt="The thing is a")
        for how in ({}, {"mode": "exact"}, {"mode": "beam"}, {"mode": "sampled", "temperature": 0.8, "seed": 3}):
            mine = choose(llm, "The thing is a", left, **how)
            other = choose(llm, "The thing is a", plain, **how)
            assert mine.text == other.text
            assert texts[mine.index] == mine.text
            if mine.probabilities is not None:
                assert mine.probabilities[mask] == pytest.approx(other.probabilities)
                assert not mine.probabilities[~mask].any()


def test_a_set_of_a_million_is_filtered_at_once_and_stays_as_it_was() -> None:
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, 2048, 8_000_000, dtype=np.int32)
    trie = TokenTrie.from_arrays(tokens, np.arange(0, 8_000_001, 8))
    mask = rng.random(1_000_000) < 0.001
    left = trie.filtered(mask)
    for i in rng.choice(np.flatnonzero(mask), 20).tolist():
        assert left[i].tokens == tuple(tokens[8 * i : 8 * i + 8].tolist())
        assert list(left[i].tokens) in left
    assert not any(tokens[8 * i : 8 * i + 8].tolist() in left for i in np.flatnonzero(~mask)[:50].tolist())
    assert len(trie) == 1_000_000


def test_any_name_of_a_file_will_do_and_no_pipe_is_waited_for(tmp_path: Path) -> None:
    trie = TokenTrie.from_sequences({"a": [1, 2]})
    for name in (tmp_path / "s\u00e9t of one.trie", os.fsdecode(os.fsencode(tmp_path) + b"/\xff.trie")):
        trie.save(name)
        assert TokenTrie.open(name, verify=True).names == ["a"]
    for use in (TokenTrie.open, trie.save):
        with pytest.raises(ArgumentError, match=r"NUL|null"):
            use(f"{tmp_path}/x.trie\0y")
    os.mkfifo(tmp_path / "pipe.trie")
    with pytest.raises(ArgumentError, match="not a file"):
        TokenTrie.open(tmp_path / "pipe.trie")


def test_a_file_is_the_set_and_what_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "letters.trie"
    trie = TokenTrie.from_sequences({"b": [1, 2], "a": [1, 2], "c": [4], "d": [1]})
    trie.save(path)
    opened = TokenTrie.open(path, verify=True)
    assert list(opened) == list(trie)
    assert opened.aliases == trie.aliases
    trie.filtered([0]).save(path)
    assert list(opened) == list(trie), "who has it open keeps it"
    path.unlink()
    assert list(opened) == list(trie)
    path.write_bytes(b"no trie, but eight bytes")
    with pytest.raises(PayloadError, match="not a file of a trie"):
        TokenTrie.open(path)
    with pytest.raises(ArgumentError, match="No such file"):
        TokenTrie.open(tmp_path / "none.trie")
    with pytest.raises(ArgumentError, match="No such file"):
        trie.save(tmp_path / "none" / "letters.trie")
    assert _core.Trie.laid_out(opened.core, False).n_nodes == trie.n_nodes
