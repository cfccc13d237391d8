from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError, TokenTrie


def test_what_is_left_keeps_order_names_aliases_and_vocabulary(smollm2: Any) -> None:
    whole = TokenTrie.from_choices(smollm2, ["yes", "no", "maybe"])
    left = whole.without(["no"])
    assert left.names == ["yes", "maybe"]
    assert left.vocab == whole.vocab != ""
    assert [leaf.tokens for leaf in left] == [whole[0].tokens, whole[2].tokens]
    assert list(whole.without([])) == list(whole)
    assert whole.names == ["yes", "no", "maybe"]

    named = TokenTrie.from_sequences({"b": [1], "a": [1], "c": [1, 2], "e": [3], "d": [3]})
    assert named.aliases == {"b": "a", "e": "d"}
    assert named.without(["c"]).aliases == {"b": "a", "e": "d"}
    assert list(named.without(["b"])) == [("c", (1, 2)), ("d", (3,))]


def test_what_is_kept_keeps_order_names_aliases_and_vocabulary(smollm2: Any) -> None:
    whole = TokenTrie.from_choices(smollm2, ["yes", "no", "maybe"])
    kept = whole.only(["maybe", "yes"])
    assert kept.names == ["yes", "maybe"]
    assert kept.vocab == whole.vocab != ""
    assert list(kept) == list(whole.without(["no"]))
    assert list(whole.only(whole.names)) == list(whole)

    named = TokenTrie.from_sequences({"b": [1], "a": [1], "c": [1, 2], "e": [3], "d": [3]})
    assert list(named.only(["b"])) == [("a", (1,))]
    assert named.only(iter(["b", "c"])).aliases == {"b": "a"}


def test_a_part_of_a_set_with_a_start_token_has_it_too() -> None:
    whole = TokenTrie.from_prefix_dict({"prefix_dict": {"225": [7, 9], "225_7": [2, 8]}})
    assert whole.only(["0"]).start_token == whole.without(["0"]).start_token == 225


def test_members_without_names_keep_their_numbers() -> None:
    whole = TokenTrie.from_arrays(np.array([1, 2, 3], np.int32), np.arange(4))
    assert whole.without(["1"]).names == ["0", "2"]


def test_names_that_are_none_and_a_set_of_nothing_are_refused() -> None:
    trie = TokenTrie.from_sequences({"a": [1], "b": [2]})
    for part in (trie.without, trie.only):
        with pytest.raises(ArgumentError, match=r"names\[1\]: 'c' is no member of the set"):
            part(["a", "c"])
        with pytest.raises(ArgumentError, match="names must be a list of names, not str"):
            part("ab")
    with pytest.raises(ArgumentError, match="names: no member of the set is left"):
        trie.without({"a", "b"})
    with pytest.raises(ArgumentError, match="names: no member of the set is left"):
        trie.only([])
