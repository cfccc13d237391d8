from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError, TokenTrie, choose_many
from token_trie.engines import data as loading
from token_trie.engines.data import COLUMNS, Labeller

PROMPT = "Review: {text}\nSentiment:"
CHOICES = ["positive", "negative"]
TEXTS = ["I loved it.", "It broke at once.", "Best <|im_start|> ever.", "Never again."]


@pytest.fixture
def labeller(model_paths: Any) -> Labeller:
    return Labeller(model_paths["tiny"], PROMPT, CHOICES, n_ctx=512)


def batches(texts: list[Any]) -> list[Any]:
    pandas = pytest.importorskip("pandas")
    columns = {"text": texts, "id": list(range(len(texts)))}
    return [{name: np.array(values, object) for name, values in columns.items()}, columns, pandas.DataFrame(columns)]


def test_labels_are_those_of_choose_many_in_every_kind_of_batch(labeller: Labeller, precise: Any) -> None:
    prompts = [PROMPT.format(text=text) for text in TEXTS[:2]]
    expected = list(choose_many(precise, prompts, CHOICES, mode="exact", probabilities=True))
    for batch in batches(TEXTS):
        made = labeller(batch)
        assert type(made) is type(batch)
        assert list(made) == ["text", "id", *COLUMNS]
        assert list(made["id"]) == [0, 1, 2, 3]
        assert list(made["error"]) == [""] * 4
        for i, decision in enumerate(expected):
            assert decision.probabilities is not None
            assert made["label"][i] == decision.value
            assert made["probability"][i] == pytest.approx(decision.probabilities[decision.index], abs=1e-2)
            assert made["margin"][i] == pytest.approx(decision.margin, abs=2e-2)


def test_a_row_that_fails_is_its_own_rows_error(labeller: Labeller) -> None:
    for batch in batches(["good", None, "word " * 2000, b"\xff", "bad"]):
        found = labeller(batch)
        assert [bool(label) for label in found["label"]] == [True, False, False, False, True]
        assert found["error"][1] == "nothing in column 'text', which the prompt has"
        assert "context" in found["error"][2]
        assert "utf-8" in found["error"][3]
        assert [math.isnan(p) for p in found["probability"]] == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        ([b"good", b"caf\xc3\xa9"], ["good", "café"]),
        (np.array([0.1, 2], np.float32), ["0.1", "2.0"]),
        (np.array([1, 2]), ["1", "2"]),
        (np.array(["2024-01-02T03:04:05"], "datetime64[s]"), ["2024-01-02 03:04:05"]),
        ([np.array(["a", "b"], object), {"n": 1}], ['["a", "b"]', '{"n": 1}']),
    ],
)
def test_the_prompt_has_the_texts_of_the_cells(labeller: Labeller, cells: Any, texts: list[str]) -> None:
    assert labeller({"text": cells})["probability"].tolist() == labeller({"text": texts})["probability"].tolist()


@pytest.mark.parametrize("nothing", [None, float("nan"), np.float32("nan"), np.datetime64("NaT")])
def test_a_missing_cell_is_its_rows_error(labeller: Labeller, nothing: Any) -> None:
    assert labeller({"text": [nothing]})["error"][0] == "nothing in column 'text', which the prompt has"


def test_a_set_may_be_the_choices(model_paths: Any, precise: Any, tmp_path: Path) -> None:
    trie = TokenTrie.from_choices(precise, [*CHOICES, "mixed"], prompt=PROMPT)
    trie.save(tmp_path / "labels.trie")
    opened = TokenTrie.open(tmp_path / "labels.trie")
    expected = Labeller(model_paths["tiny"], PROMPT, [*CHOICES, "mixed"], n_ctx=512)({"text": TEXTS})
    for made in (trie, opened, opened.filtered([0, 1, 2])):
        labeller = Labeller(model_paths["tiny"], PROMPT, made, n_ctx=512)
        for each in (labeller, pickle.loads(pickle.dumps(labeller))):
            found = each({"text": TEXTS})
            assert found["label"].tolist() == expected["label"].tolist()
            assert found["probability"] == pytest.approx(expected["probability"], abs=1e-3)
    labeller = Labeller(model_paths["tiny"], PROMPT, opened.filtered([2]), n_ctx=512)
    assert pickle.loads(pickle.dumps(labeller))({"text": TEXTS})["label"].tolist() == ["mixed"] * 4


def test_an_empty_batch_has_the_columns_and_loads_no_model() -> None:
    pandas = pytest.importorskip("pandas")
    labeller = Labeller("nowhere.gguf", PROMPT, CHOICES)
    made = labeller(pandas.DataFrame({"text": []}, dtype="string"))
    assert [str(kind) for kind in made.dtypes] == ["string", "string", "float64", "float64", "float64", "string"]
    with pytest.raises(ArgumentError, match=r"model: .*nowhere\.gguf"):
        labeller({"text": ["a"]})


def test_copies_share_one_model(labeller: Labeller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_llamas", {})
    assert len(pickle.dumps(labeller)) < 5_000
    first = labeller({"text": TEXTS})
    again = pickle.loads(pickle.dumps(labeller))({"text": TEXTS})
    assert first["label"].tolist() == again["label"].tolist()
    assert len(loading._llamas) == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"foo": 1}, TypeError, r"Labeller\(\) got an unexpected keyword argument 'foo'"),
        ({"on_error": "raise"}, TypeError, "on_error"),
        ({"mode": "best"}, ArgumentError, "mode must be one of"),
        ({"mode": "greedy"}, ArgumentError, "probabilities: has no effect"),
        ({"leaf_end": "none"}, ArgumentError, "leaf_end must be one of"),
        ({"calibration": "batch"}, ArgumentError, "calibration: 'batch' would depend on how the engine cuts"),
    ],
)
def test_options_are_refused_when_it_is_made(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Labeller("nowhere.gguf", PROMPT, CHOICES, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: Labeller("m", "no column", CHOICES), "prompt: no {column} in it"),
        (lambda _: Labeller("m", PROMPT, []), "choices: none given"),
        (lambda labeller: labeller({"body": ["a"]}), "batch: no column 'text'"),
        (lambda labeller: labeller({"text": ["a"], "label": ["b"]}), "a column 'label' already"),
    ],
)
def test_columns_and_choices_that_do_not_fit_are_refused(labeller: Labeller, call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(labeller)
