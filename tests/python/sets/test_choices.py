from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pandas
import pytest
from token_trie import TokenTrieError
from token_trie.sets.choices import read_choices


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    CRIMSON = "red"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Tone(str, enum.Enum):
    WARM = "warm"
    COLD = "cold"


@pytest.mark.parametrize(
    ("choices", "texts", "values"),
    [
        (["b", "a", "b"], ["b", "a", "b"], ["b", "a", "b"]),
        (("b", "a"), ["b", "a"], ["b", "a"]),
        ({"b", "a", "c"}, ["a", "b", "c"], ["a", "b", "c"]),
        (frozenset("ba"), ["a", "b"], ["a", "b"]),
        ((text for text in "ba"), ["b", "a"], ["b", "a"]),
        (np.array(["b", "a"]), ["b", "a"], ["b", "a"]),
        ({"yes": True, "no": None}, ["yes", "no"], [True, None]),
        ({"yes": 1}.keys(), ["yes"], ["yes"]),
        (Literal["b", "a"], ["b", "a"], ["b", "a"]),
        (Literal[3, 1], ["3", "1"], [3, 1]),
        (Literal[True, False], ["true", "false"], [True, False]),
        (Color, ["red", "green"], [Color.RED, Color.GREEN]),
        (Level, ["LOW", "HIGH"], [Level.LOW, Level.HIGH]),
        (Tone, ["warm", "cold"], [Tone.WARM, Tone.COLD]),
        ([Tone.COLD], ["cold"], ["cold"]),
        (range(3, 9, 2), ["3", "5", "7"], [3, 5, 7]),
    ],
)
def test_what_programs_have_is_texts_and_values(choices: Any, texts: list[str], values: list[Any]) -> None:
    read = read_choices(choices)
    assert list(read.texts) == texts
    assert [type(text) for text in read.texts] == [str] * len(texts)
    assert list(read.values) == values
    assert read_choices(read) is read


class Empty(enum.Enum):
    pass


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "choices: none given"),
        ({}, "choices: none given"),
        (range(0), "choices: none given"),
        (range(10**9), "choices must be at most 16,777,216, not 1,000,000,000"),
        (range(10**30), "choices must be at most 16,777,216, not more than 9,223,372,036,854,775,807"),
        (Empty, "choices: none given"),
        ("yes", "choices must be a list of texts, a mapping"),
        (b"yes", "choices must be "),
        (None, "choices must be "),
        (5, "choices must be "),
        (int, "choices must be "),
        (["a", 1], r"choices\[1\] must be str, not int; for other values give a mapping"),
        ([1, 2], r"choices\[0\] must be str"),
        ({1: "a"}, r"choices\[0\] must be str"),
        (np.array(["a", np.nan], object), r"choices\[1\] must be str"),
        (np.array([["a"], ["b"]]), r"choices\[0\] must be str"),
        (Literal["a", 1], "choices must be a Literal of one of str, int and bool alone, not of int, str"),
        (Literal[1, True], "choices must be a Literal of one of str, int and bool alone, not of bool, int"),
        (Literal[None], "choices must be a Literal of one of str, int and bool alone, not of NoneType"),
    ],
)
def test_what_cannot_be_choices_is_refused_with_advice(choices: Any, message: str) -> None:
    with pytest.raises(TokenTrieError, match=message):
        read_choices(choices)


def test_pandas_objects_are_read() -> None:
    for choices in (pandas.Series(["b", "a"]), pandas.Categorical(["b", "a"]), pandas.Index(["b", "a"])):
        assert list(read_choices(choices).texts) == ["b", "a"]


@pytest.mark.parametrize("make", [list, tuple, iter, dict.fromkeys])
def test_ten_thousand_are_read(make: Callable[[list[str]], Any]) -> None:
    texts = [str(i) for i in range(10_000)]
    assert list(read_choices(make(texts)).texts) == texts
