from __future__ import annotations

import contextlib
import dataclasses
import enum
import itertools
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import jsonschema
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_schemas import RandomSchema, grammar_takes
from support.drawing import seeded
from token_trie import (
    ArgumentError,
    CancelledError,
    ContextError,
    LimitError,
    Record,
    StreamHandle,
    Think,
    TokenTrie,
    choose,
    fill,
)
from token_trie.asynchronous import afill
from token_trie.decisions.options import RecordOptions
from token_trie.plan import run
from token_trie.records.fill import read_template, record_request
from token_trie.records.nodes import COMPACT, Layout
from token_trie.records.schema import read_schema
from token_trie.records.write import Writer, close_value
from typing_extensions import TypedDict

PROMPT = "Request: will it rain in Oslo in the next three days? In celsius.\nArguments:"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "alert": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["rain", "wind", "sun"]}, "uniqueItems": True, "minItems": 1},
        "note": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "null"}]},
    },
    "required": ["city", "unit", "days", "tags", "note"],
}
MODES = ["exact", "greedy", "sampled"]


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


class Weather(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=12)
    unit: Unit
    days: int = pydantic.Field(ge=1, le=14)
    note: str | None = pydantic.Field(default=None, max_length=8)


class Share(enum.IntEnum):
    HALF = 2


@dataclasses.dataclass
class Point:
    x: Literal[1, 2]
    y: bool


class Pair(TypedDict):
    first: Point
    rest: list[Literal["a", "b"]]


@pytest.fixture
def stream(precise: Any) -> Iterator[StreamHandle]:
    with StreamHandle(precise, n_ctx=512) as handle:
        yield handle


def layouts_of(value: Any) -> list[str]:
    """Return the texts of an object that are in one of the models' own layouts."""
    line, lines = json.dumps(value, ensure_ascii=False), json.dumps(value, ensure_ascii=False, indent=2)
    short = re.sub(r"\[[^\[\]{}]*\]", lambda found: json.dumps(json.loads(found[0]), ensure_ascii=False), lines)
    return [line, lines, short, json.dumps(value, ensure_ascii=False, separators=(",", ":"))]


def plan_in(layout: Layout | None, schema: Any, **options: Any) -> Any:
    """Return the plan of a record that is written in a layout."""
    return replace(record_request(read_template(schema), RecordOptions(**options)), layout=layout).plan


@pytest.mark.parametrize("mode", MODES)
def test_a_record_is_valid_and_its_text_is_that_of_the_value(llm: Any, mode: Any) -> None:
    record = fill(llm, PROMPT, WEATHER, mode=mode, **seeded(mode, 1))
    jsonschema.validate(record.value, WEATHER)
    assert record.text in layouts_of(record.value)
    assert {"/unit", "/days", "/tags/0", "/note", ""} <= record.probabilities.keys()
    assert all(0 < p <= 1 for p in record.probabilities.values())
    assert list(record.value) == [name for name in WEATHER["properties"] if name in record.value]  # type: ignore[attr-defined]


def test_a_type_comes_back_as_its_instance(any_model: Any) -> None:
    record: Record[Weather] = fill(any_model, PROMPT, Weather, mode="greedy")
    assert isinstance(record.value, Weather)
    assert record.value.unit is Unit.C
    assert isinstance(fill(any_model, PROMPT, Point, mode="greedy").value, Point)
    pair = fill(any_model, PROMPT, Pair, mode="greedy").value
    assert isinstance(pair["first"], Point)
    assert set(pair["rest"]) <= {"a", "b"}
    assert fill(any_model, PROMPT, bool, mode="greedy").value in (True, False)
    by_unit: dict[Unit, Share] = fill(any_model, PROMPT, dict[Unit, Share], indent=2).value
    assert {*by_unit} <= {Unit.C, Unit.F}
    assert {*by_unit.values()} <= {Share.HALF}
    with pytest.raises(ArgumentError, match="schema#/propertyNames: no name is allowed"):
        fill(any_model, PROMPT, dict[Share, Unit])


