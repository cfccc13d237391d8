from __future__ import annotations

import datetime
import enum
import json
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from token_trie import ArgumentError, TokenTrie, choose_many, fill
from token_trie.decisions.calibration import BatchPrior
from token_trie.engines import data as loading
from token_trie.engines.data import COLUMNS, Extractor, Labeller, RecordColumns

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


def test_bytes_are_utf_8_or_that_rows_error(labeller: Labeller) -> None:
    as_texts = columns_of(labeller({"text": ["good", "bad"]}))
    for batch in batches([b"good", b"\xff", b"bad"]):
        found = columns_of(labeller(batch))
        assert [found["label"][i] for i in (0, 2)] == as_texts["label"]
        assert found["error"][1].startswith("column 'text': not UTF-8")
        assert found["label"][1] == found["error"][0] == ""


def test_the_prompt_has_the_texts_of_the_cells(labeller: Labeller) -> None:
    day = np.array(["2024-01-02T03:04:05"], "datetime64[ns]")
    assert labeller({"text": day})["probability"] == labeller({"text": ["2024-01-02 03:04:05"]})["probability"]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"text": ["a", "b"], "n": [1]}, "column 'n' has 1 rows, where 'text' has 2"),
        ({"text": ["a"], "n": [1, 2]}, "column 'n' has 2 rows, where 'text' has 1"),
        ({"id": [1, 2], "text": ["a", "b"], "n": [1, 2, 3]}, "column 'n' has 3 rows, where 'id' has 2"),
        ({"text": "ab", "n": [1, 2]}, "column 'text' is str, where a list"),
        ({"text": ["a"], "n": 1}, "column 'n' is int, where a list"),
        ({"text": np.array("a"), "n": [1]}, "column 'text' is ndarray, where a list"),
    ],
)
def test_columns_of_unequal_lengths_are_refused(labeller: Labeller, batch: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"batch: {message}"):
        labeller(batch)


def test_a_column_may_be_called_by_a_number(model_paths: Any) -> None:
    pandas = pytest.importorskip("pandas")
    labeller = Labeller(model_paths["tiny"], "Review: {0}\nSentiment:", CHOICES, n_ctx=512)
    expected = labeller({"0": TEXTS})["label"].tolist()
    for batch in (pandas.DataFrame({0: TEXTS, 1: TEXTS}), {0: TEXTS}):
        assert columns_of(labeller(batch))["label"] == expected
    with pytest.raises(ArgumentError, match="batch: no column '0', which the prompt has; there are 1"):
        labeller({1: TEXTS})


