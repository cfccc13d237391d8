from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError, choose_many
from token_trie.engines import loaded as loading
from token_trie.engines.data import COLUMNS, Labeller

PROMPT = "Review: {text}\nSentiment:"
CHOICES = ["positive", "negative"]
TEXTS = ["I loved it.", "It broke at once.", "Best <|im_start|> ever.", "Never again."]


@pytest.fixture
def labeller(model_paths: Any) -> Labeller:
    return Labeller(model_paths["tiny"], PROMPT, CHOICES, n_ctx=512)


def batches(texts: list[Any]) -> list[Any]:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    columns = {"text": texts, "id": list(range(len(texts)))}
    return [
        {name: np.array(values, object) for name, values in columns.items()},
        columns,
        pandas.DataFrame(columns),
        pyarrow.table(columns),
        pyarrow.table(columns).to_batches()[0],
    ]


def columns_of(batch: Any) -> dict[str, list[Any]]:
    if hasattr(batch, "to_pydict"):
        found: dict[str, list[Any]] = batch.to_pydict()
        return found
    return {str(name): list(batch[name]) for name in (batch if isinstance(batch, dict) else batch.columns)}


def test_labels_are_those_of_choose_many_in_every_kind_of_batch(labeller: Labeller, precise: Any) -> None:
    expected = list(
        choose_many(
            precise, [PROMPT.format(text=text) for text in TEXTS[:2]], CHOICES, mode="exact", probabilities=True
        )
    )
    for batch in batches(TEXTS):
        made = labeller(batch)
        assert type(made) is type(batch)
        found = columns_of(made)
        assert list(found) == ["text", "id", *COLUMNS]
        assert found["id"] == [0, 1, 2, 3]
        assert found["error"] == [""] * 4
        for i, decision in enumerate(expected):
            assert found["label"][i] == decision.value
            assert found["probability"][i] == pytest.approx(decision.probabilities[decision.index], abs=1e-2)
            assert found["margin"][i] == pytest.approx(decision.margin, abs=2e-2)


def test_a_row_that_fails_is_its_own_rows_error(labeller: Labeller) -> None:
    texts = ["good", None, "word " * 2000, "bad"]
    for batch in batches(texts):
        found = columns_of(labeller(batch))
        assert [bool(label) for label in found["label"]] == [True, False, False, True]
        assert found["error"][1] == "nothing in column 'text', which the prompt has"
        assert "context" in found["error"][2]
        assert [math.isnan(p) for p in found["probability"]] == [False, True, True, False]


def test_types_are_the_same_whatever_fails() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    kinds = {name: pyarrow.string() if kind is str else pyarrow.float64() for name, kind in COLUMNS.items()}
    labeller = Labeller("nowhere.gguf", PROMPT, CHOICES)
    with pytest.raises(ArgumentError, match=r"model: .*nowhere\.gguf"):
        labeller({"text": ["a"]})
    assert list(kinds) == list(COLUMNS)


def test_an_empty_batch_has_the_columns(labeller: Labeller) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    made = labeller(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}))
    assert made.num_rows == 0
    assert [str(field.type) for field in made.schema] == ["string", "string", "double", "double", "double", "string"]


def test_copies_share_one_model(labeller: Labeller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_llamas", {})
    assert len(pickle.dumps(labeller)) < 5_000
    first = labeller({"text": TEXTS})
    again = pickle.loads(pickle.dumps(labeller))({"text": TEXTS})
    assert first["label"].tolist() == again["label"].tolist()
    assert len(loading._llamas) == 1


def test_columns_may_be_named_otherwise(model_paths: Any) -> None:
    labeller = Labeller(model_paths["tiny"], PROMPT, CHOICES, n_ctx=512, columns={"label": "mood", "error": "why"})
    assert list(labeller({"text": ["good"], "label": [1]})) == ["text", "label", "mood", *list(COLUMNS)[1:-1], "why"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: Labeller("m", "no column", CHOICES), "prompt: no {column} in it"),
        (lambda _: Labeller("m", PROMPT, []), "choices: none given"),
        (lambda _: Labeller("m", PROMPT, CHOICES, columns={"labels": "x"}), "columns: 'labels' is none of label"),
        (lambda labeller: labeller([1]), "batch: list where"),
        (lambda labeller: labeller({"body": ["a"]}), "batch: no column 'text'"),
        (lambda labeller: labeller({"text": ["a"], "label": ["b"]}), "a column 'label' already"),
    ],
)
def test_what_does_not_fit_is_refused(labeller: Labeller, call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(labeller)
    with pytest.raises(TypeError, match="on_error"):
        Labeller("m", PROMPT, CHOICES, on_error="raise")
