"""Verbatim values: parts of the text that a record is taken from, against all parts of it, one by one."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from typing import Annotated, Any

import oracle
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_model import watching
from token_trie import ArgumentError, LimitError, StreamHandle, Verbatim, choose_tool, fill, fill_many
from token_trie.native.core import vocab_of
from token_trie.records import gbnf
from token_trie.records.fill import read_template
from token_trie.records.nodes import VerbatimNode
from token_trie.records.schema import read_schema
from token_trie.records.verbatim import MAX_LENGTH, MAX_WORDS, find_spans, source_of, spell_spans
from token_trie.sets.prompt import Template
from typing_extensions import TypedDict

TEXT = 'Invoice INV-7 of 3 May\nfor Ms. Åse "Tools" O\'Brien:\n\t€ 1,234.50 (50 %)\n\nThank you'
PROMPT = "Text: " + TEXT + "\nAs JSON:\n"
ALONE = {"type": "string", "x_verbatim": True}


def record_of(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [*fields]}


def spans_of(text: str, max_words: int = 16) -> list[str]:
    """Take the parts of a text plainly: between any two ends of words and signs, in a paragraph."""
    word = r"(?:[^\W_]|_|[\u0300-\u036f])+"
    found = []
    for start, end in itertools.combinations(range(len(text) + 1), 2):
        part = text[start:end]
        is_cut = any(
            at and at < len(text) and re.fullmatch(rf"{word}|(\W)\1", text[at - 1 : at + 1]) for at in (start, end)
        )
        units = re.findall(rf"{word}|([^\w\s])\1*", part)
        is_whole = part == part.strip() and not is_cut and not re.search(r"\n\s*\n", part)
        if is_whole and re.search(word, part) and len(units) <= max_words:
            found.append(part)
    return found


def node_of(text: str, max_words: int = MAX_WORDS, **more: Any) -> VerbatimNode:
    read = read_schema({**ALONE, "x_verbatim": max_words, **more})
    assert isinstance(read, VerbatimNode)
    return dataclasses.replace(read, text=text)


def values_of(text: str, max_words: int = MAX_WORDS, **more: Any) -> list[str]:
    return find_spans(node_of(text, max_words, **more)).values


ATOMS = ["a", "b", "1", "_", "é", "e\u0301", " ", ".", ",", '"', "-", "€", "\n", "\t"]


@given(st.lists(st.sampled_from(ATOMS), max_size=24).map("".join), st.integers(1, 5))
def test_values_are_all_parts_of_whole_words_once(text: str, max_words: int) -> None:
    found = values_of(text, max_words)
    assert len(found) == len({*found})
    assert {*found} == {*spans_of(text, max_words)}


@given(st.text(max_size=60))
def test_each_value_stands_at_its_offsets_where_it_occurs_first(text: str) -> None:
    spans = find_spans(node_of(text, 6))
    for i, value in enumerate(spans.values):
        start, end = spans.offsets(i)
        assert text[start:end] == value
        assert start >= text.index(value)


def test_words_of_scripts_without_spaces_are_their_letters() -> None:
    assert "東京" in values_of("株式会社東京商事")
    assert "กรุง" in values_of("ไปกรุงเทพ")
    assert values_of("ภี") == ["ภี"]


@pytest.mark.parametrize(
    ("text", "value", "wrong"),
    [
        ("Invoice INV-2024-01, paid", "INV-2024-01", "NV-2024-01"),
        ("total $12.50.", "$12.50", "otal"),
        ("by cafe\u0301 owner", "cafe\u0301", "cafe"),
        ("12 Main\nStreet", "12 Main\nStreet", "Main\nStr"),
        ("one\n\ntwo", "two", "one\n\ntwo"),
        ("a | b", "b", "|"),
    ],
)
def test_a_value_cuts_no_word_and_crosses_no_empty_line(text: str, value: str, wrong: str) -> None:
    assert value in values_of(text)
    assert wrong not in values_of(text)


def test_keywords_beside_it_leave_fewer_values() -> None:
    text = 'Invoice INV-7 of 2024-05-03, "14 days"'
    assert values_of(text, pattern="^[A-Z]+-[0-9]+$") == ["INV-7"]
    assert values_of(text, pattern='^"') == ['"14', '"14 days', '"14 days"']
    assert values_of(text, format="date") == ["2024-05-03"]
    parts = spans_of(text)
    assert {*values_of(text, minLength=3, maxLength=4)} == {part for part in parts if 3 <= len(part) <= 4}
    assert {*values_of(text, pattern="0", maxLength=4)} == {part for part in parts if "0" in part and len(part) <= 4}
    assert values_of(text, 1) == ["Invoice", "INV", "7", "of", "2024", "05", "03", "14", "days"]


def test_long_texts_are_found_and_spelled_and_too_long_ones_named(smollm2: Any) -> None:
    node = node_of(" ".join(f"word{i}" for i in range(300)) + " " + "x" * 100_000)
    values = find_spans(node).values
    assert len(values) == 300 * 16 - 120
    assert max(map(len, values)) < MAX_LENGTH
    assert {*spell_spans(vocab_of(smollm2), node, b' "', (",",)).options} == {*range(len(values))}
    with pytest.raises(LimitError, match="text: 100,000 words and signs are too many for verbatim values of up to 16"):
        find_spans(node_of("a " * 100_000))


def test_a_pattern_whose_search_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_of("ab " * 90, pattern="(a|b|c| )+[0-9]{1,200}x")
    monkeypatch.setattr(gbnf, "_MAX_STEPS", 200)
    with pytest.raises(LimitError, match="text: a pattern or format of a verbatim value is sought in it, and it takes"):
        find_spans(node)


def row_of(vocab: Any, opening: str, value: str, follower: str) -> list[int]:
    """Tokenize a value as what follows a line break, from its opening to the token that has its closing quote."""
    content = opening + json.dumps(value, ensure_ascii=False)[1:]
    line = vocab.tokenize([b"\n"], "line")[0].tolist()
    row = vocab.tokenize([f"\n{content}{follower}".encode()], "value")[0].tolist()
    assert row[: len(line)] == line
    row = row[len(line) :]
    return next(row[:n] for n in range(1, len(row) + 1) if vocab.detokenize(row[:n]).startswith(content.encode()))


VOCABULARIES = ["smollm2", "gemma", "tiny", "byte_level"]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_values_are_spelled_as_the_tokenizer_spells_each_alone(name: str, request: pytest.FixtureRequest) -> None:
    vocab = vocab_of(request.getfixturevalue(name))
    node, followers = node_of(TEXT[14:56]), (',"', "}")
    values = find_spans(node).values
    for opening in (' "', '":"', '["'):
        spelled = spell_spans(vocab, node, opening.encode(), followers)
        found = {(option, *row) for option, row in zip(spelled.options, spelled.members, strict=True)}
        rows = [(i, row_of(vocab, opening, value, each)) for i, value in enumerate(values) for each in followers]
        assert found == {(i, *row) for i, row in rows}


PARTS = ['"', "\\", "é", "e\u0301", "Oslo", "\n", "\t", " ", "😀", "(", "12", ",", ".", "-", "東", "</s>", "\x00"]


@settings(max_examples=25)
@given(text=st.lists(st.sampled_from(PARTS)).map("".join))
@pytest.mark.parametrize("name", VOCABULARIES)
def test_tokens_of_any_value_are_its_json_to_its_closing_quote(
    name: str, text: str, request: pytest.FixtureRequest
) -> None:
    vocab = vocab_of(request.getfixturevalue(name))
    node = node_of(text, 5)
    values = find_spans(node).values
    spelled = spell_spans(vocab, node, b' "', (',"', "}"))
    assert {*spelled.options} == {*range(len(values))}
    for row, option in zip(spelled.members, spelled.options, strict=True):
        content = f" {json.dumps(values[option], ensure_ascii=False)}".encode()
        assert vocab.detokenize(row).startswith(content)
        assert not vocab.detokenize(row[:-1]).startswith(content)
        assert spelled.unforced[option] == content


@pytest.mark.parametrize("name", ["precise", "byte_level", "hybrid", "smollm2", "gemma"])
def test_the_value_is_the_best_of_all_with_its_closing_quote(name: str, request: pytest.FixtureRequest) -> None:
    llm = request.getfixturevalue(name)
    text, prompt = "Åse, May", "Who, and when? Åse, May"
    with watching() as seen:
        record = fill(llm, prompt, record_of(name=ALONE), text=text, max_nodes=None)
    ((step, _),) = [(step, answer) for step, answer in seen if step.query.mode == "best"]
    before, _, after = record.text.partition(json.dumps(record.value["name"], ensure_ascii=False)[1:])
    written = vocab_of(llm).detokenize(step.tokens).decode()
    opening = before[len(written.rpartition(prompt)[2]) :]
    assert opening.endswith('"')
    scores = {}
    for value in spans_of(text):
        row = row_of(vocab_of(llm), opening, value, after)
        scores[value] = sum(oracle.logprobs(llm, [*step.tokens], tuple(row)))
    # How a quantized model rounds depends on the processor; the second best of Gemma is 5.8 behind.
    near = {"smollm2": 0.2, "gemma": 0.5}.get(name, 1e-3)
    assert scores[record.value["name"]] == pytest.approx(max(scores.values()), abs=near)
    assert math.log(record.probabilities["/name"]) == pytest.approx(max(scores.values()), abs=near)
    start, end = record.offsets["/name"]
    assert text[start:end] == record.value["name"]


@dataclasses.dataclass
class Invoice:
    number: Annotated[str, Verbatim()]
    total: Annotated[str, pydantic.Field(pattern="[0-9]"), Verbatim(max_words=6)]
    phone: Annotated[str | None, Verbatim()]
    others: Annotated[list[Annotated[str, Verbatim()]], pydantic.Field(max_length=2)]


class Typed(TypedDict):
    number: Annotated[str, Verbatim()] | None


@pytest.mark.parametrize(
    ("name", "mode"), [("gemma", "exact"), ("smollm2", "exact"), ("smollm2", "greedy"), ("smollm2", "sampled")]
)
def test_every_value_stands_in_the_text(name: str, mode: Any, request: pytest.FixtureRequest) -> None:
    llm = request.getfixturevalue(name)
    record = fill(llm, PROMPT, Invoice, text=TEXT, mode=mode)
    assert isinstance(record.value, Invoice)
    values = json.loads(record.text)
    others = values.pop("others")
    values = {f"/{name}": value for name, value in values.items()}
    values |= {f"/others/{i}": value for i, value in enumerate(others)}
    said = {pointer: value for pointer, value in values.items() if value is not None}
    assert record.offsets.keys() == said.keys() <= record.probabilities.keys()
    assert {pointer: TEXT[start:end] for pointer, (start, end) in record.offsets.items()} == said
    assert re.search("[0-9]", record.value.total)


def test_null_is_one_of_the_answers(smollm2: Any) -> None:
    text = "The number is B-7."
    for number in (None, "A-1", "C-9"):
        shown = f"Text: {text.replace('B-7', str(number))}\nJSON: {json.dumps({'number': number})}\n"
        record = fill(smollm2, f"{shown * 3}Text: {text}\nJSON: ", Typed, text=text)
        assert record.value == {"number": None if number is None else "B-7"}
        assert 0.5 < record.probabilities["/number"] <= 1
        assert record.offsets == ({} if number is None else {"/number": (14, 17)})


def test_whether_null_follows_is_decided_with_all_that_may_open_a_value(smollm2: Any) -> None:
    text = "Call +47 or (8)"
    with watching() as seen:
        fill(smollm2, "Phone? " + text, record_of(a={**ALONE, "type": ["string", "null"]}), text=text, indent=None)
    vocab = vocab_of(smollm2)
    of_kind = {
        vocab.detokenize([token]).decode().strip()
        for step, _ in seen
        if step.query.mode == "scores" and step.query.trie is not None
        for token in step.query.trie.children().tolist()
    }
    assert {'"', '"(', "null"} <= of_kind


def test_fields_of_one_record_share_their_spelled_set(tiny: Any) -> None:
    fields = {name: {**ALONE, "description": name} for name in "abcd"}
    with watching() as seen:
        fill(tiny, "Any", record_of(**fields), text="a word that no other test has", indent=None)
    tries = [step.query.trie for step, _ in seen if step.query.mode == "best"]
    assert len(tries) == 4
    assert tries[0] is tries[1] is tries[2]


@pytest.mark.parametrize("text", ["", "  \n ", "- | -"])
def test_a_text_without_a_word_has_null_or_is_named(tiny: Any, text: str) -> None:
    nullable, optional = {**ALONE, "type": ["string", "null"]}, {"type": "object", "properties": {"a": ALONE}}
    items = {"type": "array", "items": ALONE, "maxItems": 2}
    schema = record_of(
        number=nullable, inner=optional, items=items, map={"type": "object", "additionalProperties": ALONE}
    )
    assert fill(tiny, "Any", schema, text=text).value == {"number": None, "inner": {}, "items": [], "map": {}}
    for required, at in ((ALONE, "/a"), (record_of(b=ALONE), "/a/b"), ({**items, "minItems": 1}, "/a/0")):
        with pytest.raises(ArgumentError, match=f"^text: no part of it can be the verbatim value record{at}$"):
            fill(tiny, "Any", record_of(a=required), text=text)


def test_nested_and_repeated_schemas_have_verbatim_values(tiny: Any) -> None:
    person = {"$ref": "#/$defs/person"}
    tree = {"name": ALONE, "friends": {"type": "array", "items": person, "maxItems": 2}}
    schema = {**person, "$defs": {"person": {"type": "object", "properties": tree, "required": ["name"]}}}
    record = fill(tiny, "Any", schema, text="Åse and Bo", max_tokens=4)
    assert record.value["name"] in spans_of("Åse and Bo")
    either = record_of(a={"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, ALONE]})
    value = fill(tiny, "Any", either, text="Bo").value["a"]
    assert value == "Bo" or value in range(1, 10)


def test_what_is_told_of_is_the_text(tiny: Any) -> None:
    schema, messages = record_of(a=ALONE), [{"role": "system", "content": "No."}, {"role": "user", "content": "Åse"}]
    template = Template("Take from: {text}", True)
    for prompt in (
        messages,
        template.fill({"text": "Åse"}),
        [{"role": "user", "content": template.fill({"text": "Åse"})}],
    ):
        assert source_of(prompt) == "Åse"
        assert fill(tiny, prompt, schema).value == {"a": "Åse"}
        assert fill(tiny, prompt, schema, text="Bo").value == {"a": "Bo"}
    parts = [{"type": "text", "text": "Åse"}, {"type": "text", "text": "Bo"}]
    assert source_of([{"role": "user", "content": parts}, {"role": "assistant", "content": "Yes?"}]) == "Åse\nBo"
    with StreamHandle(tiny) as handle:
        handle.prefill("Any")
        with pytest.raises(ArgumentError, match=r"^text: missing"):
            handle.fill(schema)
        assert handle.fill(schema, text="Bo").offsets == {"/a": (0, 2)}
    for wrong in (record_of(a={"type": "boolean"}), record_of()):
        with pytest.raises(ArgumentError, match=r"^text: has no effect, as no value is verbatim$"):
            fill(tiny, "Any", wrong, text="Bo")
    with pytest.raises(ArgumentError, match=r"^text must be str, not int"):
        fill(tiny, "Any", schema, text=3)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="text: "):
        fill(tiny, "Any", schema, text="\ud800")


def test_each_of_many_prompts_has_its_text(tiny: Any) -> None:
    schema, names = record_of(a=ALONE), ["Åse", "Bo", "Cy"]
    assert [r.value["a"] for r in fill_many(tiny, ["One", "Two", "Three"], schema, texts=names)] == names
    assert [r.value["a"] for r in fill_many(tiny, ["One", "Two"], schema, text="Bo")] == ["Bo", "Bo"]
    chats = [[{"role": "user", "content": name}] for name in names]
    assert [r.value["a"] for r in fill_many(tiny, chats, schema)] == names
    with pytest.raises(ArgumentError, match=r"^text: has no effect"):
        fill_many(tiny, ["One"], record_of(a={"type": "boolean"}), texts=["Bo"])
    with pytest.raises(ArgumentError, match=r"^text and texts"):
        fill_many(tiny, ["One"], schema, text="Bo", texts=["Bo"])
    with pytest.raises(ArgumentError, match=r"^texts must be a list, not str"):
        fill_many(tiny, ["One"], schema, texts="Bo")
    with pytest.raises(ArgumentError, match=r"^texts: not as many as prompts"):
        [*fill_many(tiny, ["One", "Two"], schema, texts=["Bo"])]
    with pytest.raises(ArgumentError, match=r"prompts\[0\]: text: missing"):
        [*fill_many(tiny, ["One"], schema)]


def test_arguments_of_tools_are_verbatim(tiny: Any) -> None:
    def call(name: Annotated[str, Verbatim()]) -> None:
        """Call somebody."""

    answer = choose_tool(tiny, [{"role": "user", "content": "Åse"}], [call])
    assert (answer.arguments, answer.offsets) == ({"name": "Åse"}, {"/name": (0, 3)})
    assert choose_tool(tiny, [{"role": "user", "content": "Åse"}], [call], text="Bo").arguments == {"name": "Bo"}


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"type": "integer", "x_verbatim": True}, "x_verbatim"),
        ({"enum": ["a"], "x_verbatim": True}, "x_verbatim"),
        ({**ALONE, "x_verbatim": "yes"}, "x_verbatim"),
        ({**ALONE, "x_verbatim": 0}, "x_verbatim"),
        ({**ALONE, "maxLength": 0}, "x_verbatim"),
        ({**ALONE, "pattern": "(?=a)"}, "pattern"),
        ({"allOf": [ALONE, {"x_verbatim": 3}]}, "allOf"),
        ({"allOf": [ALONE, {"enum": ["a"]}]}, "allOf/0/x_verbatim"),
        ({**ALONE, "not": {"const": "Bo"}}, "not"),
        ({"anyOf": [ALONE, {"type": "string"}]}, ""),
    ],
)
def test_what_cannot_be_verbatim_is_named(schema: dict[str, Any], at: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^schema#/properties/a(/{at})?: "):
        read_template(record_of(a=schema))


def test_schemas_that_combine_others_have_verbatim_values(tiny: Any) -> None:
    either = [{"type": "string"}, {"type": "null"}]
    for schema in ({"anyOf": either, "x_verbatim": True}, {"allOf": [{"minLength": 2}, ALONE]}, {"x_verbatim": True}):
        assert fill(tiny, "Any", record_of(a=schema), text="Bo").value["a"] in ("Bo", None)


def test_verbatim_false_is_any_text() -> None:
    assert not isinstance(read_schema({**ALONE, "x_verbatim": False}), VerbatimNode)


def test_a_type_that_is_no_text_cannot_be_verbatim() -> None:
    wrongs: list[Any] = [int, list[str]]
    for wrong in wrongs:
        with pytest.raises(ArgumentError, match=r"Verbatim: goes with str"):
            read_template(pydantic.create_model("Wrong", a=(Annotated[wrong, Verbatim()], ...)))
    with pytest.raises(ArgumentError, match="max_words"):
        Verbatim(max_words=0)