def test_a_column_that_is_there_twice_is_refused_where_the_prompt_has_it(labeller: Labeller) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    for names, is_refused in ((["text", "text", "n"], True), (["text", "n", "n"], False)):
        for batch in (
            pandas.DataFrame([["a", "b", "c"]], columns=names),
            pyarrow.table([["a"], ["b"], ["c"]], names=names),
        ):
            if is_refused:
                with pytest.raises(ArgumentError, match="batch: 2 columns 'text', which the prompt has"):
                    labeller(batch)
            else:
                assert type(labeller(batch)) is type(batch)


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
    for each in (labeller, pickle.loads(pickle.dumps(labeller))):
        assert each({"text": TEXTS})["label"].tolist() == ["mixed"] * 4


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"foo": 1}, TypeError, r"Labeller\(\) got an unexpected keyword argument 'foo'"),
        ({"leafend": "any"}, TypeError, "did you mean 'leaf_end'"),
        ({"mode": "best"}, ArgumentError, "mode: 'best' is none of"),
        ({"mode": "greedy"}, ArgumentError, "probabilities score the whole set"),
        ({"max_nodes": 5}, ArgumentError, "probabilities score the whole set"),
        ({"leaf_end": "none"}, ArgumentError, "leaf_end: 'none' is none of"),
        ({"n_parallel": 1}, ArgumentError, "n_parallel: 1 is not a count from 2"),
        ({"calibration": 3}, ArgumentError, "calibration: int where"),
        ({"calibration": "batch"}, ArgumentError, "calibration: 'batch' would depend on how the engine cuts"),
        ({"calibration": BatchPrior(window=9)}, ArgumentError, "calibration: 'batch' would depend"),
    ],
)
def test_options_are_refused_when_it_is_made(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Labeller("nowhere.gguf", PROMPT, CHOICES, **options)


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


ORDER = {
    "type": "object",
    "properties": {
        "team": {"enum": ["sales", "support"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 9},
        "late": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "error": {"enum": ["none", "some"]},
    },
    "required": ["team", "n", "tags", "error"],
}


def test_records_are_those_of_fill_in_every_kind_of_batch(model_paths: Any, tiny: Any) -> None:
    extractor = pickle.loads(pickle.dumps(Extractor(model_paths["tiny"], PROMPT, ORDER, n_ctx=512, mode="greedy")))
    for batch in batches([*TEXTS, None]):
        found = columns_of(extractor(batch))
        assert list(found) == ["text", "id", "team", "n", "late", "tags", "record_error", "error"]
        assert found["error"] == [""] * 4 + ["nothing in column 'text', which the prompt has"]
        assert math.isnan(found["n"][4])
        assert [found[name][4] for name in ("team", "late", "tags")] == ["", "", ""]
        for i, text in enumerate(TEXTS):
            # Cells are data, so that <|im_start|> is a text.
            record: Any = fill(tiny, extractor.template.fill({"text": text}), ORDER, mode="greedy").value
            late = "" if "late" not in record else json.dumps(record["late"])
            expected = [record["team"], record["n"], late, json.dumps(record["tags"]), record["error"]]
            assert [found[name][i] for name in ("team", "n", "late", "tags", "record_error")] == expected


def test_records_of_other_values_have_one_column(model_paths: Any) -> None:
    extractor = Extractor(model_paths["tiny"], PROMPT, {"enum": [1, 2, None]}, columns={"record": "n"}, n_ctx=512)
    found = extractor({"text": ["good"]})
    assert list(found) == ["text", "n", "error"]
    assert found["n"].dtype == float
    with pytest.raises(ArgumentError, match="not"):
        Extractor(model_paths["tiny"], PROMPT, {"not": {}})
    with pytest.raises(ArgumentError, match="max_tokens"):
        Extractor(model_paths["tiny"], PROMPT, ORDER, max_tokens=0)


def test_an_integer_that_is_no_float_is_its_rows_error(model_paths: Any) -> None:
    for n, error in ((2**53 + 1, "column 'n': 9007199254740993 has more"), (-(10**400), "column 'n': -1"), (2**70, "")):
        schema = {"type": "object", "properties": {"n": {"const": n}, "a": {"const": "b"}}, "required": ["n", "a"]}
        found = Extractor(model_paths["tiny"], PROMPT, schema, n_ctx=512)({"text": ["good"]})
        assert found["error"][0].startswith(error)
        assert (found["a"][0], bool(np.isnan(found["n"][0]))) == (("", True) if error else ("b", False))


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Item:
    """A dataclass whose fields have types of every kind."""

    size: Size
    n: int | None
    share: float | int
    late: bool
    day: datetime.date
    code: Literal["a", 1]
    tags: list[str]
    part: Item | None = None


def test_columns_of_a_type_have_the_types_of_its_flat_fields() -> None:
    pytest.importorskip("pydantic")
    assert RecordColumns(Item, ("late",)).types == {
        "size": "string",
        "n": "int64",
        "share": "float64",
        "record_late": "bool",
        "day": "string",
        "code": "string",
        "tags": "string",
        "part": "string",
    }


def test_columns_follow_references_as_the_record_does(model_paths: Any, tiny: Any) -> None:
    schema = {
        "$defs": {
            "a b": {"type": "integer", "minimum": 0, "maximum": 9},
            "c/d~%": {"$ref": "#/properties/late/anyOf/0"},
            "row": {"properties": {"n": {"type": "integer"}}},
        },
        "type": "object",
        "properties": {
            "late": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "n": {"$ref": "#/$defs/a%20b"},
            "paid": {"$ref": "#/$defs/c~1d~0%25"},
            "never": {"not": {}, "$ref": "#/nowhere"},
        },
        "required": ["n", "paid", "late"],
    }
    assert RecordColumns(schema, ()).types == {"late": "bool", "n": "int64", "paid": "bool"}
    assert set(fill(tiny, PROMPT, schema).value) == {"late", "n", "paid"}
    found = Extractor(model_paths["tiny"], PROMPT, schema, n_ctx=512)({"text": TEXTS})
    assert found["error"].tolist() == [""] * len(TEXTS)
    assert set(found["n"]) <= set(range(10))
    assert RecordColumns({"$defs": schema["$defs"], "$ref": "#/$defs/row"}, ()).types == {"n": "int64"}


def test_each_field_of_a_record_has_a_column_of_its_own() -> None:
    fields = {"row": {"type": "integer"}, "record_row": {"type": "integer"}}
    columns = RecordColumns({"type": "object", "properties": fields, "required": ["row", "more"]}, ("row", "more"))
    assert columns.values('{"row": 1, "record_row": 2, "more": 3}') == {
        "record_record_row": 1,
        "record_row": 2,
        "record_more": 3,
    }
    for none in (
        {"type": ["object", "null"], "properties": fields},
        {"anyOf": [{"properties": fields}, {"const": None}]},
    ):
        columns = RecordColumns(none, ())
        assert (columns.types, columns.values("null")) == (dict.fromkeys(fields, "int64"), dict.fromkeys(fields))
    either = RecordColumns({"type": ["object", "array"], "properties": fields}, ())
    assert either.values("[1]") == {"record": [1]}