LISTS = {
    "type": "object",
    "properties": {
        "people": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 12}, "role": {"enum": ["chair", "guest"]}},
                "required": ["name"],
            },
            "maxItems": 3,
        },
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 3},
        "more": {},
    },
    "required": ["people", "tags", "more"],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("schema", [WEATHER, LISTS], ids=["values", "lists"])
def test_the_layout_that_is_asked_for_changes_no_value(llm: Any, schema: Any, mode: Any) -> None:
    own = fill(llm, PROMPT, schema, mode=mode, **seeded(mode, 3), max_tokens=24)
    for indent, separators in ((2, None), (None, (",", ":"))):
        record = fill(llm, PROMPT, schema, mode=mode, **seeded(mode, 3), max_tokens=24, indent=indent)
        assert (record.value, record.probabilities) == (own.value, own.probabilities)
        assert record.text == json.dumps(own.value, ensure_ascii=False, indent=indent, separators=separators)


def test_step_by_step_a_pass_is_a_branch_point_or_a_free_token(llm: Any) -> None:
    with StreamHandle(llm, n_ctx=256) as stream:
        stream.prefill(PROMPT)
        before = stream.state.n_passes
        stats = stream.fill(WEATHER, mode="greedy").stats
        assert stats is not None
        assert stream.state.n_passes - before == stats.n_free  # which are written; the others only weigh
        assert stats.n_passes == stats.n_branches + stats.n_free
        assert stats.n_passes < stats.n_tokens
    # Forced tokens behind a prompt are evaluated with it.
    stats = fill(llm, PROMPT, WEATHER, mode="greedy").stats
    assert stats is not None
    assert stats.n_passes == stats.n_branches + stats.n_free - 1


def test_a_value_is_as_probable_as_choose_says(precise: Any) -> None:
    schema = {"type": "object", "properties": {"unit": {"enum": ["yes", "no"]}}, "required": ["unit"]}
    record = run(precise, "Answer:\n", plan_in(COMPACT, schema))
    ahead = choose(precise, 'Answer:\n{"unit":"', ["yes", "no"], leading_space=False)
    assert record.value["unit"] == ahead.value
    assert record.probabilities["/unit"] == pytest.approx(math.exp(ahead.logprob), rel=1e-3)


@pytest.mark.parametrize("prompt", ["Answer:\n", "Begin\nJSON:", "a b c\n"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {name: {"const": name * 9} for name in ("address", "b", "city")}},
        {
            "type": "array",
            "items": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
            "maxItems": 3,
        },
        {"anyOf": [{"const": None}, {"type": "object", "properties": {"long": {"const": 1}}, "required": ["long"]}]},
    ],
    ids=["fields", "items", "alternatives"],
)
@pytest.mark.parametrize("layout", [COMPACT, Layout(2), None], ids=["compact", "lines", "own"])
def test_what_the_schema_dictates_is_not_charged_for(precise: Any, prompt: str, schema: Any, layout: Any) -> None:
    exact, greedy = (run(precise, prompt, plan_in(layout, schema, mode=mode)) for mode in ("exact", "greedy"))
    assert exact.text == greedy.text  # no value is a choice, so that there is nothing to search for
    assert exact.probabilities == pytest.approx(greedy.probabilities, rel=1e-4)


@pytest.mark.parametrize("prompt", ["Answer:\n", "Begin\nJSON:", "a b c\n", "x\n"])
def test_an_item_follows_by_the_next_token_and_its_value_is_the_most_probable(precise: Any, prompt: str) -> None:
    values = ["aa", "ab", "ba", "bbb"]
    schema = {"type": "array", "items": {"enum": values}, "maxItems": 3}
    record = run(precise, prompt, plan_in(Layout(2), schema, max_nodes=None))
    text = prompt + "["
    for value in record.value:
        text += '\n  "'
        assert value == choose(precise, text, values, leading_space=False).text
        text += f'{value}",'


