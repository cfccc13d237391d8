from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pandas as pd
import pytest
from token_trie import ArgumentError, Score
from token_trie.decisions.gold import is_nothing, read_gold
from token_trie.sets.choices import read_choices


class Team(enum.Enum):
    BILLING = "billing"
    SALES = "sales"


def read(gold: Any, choices: Any, n: int | None = None) -> list[int]:
    made = read_choices(choices)
    return read_gold(gold, len(gold) if n is None else n, made.texts, made.values).tolist()


@pytest.mark.parametrize(
    ("gold", "choices", "expected"),
    [
        (["b", "a", "b"], ["a", "b"], [1, 0, 1]),
        (iter(["b"]), ["a", "b"], [1]),
        (pd.Series(["b", "a"], index=[7, 9]), ["a", "b"], [1, 0]),
        (pd.Categorical(["b", "a"]), ["a", "b"], [1, 0]),
        (np.array(["b", "a"]), ["a", "b"], [1, 0]),
        ([Team.SALES, "billing"], Team, [1, 0]),
        ([3, np.int64(1), "2"], range(1, 4), [2, 0, 1]),
        ([True, "no", np.bool_(False)], {"yes": True, "no": False}, [0, 1, 1]),
        (["a", "c"], {"a": "b", "b": "c", "c": "a"}, None),
        ([1, 2], {"1": 2, "2": 1}, None),
        ([1, "x"], {"1": 2, "x": 1}, [0, 1]),
        (["a", "b"], {"b": "a", "c": "b"}, [0, 1]),
        (["b", "c"], {"b": "a", "c": "b"}, [0, 1]),
    ],
)
def test_labels_are_texts_or_values_of_the_choices(gold: Any, choices: Any, expected: list[int] | None) -> None:
    if expected is None:
        with pytest.raises(ArgumentError, match="text of one choice and the value of another"):
            read(gold, choices)
    else:
        assert read(gold, choices, len(expected)) == expected


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        ([1, 5, 3], [0, 4, 2]),  # texts of levels
        ([0, 4, 2], [0, 4, 2]),  # their numbers
        (["1", "3"], [0, 2]),
        (np.array([5, 1]), [4, 0]),
        ([1, 3, 4], None),  # ambiguous
    ],
)
def test_numbers_of_levels_called_by_numbers_are_read_one_way_or_refused(gold: Any, expected: list[int] | None) -> None:
    score = Score("How good is it?", ["1", "2", "3", "4", "5"])
    texts = [option.name for option in score.wording]
    if expected is None:
        with pytest.raises(ArgumentError, match=r"gold\[0\]: 1 is the text of one choice .* another, '2'"):
            read_gold(gold, len(gold), texts, score.values)
    else:
        assert read_gold(gold, len(gold), texts, score.values).tolist() == expected


@pytest.mark.parametrize(
    ("gold", "choices", "message"),
    [
        (
            ["a", "c", "b", "d"],
            ["a", "b"],
            r"gold\[1\]: 'c' is none of the 2 choices \(and 1 more, the next gold\[3\]\)",
        ),
        (["Billing"], Team, r"gold\[0\]: 'Billing' is none .*; did you mean 'billing'\?"),
        (["technicl"], ["technical", "b"], "did you mean 'technical'"),
        ([1, 2], ["1", "2"], r"gold\[0\]: 1 \(int\) is none of .*; did you mean '1'\?"),
        ([True], ["true", "false"], r"gold\[0\]: True \(bool\) is none of .*; did you mean 'true'\?"),
        ([1], {"yes": True, "no": False}, r"gold\[0\]: 1 \(int\) is none"),
        ([1.0], range(3), r"gold\[0\]: 1.0 \(float\) is none"),
        ([[1]], ["a", "b"], r"gold\[0\]: \[1\] \(list\) is none"),
        (["a", None], ["a", "b"], r"gold\[1\]: no label"),
        (["a", float("nan")], ["a", "b"], r"gold\[1\]: no label"),
        (["a", pd.NA], ["a", "b"], r"gold\[1\]: no label"),
        (["a", "  "], ["a", "b"], r"gold\[1\]: no label"),
        ("aa", ["a", "b"], "gold must be a list, not str"),
        (5, ["a", "b"], "gold must be a list, not int"),
        (["a"], ["a", "b"], "gold: 1 labels for 2 rows"),
        (["x" * 10_000], ["a", "b"], r"gold\[0\]: '.{0,100}… is none"),
    ],
)
def test_what_is_no_label_is_refused_with_its_position(gold: Any, choices: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read(gold, choices, 2 if message.endswith("2 rows") else len(gold) if hasattr(gold, "__len__") else 1)


def test_a_choice_may_be_blank_by_its_own_text() -> None:
    assert read(["", "a"], ["", "a"]) == [0, 1]


@pytest.mark.parametrize("label", [None, "", " \n", float("nan"), np.float32("nan"), pd.NA, pd.NaT])
def test_nothing_is_printed(label: Any) -> None:
    assert is_nothing(label)
    assert not any(map(is_nothing, ["a", 0, False, 0.0, []]))
