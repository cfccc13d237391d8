"""Ways side by side; the tiny model answers at random, and always the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import token_trie
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from token_trie import ArgumentError, Calibration, Choice, Predicate, TokenTrie, choose_many, evaluate
from token_trie.errors import CalibrationError
from token_trie.trust.evaluate import ways_of
from token_trie.trust.gate import find_gate
from token_trie.trust.metrics import figures_of, folds_of

FRUITS, CARS = ["apple", "pear", "plum", "fig"], ["van", "bus", "tram", "lorry"]
PROMPTS = [f"{a} {b}: yes or no?" for words in (FRUITS, CARS) for a in words for b in words if a != b]
GOLD = ["yes"] * 12 + ["no"] * 12
CHOICES = ["yes", "no"]


def test_exact_is_what_choose_many_decides(precise: Any) -> None:
    found = evaluate(precise, PROMPTS, GOLD, CHOICES, ways=["exact", "greedy"])
    for name, options in (("exact", {"probabilities": True}), ("greedy", {"mode": "greedy"})):
        decided: Any = list(choose_many(precise, PROMPTS, CHOICES, **options))
        assert [CHOICES[i] for i in found[name].answers] == [one.text for one in decided]
        right = [one.text == gold for one, gold in zip(decided, GOLD, strict=True)]
        assert found[name].figures.accuracy == pytest.approx(np.mean(right))
        if name == "exact":
            p = np.array([one.probabilities for one in decided])
            assert found[name].probabilities == pytest.approx(p, abs=1e-4)
            gold = np.array([CHOICES.index(one) for one in GOLD])
            expected = figures_of(2, gold, p.argmax(axis=1), p, np.array([one.mass for one in decided]))
            assert found[name].figures.log_loss == pytest.approx(expected.log_loss, abs=1e-4)
            assert found[name].figures.unfit == expected.unfit
    assert found["greedy"].figures.log_loss is None
    assert found.best.name == "exact"


def test_a_row_is_read_once_for_all_ways_that_are_arithmetic(precise: Any, tmp_path: Path) -> None:
    first = evaluate(precise, PROMPTS, GOLD, CHOICES, empty="N/A: yes or no?", cache=tmp_path, n_folds=4)
    assert [way.name for way in first.ways] == ["exact", "contextual", "batch", "bias", "head", "majority", "words"]
    assert first.n_read == len(PROMPTS) + 1
    again = evaluate(precise, PROMPTS, GOLD, CHOICES, empty="N/A: yes or no?", cache=tmp_path, n_folds=3)
    assert again.n_read == 0
    assert again["exact"].figures == first["exact"].figures
    other = evaluate(precise, PROMPTS, GOLD, CHOICES, ways=["follow"], cache=tmp_path)
    assert other.n_read == len(PROMPTS)


def test_a_filtered_set_is_evaluated_as_one_of_what_is_left(precise: Any, tmp_path: Path) -> None:
    # Two leaves of one name: what is kept of one filter is not taken for the other.
    rows = [TokenTrie.from_choices(precise, [text])[0].tokens for text in ("yes", "no", "maybe", "Yes")]
    offsets = np.cumsum([0, *map(len, rows)])
    whole = TokenTrie.from_arrays(np.concatenate(rows), offsets, ["yes", "no", "maybe", "yes"])
    ways = ["exact", "greedy", "contextual", "batch", "bias", "head", "words"]
    options: Any = {"ways": ways, "empty": "N/A: yes or no?", "cache": tmp_path, "n_folds": 3}
    for keep in ([0, 1], [1, 3]):
        left, alone = whole.filtered(keep), whole.filtered(keep).only(["yes", "no"])
        found, expected = (evaluate(precise, PROMPTS, GOLD, some, **options) for some in (left, alone))
        assert found.n_read > expected.n_read  # as a set of the same tokens is the same
        assert found.classes == expected.classes
        for way in found.ways:
            assert way.answers.tolist() == expected[way.name].answers.tolist()
            if way.probabilities is not None:
                assert way.probabilities == pytest.approx(expected[way.name].probabilities, abs=1e-3)
    with pytest.raises(ArgumentError, match=r"gold\[0\]: 'yes' is none of the 2 choices"):
        evaluate(precise, PROMPTS, GOLD, whole.filtered([1, 2]))


def test_an_end_rule_that_is_the_default_is_not_read_again(precise: Any) -> None:
    choices = [*CHOICES, "yes and no"]
    found = evaluate(precise, PROMPTS, GOLD, choices, ways=["exact", "longest", "any"])
    assert found.n_read == 2 * len(PROMPTS)
    assert found["exact"].figures == found["longest"].figures
    read = evaluate(precise, PROMPTS, GOLD, choices, ways=["exact"], leaf_end="any")
    assert found["any"].probabilities == pytest.approx(read["exact"].probabilities, abs=1e-4)
    assert not np.allclose(found["any"].probabilities, found["longest"].probabilities, atol=1e-6)


def test_a_form_that_is_the_default_is_not_read_again(precise: Any) -> None:
    found = evaluate(precise, PROMPTS, GOLD, Choice("Which?", CHOICES), ways=["contextual", "unlisted"])
    assert found.n_read == len(PROMPTS)
    assert found["contextual"].figures == found["unlisted"].figures


def test_a_question_is_measured_as_decide_answers_it(precise: Any) -> None:
    question = Choice("What is it?", {"fruit_of_a_tree": "yes Pizza", "car": "no Paris"})
    gold = ["fruit_of_a_tree"] * 12 + ["car"] * 12
    found = evaluate(
        precise, PROMPTS, gold, question, ways=["exact", "contextual", "listed", "orders", "majority", "batch"]
    )
    assert found.classes == ("fruit_of_a_tree", "car")
    for name, options in (
        ("exact", {"calibration": None}),
        ("contextual", {}),
        ("listed", {"form": "listed"}),
        ("orders", {"form": "listed", "orders": 4}),
        ("batch", {"calibration": "batch"}),
    ):
        answers = token_trie.decide_many(precise, PROMPTS, question, **options)
        p = [list(answer.probabilities.values()) for answer in answers]
        assert found[name].probabilities == pytest.approx(np.array(p), abs=1e-4)
        assert found[name].figures.unfit is None  # as of descriptions mass tells nothing
    assert found.n_read == 3 * len(PROMPTS)
    yes = evaluate(precise, PROMPTS, [one == "yes" for one in GOLD], Predicate("Is it a fruit?"), ways=["contextual"])
    assert (yes.classes, int((yes.gold == 0).sum())) == (("Yes", "No"), 12)


@pytest.mark.parametrize("choices", [CHOICES, Choice("Which?", CHOICES)], ids=["prompts", "question"])
def test_every_kind_of_fit_end_rule_and_form_is_a_way(precise: Any, choices: Any) -> None:
    names = list(ways_of(is_question=isinstance(choices, Choice)))
    found = evaluate(precise, PROMPTS, GOLD, choices, ways=names, empty="N/A: yes or no?", n_folds=3)
    assert [way.name for way in found.ways] == names
    assert {"head", "bias", "letters" if isinstance(choices, Choice) else "follow"} <= set(names)
    own = Calibration.fit(precise, PROMPTS, GOLD, choices, kind="bias", n_folds=3)
    assert own.held_out is not None
    assert found["bias"].probabilities == pytest.approx(own.held_out.probabilities, abs=1e-3)
    assert found.calibrations["bias"].fitted.bias == pytest.approx(own.fitted.bias, abs=1e-2)


def test_words_are_judged_on_rows_that_they_were_not_fitted_on(precise: Any) -> None:
    found = evaluate(precise, PROMPTS, GOLD, CHOICES, ways=["words", "majority"], n_folds=4)
    gold = np.array([CHOICES.index(one) for one in GOLD])
    own = [prompt.removesuffix("yes or no?") for prompt in PROMPTS]
    expected = np.empty((24, 2))
    for train, test in folds_of(gold, np.arange(24), 4):
        made = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10.0, max_iter=1000))
        expected[test] = made.fit([own[i] for i in train], gold[train]).predict_proba([own[i] for i in test])
    assert found["words"].probabilities == pytest.approx(expected)
    assert found["words"].figures.accuracy == 1.0
    assert (found["majority"].figures.accuracy, found.n_read) == (0.5, 0)


def test_what_all_prompts_share_does_not_drown_the_words_of_their_own(precise: Any) -> None:
    shown = "Of pizza, Paris and Rome. " * 20
    options: Any = {"ways": ["words"], "cache": None, "n_folds": 4}
    short = evaluate(precise, PROMPTS, GOLD, CHOICES, **options)
    long = evaluate(precise, [f"{shown}{prompt}\n\nSo:" for prompt in PROMPTS], GOLD, CHOICES, **options)
    plain = evaluate(precise, [f"{prompt}\n\nSo:" for prompt in PROMPTS], GOLD, CHOICES, **options)
    assert long["words"].probabilities == pytest.approx(plain["words"].probabilities)
    assert long["words"].figures.log_loss == pytest.approx(short["words"].figures.log_loss, abs=0.2)


def test_what_is_fitted_never_sees_the_rows_it_is_judged_on(precise: Any) -> None:
    # Labels without any relation to the rows: what is fitted on others cannot be better than the majority by much.
    prompts = [f"{i} {i * 7919 % 1000}" for i in range(120)]
    gold = [CHOICES[(i * 2654435761 >> 7) % 2] for i in range(120)]
    found = evaluate(precise, prompts, gold, CHOICES, ways=["bias", "head", "majority"], n_folds=5)
    for kind in ("bias", "head"):
        assert found[kind].figures.accuracy <= found["majority"].figures.accuracy + 0.1
        assert found[kind].figures.log_loss >= found["majority"].figures.log_loss - 0.02


def test_rows_that_are_wrong_come_surest_first(precise: Any) -> None:
    found = evaluate(precise, PROMPTS, GOLD, CHOICES, ways=["exact", "greedy"])
    confidence = [row.confidence for row in found.wrong]
    assert confidence == sorted(confidence, reverse=True)
    assert len(confidence) == round(24 * (1 - found["exact"].figures.accuracy)) > 0
    for row in found.wrong:
        assert (row.text, row.gold) == (PROMPTS[row.row], GOLD[row.row])
        assert row.answer != row.gold
    assert {row.confidence for row in found.wrong_by("greedy")} <= {None}
    with pytest.raises(KeyError):
        found.wrong_by("batch")


def test_it_tells_what_of_the_table_bears_on_its_figures(precise: Any) -> None:
    prompts, gold = [*PROMPTS, PROMPTS[0], PROMPTS[1]], [*GOLD, "no", "yes"]
    found = evaluate(precise, prompts, gold, [*CHOICES, "Paris"], ways=["exact", "words"], n_folds=4)
    assert "no row is 'Paris'" in found.notes
    assert f"2 rows are there before; 1 of these texts with different labels, the first {PROMPTS[0]!r}" in found.notes
    assert found.n_read == 24
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["n_rows"], told["best"], list(told["ways"])) == (26, "exact", ["exact", "words"])
    assert len(told["ways"]["exact"]["confusion"]) == 3


def test_a_text_beside_the_rows_that_cannot_be_read_is_not_taken_for_a_row(precise: Any) -> None:
    found = evaluate(precise, PROMPTS, GOLD, CHOICES, ways=["exact", "contextual"], empty="word " * 2000)
    assert [way.name for way in found.ways] == ["exact"]
    (note,) = found.notes
    assert note.startswith("contextual: not taken: of a text that is no row: ")


def test_the_calibration_is_that_of_the_best_way_if_labels_fit_it(precise: Any) -> None:
    found = evaluate(precise, PROMPTS, GOLD, CHOICES, ways=["bias", "head", "majority"], n_folds=4)
    best = min(("bias", "head"), key=lambda kind: found[kind].figures.log_loss or 0.0)
    assert found.calibration is found.calibrations[best]
    found = evaluate(precise, PROMPTS, GOLD, CHOICES, ways=["batch"], n_folds=4)
    with pytest.raises(CalibrationError, match="no way was taken that is fitted on labels"):
        _ = found.calibration


def test_a_state_and_its_json_text_are_one_row(precise: Any) -> None:
    states: list[Any] = [{"fruit": a} for a in FRUITS] + [{"car": b} for b in CARS]
    gold = ["yes"] * 4 + ["no"] * 4
    question = Choice("Is it a fruit?", CHOICES)
    once = evaluate(precise, states, gold, question, ways=["exact"])
    twice = evaluate(precise, [*states, *map(json.dumps, states)], gold * 2, question, ways=["exact"])
    assert twice.groups.tolist() == [*range(8)] * 2
    assert twice.n_read == 8
    assert "8 rows are there before" in twice.notes
    assert twice["exact"].figures.interval == pytest.approx(once["exact"].figures.interval)
    gates = [found.gate(0.5, "exact") for found in (once, twice)]
    assert [gate.n_different for gate in gates] == [8, 8]
    assert gates[0].threshold == gates[1].threshold


def test_the_gate_of_a_way_takes_the_choice_among_ways_into_account(precise: Any) -> None:
    found = evaluate(precise, PROMPTS, GOLD, CHOICES, ways=["exact", "batch", "words"], n_folds=4)
    way = found.best
    is_right = way.answers == found.gold
    assert way.confidence is not None
    expected = find_gate(way.confidence, is_right, 0.2, n_ways=2)
    assert [found.gate(0.2), found.gate(0.2, way.name)] == [expected, expected]


def test_the_gate_of_a_fitted_way_is_that_of_its_saved_calibration(precise: Any, tmp_path: Path) -> None:
    found = evaluate(precise, PROMPTS * 4, GOLD * 4, CHOICES, ways=["exact", "bias", "temperature", "words"], n_folds=4)
    for kind in ("bias", "temperature"):
        found.calibrations[kind].save(tmp_path / "f.json")
        again = Calibration.load(tmp_path / "f.json")
        own = again.held_out
        assert own is not None
        expected = find_gate(own.confidence, own.is_right, 0.2, groups=own.groups, n_ways=3)
        assert [found.gate(0.2, kind), again.gate(0.2)] == [expected, expected]


def test_one_class_alone_is_measured_and_nothing_is_fitted(precise: Any) -> None:
    found = evaluate(precise, PROMPTS[:10], ["yes"] * 10, CHOICES)
    assert [way.name for way in found.ways] == ["exact", "batch", "majority"]
    assert any(note.startswith("bias: not taken: ") for note in found.notes)
    assert any(note.startswith("words: not taken: ") for note in found.notes)
    with pytest.raises(CalibrationError):
        _ = found.calibration
    assert found["majority"].figures.accuracy == 1.0


def test_rows_without_words_are_measured(precise: Any) -> None:
    found = evaluate(precise, ["?", "!"] * 5, ["yes", "no"] * 5, CHOICES, ways=["exact", "words"])
    assert [way.name for way in found.ways] == ["exact"]
    assert "words: not taken" in "".join(found.notes)


@pytest.mark.parametrize(
    ("prompts", "gold", "choices", "options", "message"),
    [
        (PROMPTS, [*GOLD[:-1], "maybe"], CHOICES, {}, r"gold\[23\]: 'maybe' is none of the 2 choices"),
        (PROMPTS, GOLD[:-1], CHOICES, {}, "gold: 23 labels for 24 rows"),
        ([], [], CHOICES, {}, "prompts: none given"),
        ("a text", GOLD, CHOICES, {}, "prompts must be a list, not str"),
        (PROMPTS, GOLD, ["yes"], {}, "choices: 'yes' is the only one"),
        (PROMPTS, GOLD, ["yes", "no", "yes"], {}, "is there twice"),
        (PROMPTS, GOLD, CHOICES, {"ways": ["exakt"]}, "ways must be among exact, "),
        (PROMPTS, GOLD, CHOICES, {"ways": "exact"}, "ways must be a list of names of ways, not 'exact'"),
        (PROMPTS, GOLD, CHOICES, {"ways": []}, "ways: none given"),
        (PROMPTS, GOLD, CHOICES, {"ways": ["listed"]}, "ways must be among exact, "),
        (PROMPTS, GOLD, CHOICES, {"ways": ["contextual"]}, "needs the prompt without its content, as empty"),
        (PROMPTS, GOLD, CHOICES, {"n_folds": 1}, "n_folds"),
        (PROMPTS, GOLD, CHOICES, {"texts": ["a"]}, "texts: 1 for 24 rows"),
        (PROMPTS, GOLD, CHOICES, {"form": "listed"}, "form, orders and examples: go with a Choice"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    precise: Any, prompts: Any, gold: Any, choices: Any, options: Any, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        evaluate(precise, prompts, gold, choices, **options)