ACTIONS = [f"{verb}_{noun}" for verb in ("READ", "WRITE", "OPEN", "CLOSE") for noun in ("FILE", "MAIL", "PAGE", "NOTE")]


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [f"{i * 7919 % 10007:x}" for i in range(10_000)]},
        {"anyOf": [{"enum": [f"{i:x}-{j * 31 % 97:x}" for j in range(97)]} for i in range(100)]},
        {"type": "object", "properties": {f"{i:x}": {"enum": [i]} for i in range(10_000)}, "maxProperties": 10_000},
    ],
    ids=["enum", "anyOf", "properties"],
)
def test_the_work_on_many_values_grows_with_their_number_alone(precise: Any, schema: Any) -> None:
    if "properties" in schema:
        schema = {**schema, "required": [*schema["properties"]]}
        with pytest.raises(ContextError):
            fill(precise, "Answer:\n", schema)
    else:
        fill(precise, "Answer:\n", schema, mode="greedy")
    started = time.thread_time()
    read_schema(schema)
    assert time.thread_time() - started < 2


def test_constants_without_an_end_meet_the_end_of_the_context(precise: Any) -> None:
    defs: dict[str, Any] = {"d15": {"const": "x" * 100}}
    for i in range(15):
        defs[f"d{i}"] = {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 64, "minItems": 64}
    with pytest.raises(ContextError):
        fill(precise, "Answer:\n", {"$ref": "#/$defs/d0", "$defs": defs})


@pytest.mark.parametrize("max_nodes", [1, 24, None])
def test_a_search_ends_with_its_nodes_and_tells_whether_it_proved(precise: Any, max_nodes: int | None) -> None:
    record = fill(precise, "Answer:\n", {"enum": ACTIONS}, max_nodes=max_nodes)
    best = choose(precise, "Answer:\n", [f'"{action}"' for action in ACTIONS], leading_space=False)
    assert record.stats is not None
    assert record.value in ACTIONS
    if max_nodes is None:
        assert record.stats.n_unproved == 0
    if max_nodes == 1:
        assert record.stats.n_unproved == 1  # such a model is not sure at its first token
    if record.stats.n_unproved == 0:
        assert f'"{record.value}"' == best.value


def test_what_one_pass_decides_is_one_pass(byte_level: Any) -> None:
    schema = {"type": "object", "properties": {"is_warm": {"type": "boolean"}}, "required": ["is_warm"]}
    with StreamHandle(byte_level, n_ctx=256) as stream:
        stream.prefill("Answer:\n")
        stats = stream.run(plan_in(COMPACT, schema)).stats
    assert stats is not None
    assert stats.n_passes == 1  # the prompt and all forced tokens before the value


def test_integers_are_written_digit_by_digit_in_every_mode(precise: Any) -> None:
    schema = {"type": "integer", "minimum": 0, "maximum": 60}
    exact, greedy = (fill(precise, "Answer:\n", schema, mode=mode) for mode in ("exact", "greedy"))
    assert exact == greedy
    assert exact.probabilities == greedy.probabilities
    assert exact.stats is not None
    assert exact.stats.n_evaluated == 0


@pytest.mark.parametrize(("more", "begins_another"), [([], False), (["celsius or not"], True)])
def test_the_end_of_a_value_is_weighed_where_another_goes_on_from_it(
    any_model: Any, more: list[str], begins_another: bool
) -> None:
    properties = {"unit": {"enum": ["celsius", "fahrenheit", *more]}, "n": {"const": 1}}
    with StreamHandle(any_model, n_ctx=256) as stream:
        stream.prefill(PROMPT + "\n")
        schema = {"type": "object", "properties": properties, "required": ["unit", "n"]}
        record = stream.run(plan_in(COMPACT, schema))
        tokens = stream.tokens
        n = len(any_model.tokenize((PROMPT + '\n{"unit":"').encode()))
        value = tokens[n:]
        n_value = next(k for k in range(1, len(value)) if b'"' in any_model.detokenize(value[:k]))
        stream.prefill(tokens[:n])
        weighed = TokenTrie.from_sequences({"value": value[: n_value - (not begins_another)]})
        whole = stream.score(weighed, leaf_end="any")
    assert record.value["unit"] == "celsius"
    # Not with a quote of its own, which nobody writes where "," is one token. Quantized weights are not exact.
    assert any_model.detokenize(value[n_value - 1 : n_value]) == b'","'
    assert math.log(record.probabilities["/unit"]) == pytest.approx(float(whole[0]), abs=0.4)


