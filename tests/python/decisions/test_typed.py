"""`Decision.value` as the caller's own values."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from token_trie import ArgumentError, TokenTrie, choose, explain, score

PROMPT = "The capital of Italy is"


class City(enum.Enum):
    PARIS = "Paris"
    ROME = "Rome"


@pytest.mark.parametrize(
    ("choices", "value"),
    [
        (City, City.ROME),
        ({"Paris": 1, "Rome": [2]}, [2]),
        (Literal["Paris", "Rome"], "Rome"),
        (np.array(["Paris", "Rome"]), "Rome"),
        ({"Paris", "Rome"}, "Rome"),
    ],
)
def test_the_value_is_what_the_caller_has(smollm2: Any, choices: Any, value: Any) -> None:
    decision = choose(smollm2, PROMPT, choices, probabilities=True)
    assert decision.value == value
    assert type(decision.value) is type(value)
    assert decision.text == str(decision) == "Rome"
    assert decision.index == 1
    assert decision.top(1) == [(value, decision.probability(value))]
    assert decision.probability("Paris") == decision.probabilities[0]
    assert explain(smollm2, PROMPT, choices).exact.value == value
    assert score(smollm2, PROMPT, choices).argmax() == 1


def test_numbers_come_back_as_numbers(smollm2: Any) -> None:
    assert choose(smollm2, "One, two, three: 1, 2,", range(2, 6)).value == 3
    assert choose(smollm2, "One, two, three: 1, 2,", Literal[1, 3]).value == 3


def test_probabilities_line_up_with_the_choices_as_given(smollm2: Any) -> None:
    choices = ["red", "red", "green", "blue"]
    decision = choose(smollm2, "The colour of the sky is", choices, probabilities=True)
    p = decision.probabilities
    assert p is not None
    assert p.shape == (4,)
    assert p[0] == p[1] == decision.probability("red")
    assert p[1:].sum() == pytest.approx(1)
    assert choices[decision.index] == decision.value == choices[int(p.argmax())]
    once = choose(smollm2, "The colour of the sky is", choices[1:], probabilities=True)
    assert (decision.entropy, decision.margin) == pytest.approx((once.entropy, once.margin))
    assert decision.top(4) == [(value, pytest.approx(p)) for value, p in once.top(3)]


@pytest.mark.parametrize(
    ("mode", "sources"),
    [
        ("exact", ["proof"]),
        ("greedy", ["steps"]),
        ("sampled", ["steps"]),
        ("aligned", ["sum"]),
        ("beam", ["proof", "bound"]),
        ("probabilities", ["sum"]),
    ],
)
def test_a_decision_is_json_and_says_where_it_comes_from(smollm2: Any, mode: Any, sources: list[str]) -> None:
    options: Any = {"probabilities": True} if mode == "probabilities" else {"mode": mode}
    decision = choose(smollm2, PROMPT, City, **options)
    whole = json.loads(json.dumps(decision.to_dict(), allow_nan=False))
    assert (whole["value"], whole["text"], whole["index"]) == ("Rome", "Rome", 1) or mode in ("aligned", "sampled")
    assert whole["source"] == decision.source in sources
    if decision.probabilities is not None:
        assert whole["probabilities"] == decision.probabilities.tolist()
        assert [entry["index"] for entry in whole["ranked"]] == sorted([0, 1], key=lambda i: -whole["probabilities"][i])


def test_answers_that_are_one_under_different_values_are_refused(smollm2: Any) -> None:
    with pytest.raises(ArgumentError, match="'yes' and ' yes' are the same answer here, and stand for different"):
        choose(smollm2, "Answer:", {"yes": 1, " yes": 2})
    assert choose(smollm2, "Answer:", {"yes": 1, " yes": 1}).value == 1
    assert choose(smollm2, "Answer:", ["yes", " yes"]).index == 0


def test_what_is_no_choice_has_no_probability(smollm2: Any) -> None:
    decision = choose(smollm2, PROMPT, City, probabilities=True)
    for stranger in ("Berlin", 5, None, np.array([1, 2])):
        with pytest.raises(ArgumentError, match="is none of the 2"):
            decision.probability(stranger)
    with pytest.raises(ArgumentError, match="ask for them with choose"):
        choose(smollm2, PROMPT, City).probability(City.ROME)


def test_a_trie_gives_the_names_of_its_leaves(smollm2: Any) -> None:
    trie = TokenTrie.from_choices(smollm2, City, prompt=PROMPT)
    assert trie.names == ["Paris", "Rome"]
    decision = choose(smollm2, PROMPT, trie, probabilities=True)
    assert (decision.value, decision.probability("Rome")) == ("Rome", decision.probabilities[1])


TYPES = """
import enum
from typing import Any
import token_trie
from token_trie import Decision, StreamHandle, TokenTrie, choose
from token_trie.asynchronous import achoose
class City(enum.Enum):
    ROME = "Rome"
def check(llm: Any, trie: TokenTrie, texts: list[str], table: dict[str, bytes]) -> None:
    a: Decision[str] = choose(llm, "", texts)
    b: City = choose(llm, "", City).value
    c: bytes = choose(llm, "", table, mode="greedy").value
    d: int = choose(llm, "", range(3), probabilities=True).value
    e: str = choose(llm, "", trie).value
    f: str = choose(llm, "", {"a", "b"}).text
    g: City = choose(llm, "", City).candidates[0].value
    wrong: int = choose(llm, "", texts).value  # error
    strange = choose(llm, "", texts, mood="greedy")  # error
async def check_async(llm: Any, stream: StreamHandle, texts: list[str], table: dict[str, bytes]) -> None:
    a: bytes = (await achoose(llm, "", table)).value
    b: int = (await achoose(llm, "", range(3))).value
    c: list[City] = stream.choose_list(City).values
    wrong: int = (await achoose(llm, "", texts)).value  # error
    strange = await achoose(llm, "", texts, mood="greedy")  # error
"""


def test_values_are_typed_by_what_is_given(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    file = tmp_path / "typed.py"
    file.write_text(TYPES)
    cache = str(pytestconfig.cache.mkdir("mypy"))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    wrong = [i for i, line in enumerate(TYPES.split("\n"), 1) if line.endswith("# error")]
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines() if "error:" in line]
    assert sorted(set(lines)) == wrong, done.stdout


def test_a_choice_is_found_by_what_is_equal_to_it(smollm2: Any) -> None:
    names = np.array(["Paris", "Rome"])
    decision = choose(smollm2, PROMPT, names, probabilities=True)
    assert [decision.probability(name) for name in names] == decision.probabilities.tolist()
    assert choose(smollm2, "1, 2,", range(4), probabilities=True).probability(np.int64(3)) > 0
    arrays = choose(smollm2, PROMPT, {"Paris": np.array([1, 2]), "Rome": np.array([3, 4])})
    assert arrays == arrays
    assert len({arrays, decision}) == 2


def test_keys_of_a_dict_keep_their_order(smollm2: Any) -> None:
    table = {"Rome": 1, "Paris": 2}
    assert choose(smollm2, PROMPT, table.keys()).index == 0
    assert choose(smollm2, PROMPT, set(table)).index == 1