@pytest.mark.parametrize("mode", MODES)
def test_stepping_token_by_token_gives_the_same(precise: Any, mode: Any) -> None:
    results = []
    for jump_forward in (True, False):
        with StreamHandle(precise, n_ctx=512, jump_forward=jump_forward) as stream:
            stream.prefill(PROMPT)
            for seed in range(3):
                stream.fill(WEATHER, mode=mode, **seeded(mode, seed), max_tokens=8)
                stream.append("\nThen:")
            results.append(stream.tokens)
    assert results[0] == results[1]


def test_a_turn_of_text_a_choice_and_a_record_is_one_sequence(any_model: Any) -> None:
    with StreamHandle(any_model, n_ctx=512) as stream:
        stream.prefill("Request: wake me at seven.\nThought:")
        given = any_model.detokenize(stream.tokens, special=True).decode()
        thought = stream.text(8, stop="\n")
        stream.append("\nAction:")
        action = stream.choose(["SET_ALARM", "READ"])
        stream.append("\nArguments: ")
        record = stream.fill(Point)
        stream.append("\nDone:")
        done = stream.choose(["yes", "no"])
        text = any_model.detokenize(stream.tokens, special=True).decode()
    assert text == f"{given}{thought}\nAction: {action.text}\nArguments: {record.text}\nDone: {done.text}"


def test_the_sequence_is_tokenized_as_the_text_would_be(any_model: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"enum": [1, 10, 100]}}}
    schema["required"] = ["a", "b"]  # type: ignore[assignment]
    with StreamHandle(any_model, n_ctx=256) as stream:
        stream.prefill("Arguments:\n")
        record = stream.fill(schema)
        assert stream.tokens == any_model.tokenize(b"Arguments:\n" + record.text.encode())


@pytest.mark.parametrize("seed", [*range(24), 562])  # one with bytes that are no text
def test_records_of_random_schemas_are_valid_and_llama_cpp_takes_them(
    precise: Any, stream: StreamHandle, seed: int
) -> None:
    schema = RandomSchema(seed, for_llama=seed % 2 == 0).make()
    stream.prefill("Begin\nJSON:")
    layout = None if seed % 2 else COMPACT  # the grammar of llama-cpp-python takes no line breaks
    record = stream.run(plan_in(layout, schema, mode="sampled", seed=seed, max_tokens=60))
    assert precise.detokenize(stream.tokens).decode().endswith("\nJSON:" + record.text)
    jsonschema.validate(json.loads(record.text), schema, cls=jsonschema.Draft202012Validator)
    assert record.stats is not None
    assert record.stats.n_passes <= record.stats.n_branches + record.stats.n_free
    assert seed % 2 or grammar_takes(precise, schema, record.text, json.dumps)


def test_records_of_seeds_next_to_each_other_are_no_copies_of_each_other(stream: StreamHandle) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 24, "maxItems": 24}
    drawn: list[list[bool]] = []
    for seed in [*range(8), 2**32 - 2, 2**32 - 1]:
        stream.prefill("Begin\nJSON:")
        drawn.append(stream.fill(schema, mode="sampled", seed=seed, temperature=50.0).value)
    for one, other in itertools.combinations(drawn[:9], 2):
        assert all(one[i:] != other[: 24 - i] and other[i:] != one[: 24 - i] for i in range(8))
    stream.prefill("Begin\nJSON:")
    assert stream.fill(schema, mode="sampled", seed=3, temperature=50.0).value == drawn[3]


def test_a_string_that_does_not_end_is_closed_and_named(any_model: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"const": 1}}, "required": ["a", "b"]}
    example = '{"a": "one two three four five six seven eight nine ten eleven twelve", "b": 1}\n'
    record = fill(any_model, example * 2, schema, max_tokens=5)
    assert record.truncated == ("/a",)
    assert len(record.value["a"]) > 5
    assert record.value["b"] == 1


def test_a_string_ends_where_the_context_leaves_room_for_the_rest_alone(any_model: Any) -> None:
    names = "abc"
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": list(names)}
    example = json.dumps({"a": "one two three four five six seven eight " * 10, "b": "x", "c": "y"})
    with StreamHandle(any_model, n_ctx=256) as stream:
        stream.prefill(f"{example}\n" * 2)
        record = stream.run(plan_in(COMPACT, schema, max_tokens=100_000))
        assert record.truncated
        jsonschema.validate(json.loads(record.text), schema)
        assert 220 < len(stream.tokens) <= 256


@pytest.mark.parametrize(
    ("value", "max_tokens"),
    [
        ({"type": "string", "pattern": "^[0-9]{5,90}$"}, 9),
        ({"type": "string", "pattern": "^ab(cd)*(ef){0,9}$"}, 9),
        ({"type": "number"}, 3),
        ({"type": "integer", "minimum": 100_000_000}, 9),
        ({"type": "number", "minimum": 10_000.5}, 6),
    ],
    ids=str,
)
def test_a_value_that_may_end_at_max_tokens_ends_there_and_is_named(
    stream: StreamHandle, value: Any, max_tokens: int
) -> None:
    schema = {"type": "object", "properties": {"k": value, "b": {"const": 1}}, "required": ["k", "b"]}
    stream.prefill(PROMPT)
    n_truncated = 0
    for seed in range(12):
        with stream.fork() as fork:
            record = fork.run(plan_in(COMPACT, schema, max_tokens=max_tokens, temperature=1, seed=seed))
        assert record.truncated in ((), ("/k",))
        n_truncated += len(record.truncated)
        jsonschema.validate(json.loads(record.text), schema)
    assert n_truncated > 0


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_any_beginning_of_an_object_or_a_list_is_closed(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps([value], ensure_ascii=ascii_only, indent=indent)
    before = 0
    for n in range(1, len(text) + 1):
        end, closers = close_value(text[:n]) or (0, "")
        assert before <= end <= n
        assert isinstance(json.loads(text[:end] + closers), list)
        before = end
    assert (before, closers) == (len(text), "")
    assert close_value("tru") is close_value("12") is None


@pytest.mark.parametrize("value", [{"type": "object"}, {"type": "array"}], ids=str)
def test_any_object_or_list_is_closed_at_max_tokens_and_named(stream: StreamHandle, value: Any) -> None:
    schema = {"type": "object", "properties": {"k": value, "b": {"const": 1}}, "required": ["k", "b"]}
    stream.prefill(PROMPT)
    n_truncated = 0
    for seed in range(12):
        with stream.fork() as fork:
            record = fork.fill(schema, max_tokens=9, temperature=1.5, seed=seed)
        assert record.truncated in ((), ("/k",))
        n_truncated += len(record.truncated)
        jsonschema.validate(json.loads(record.text), schema)
    assert n_truncated > 0


def test_an_alternative_to_an_object_or_a_list_is_whole_or_an_error(byte_level: Any) -> None:
    schema = {"anyOf": [{"type": "array"}, {"enum": [{"x": 1}, 1, 12]}]}
    found: list[Any] = []
    for seed in range(60):
        with contextlib.suppress(LimitError):
            record = fill(byte_level, PROMPT, schema, mode="sampled", temperature=9.0, max_tokens=4, seed=seed)
            jsonschema.validate(record.value, schema)
            found.append(record.value)
    assert 0 < len(found) < 60  # an object needs more tokens, and cannot be closed by itself


def test_an_alternative_that_begins_another_ends_where_the_other_does_not_go_on(any_model: Any) -> None:
    schema = {"anyOf": [{"type": "array"}, {"enum": [1, 12]}]}
    assert fill(any_model, "Count up: 9, 10, 11,", schema, mode="greedy").value == 12
    assert fill(any_model, "Count down: 4, 3, 2,", schema, mode="greedy").value == 1


def test_a_slot_that_cannot_end_is_an_error_that_names_it(stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    before = stream.tokens
    schema = {"type": "object", "properties": {"k": {"type": "string", "format": "uuid"}}, "required": ["k"]}
    with pytest.raises(LimitError, match="record/k: no end after 3 tokens"):
        stream.fill(schema, max_tokens=3)
    assert stream.tokens == before


def test_an_error_in_the_middle_leaves_all_as_it_was(any_model: Any) -> None:
    def fail(piece: str) -> None:
        pieces.append(piece)
        if "unit" in piece:
            raise KeyError("mine")

    pieces: list[str] = []
    with StreamHandle(any_model, n_ctx=256) as stream:
        trie = TokenTrie.from_choices(any_model, ["READ", "STOP"])
        stream.prefill(PROMPT)
        stream.set_grammar('root ::= "abc"')
        stream.set_token_trie(trie)
        before = stream.tokens
        with pytest.raises(KeyError, match="mine"):
            stream.fill(WEATHER, on_text=fail)
        assert len(pieces) > 1
        assert stream.tokens == before
        assert "".join(step.text for step in stream.generate()) in ("READ", "STOP")
        stream.clear_token_trie()
        stream.prefill(PROMPT)
        assert stream.text(5).text == "abc"


def test_a_fork_writes_the_same_and_neither_disturbs_the_other(stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    with stream.fork() as other:
        record = stream.fill(WEATHER, mode="greedy", max_tokens=8)
        assert other.fill(WEATHER, mode="greedy", max_tokens=8) == record
        assert other.tokens == stream.tokens


def test_a_grammar_begins_anew_after_a_record(any_model: Any) -> None:
    with StreamHandle(any_model, n_ctx=256) as stream:
        stream.set_grammar('root ::= "abc"')
        stream.prefill(PROMPT)
        stream.fill(Point)
        assert stream.text(5).text == "abc"


def test_the_text_is_passed_on_part_by_part(any_model: Any) -> None:
    pieces: list[str] = []
    record = fill(any_model, PROMPT, WEATHER, mode="greedy", on_text=pieces.append)
    assert "".join(pieces) == record.text
    assert len(pieces) > 5


@pytest.mark.parametrize("mode", ["exact", "greedy"])
def test_what_the_model_has_no_value_for_is_left_out_and_not_passed_on(llm: Any, mode: Any) -> None:
    prompt = "".join(f'{{"name": "{name}", "phone": null}}\n' for name in ("Ann", "Bob", "Eve", "Joe", "Tom"))
    phone = {"type": "string", "maxLength": 9}
    properties = {"name": {"enum": ["Kim", "Lea"]}, "phone": phone}
    for is_null in (False, True):
        schema = {"type": "object", "properties": dict(properties), "required": ["name"]}
        if is_null:
            schema["properties"] = properties | {"phone": {"anyOf": [phone, {"type": "null"}]}}
        pieces: list[str] = []
        with StreamHandle(llm, n_ctx=256) as stream:
            stream.prefill(prompt)
            record = stream.fill(schema, mode=mode, on_text=pieces.append)
            assert stream.text(4, temperature=0).text[:1] == "\n"
        assert record.value == {"name": record.value["name"], **({"phone": None} if is_null else {})}
        assert "".join(pieces) == record.text


@pytest.mark.parametrize("name", ["byte_level", "hybrid"])
def test_what_is_left_out_leaves_nothing_in_the_sequence(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, n_left_out, restore = request.getfixturevalue(name), 0, Writer.restore

    def counted(writer: Writer, checkpoint: Any) -> None:
        nonlocal n_left_out
        n_left_out += 1
        restore(writer, checkpoint)

    monkeypatch.setattr(Writer, "restore", counted)
    kinds: list[dict[str, Any]] = [{"type": "boolean"}, {"type": "string", "maxLength": 4}, {"type": "integer"}]
    schema = {"type": "object", "properties": {f"{kind['type']}{i}": kind for i in range(3) for kind in kinds}}
    for n in range(40):
        with StreamHandle(llm, n_ctx=512) as stream, StreamHandle(llm, n_ctx=512) as fresh:
            stream.prefill(f"{n}:\n")
            record = stream.fill(schema, mode="sampled", seed=n, max_tokens=4)
            jsonschema.validate(record.value, schema)
            fresh.prefill(stream.tokens)
            assert stream.text(6, temperature=0).tokens == fresh.text(6, temperature=0).tokens
    assert n_left_out > 4


def test_without_room_the_sequence_is_what_it_was(precise: Any) -> None:
    with StreamHandle(precise, n_ctx=256) as stream:
        stream.prefill([5] * 250)
        with pytest.raises(ContextError):
            stream.fill(WEATHER, max_tokens=20)
        assert stream.tokens == [5] * 250
        assert stream.fill(bool).value in (True, False)


def test_a_record_that_is_cancelled_ends(precise: Any, stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    before = stream.tokens
    with pytest.raises(CancelledError):
        stream.fill(WEATHER, on_text=lambda _: stream.cancel())
    assert stream.tokens == before


def test_another_thread_is_kept_out(stream: StreamHandle) -> None:
    errors: list[BaseException] = []

    def meddle(_: str) -> None:
        def run() -> None:
            try:
                stream.append("x")
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    stream.prefill(PROMPT)
    record = stream.fill(Point, on_text=meddle)
    assert len(errors) > 2
    assert stream.tokens[-1:] != []
    assert record.value.x in (1, 2)


async def _filled(llm: Any) -> Record[Point]:
    return await afill(llm, PROMPT, Point, mode="greedy")


def test_an_event_loop_goes_on_meanwhile(precise: Any) -> None:
    import asyncio

    assert asyncio.run(_filled(precise)) == fill(precise, PROMPT, Point, mode="greedy")


@pytest.mark.parametrize(
    ("schema", "options", "error", "message"),
    [
        ({}, {}, ArgumentError, "schema#: empty"),
        (None, {}, ArgumentError, "schema must be "),
        ("{}", {}, ArgumentError, "schema must be "),
        ({"enum": {1}}, {}, ArgumentError, "schema: no JSON"),
        (object(), {}, ArgumentError, "schema: pydantic makes none"),
        (Point, {"mode": "best"}, ArgumentError, "mode must be one of"),
        (Point, {"temperature": -1}, ArgumentError, "temperature: -1 is not"),
        (Point, {"mode": "sampled", "temperature": 0}, ArgumentError, "temperature: 0 is not"),
        (Point, {"top_p": 0}, ArgumentError, "top_p: 0 is not in"),
        (Point, {"max_tokens": 0}, ArgumentError, "max_tokens: 0"),
        (Point, {"max_nodes": 0}, ArgumentError, "max_nodes: 0"),
        (Point, {"indent": -1}, ArgumentError, "indent: -1"),
        (Point, {"seed": -1}, ArgumentError, "seed: -1"),
        (Point, {"on_text": 3}, ArgumentError, "on_text: int cannot be called"),
        (Point, {"colour": 3}, TypeError, "unexpected keyword argument 'colour'"),
    ],
)
def test_faults_are_reported_before_the_model_runs(
    stream: StreamHandle, schema: Any, options: Any, error: Any, message: str
) -> None:
    stream.prefill(PROMPT)
    n_passes = stream.state.n_passes
    with pytest.raises(error, match=message):
        stream.fill(schema, **options)
    assert stream.state.n_passes == n_passes


def test_what_a_validator_refuses_is_an_error(stream: StreamHandle) -> None:
    class Never(pydantic.BaseModel):
        x: bool

        @pydantic.field_validator("x")
        @classmethod
        def no(cls, value: bool) -> bool:
            raise ValueError(f"not {value}")

    stream.prefill(PROMPT)
    before = stream.tokens
    with pytest.raises(ArgumentError, match="refuses what its own schema allows"):
        stream.fill(Never)
    assert stream.tokens == before


def test_nothing_is_written_without_a_text(stream: StreamHandle) -> None:
    with pytest.raises(ArgumentError, match="there is no text to continue: prefill first"):
        stream.fill(Point)


@pytest.mark.parametrize(("one", "other"), [(int | str, str | int), (Literal["a", "b"], Literal["b", "a"])])
def test_types_are_equal_in_another_order_and_read_in_their_own(one: Any, other: Any) -> None:
    assert one == other
    schemas = [read_template(each).schema for each in (one, other)]
    assert schemas[0] != schemas[1]
    assert read_template(one) is read_template(one)


@pytest.mark.parametrize("think", [None, Think("\nAnswer:", max_tokens=3)])
def test_what_is_forced_first_is_reported_once_with_a_thought_or_without(precise: Any, think: Think | None) -> None:
    parts: list[str] = []
    schema = {"type": "array", "items": {"enum": ["u", "v"]}, "minItems": 1, "maxItems": 2}
    record = fill(precise, PROMPT, schema, think=think, on_text=parts.append)
    assert "".join(parts) == record.text
