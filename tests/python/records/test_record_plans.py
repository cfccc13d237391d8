"""Plans of records, driven by hand: answers are made up, and no model runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from tiny_model import write_tiny_model
from token_trie.decisions.options import RecordOptions
from token_trie.errors import ContextError, GrammarError, LimitError
from token_trie.plan import Answer, Ask, Keep, Model, Plan, Step
from token_trie.records.fill import Record, read_template, record_request
from token_trie.records.gbnf import Grammar
from token_trie.records.nodes import COMPACT, Layout
from token_trie.records.schema import ANYTHING
from token_trie.records.write import MAX_NESTING, FreeText

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit"],
}
UNIT = {"type": "object", "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}}, "required": ["unit"]}
TAGS = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 1}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Return a byte-level BPE without weights."""
    path: Path = tmp_path_factory.mktemp("vocab") / "bpe.gguf"
    write_tiny_model(path, is_bpe=True, words=["}}", ',"'])
    llm = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    yield Model.of(llm, 512)
    llm.close()


def plan_of(model: Model, schema: Any, layout: Layout | None = COMPACT, **options: Any) -> Plan[Record[Any]]:
    request = record_request(read_template(schema), RecordOptions(**options))
    return replace(request, layout=layout).plan(model, "Weather:")


def before(model: Model, step: Step) -> str:
    """Return the text of a step's tokens, after the prompt."""
    return model.vocab.detokenize(step.tokens).decode().removeprefix("Weather:")


def offered(model: Model, step: Step) -> list[str]:
    """Return the texts that a step decides between."""
    assert isinstance(step, Ask)
    assert step.query.trie is not None
    core = step.query.trie.core
    return [model.vocab.detokenize(core.sequence(i).tolist()).decode() for i in range(core.n_leaves)]


def says(model: Model, step: Step, text: str, logprob: float = 0.0) -> Answer:
    """Answer a step with a text, up to the end that the plan finds; or with the shortest option that has the text."""
    assert isinstance(step, Ask)
    if step.query.until is None:
        options = offered(model, step)
        leaf = options.index(min((option for option in options if text in option), key=len))
        logprobs = np.full(len(options), -99.0)
        logprobs[leaf] = logprob
        return Answer(leaf=leaf, logprob=logprob, leaves=np.array([leaf]), logprobs=logprobs)
    tokens = model.vocab.tokenize([text.encode()], "text")[0].tolist()
    heard = next((n for n, token in enumerate(tokens, 1) if step.query.until(token)), len(tokens))
    return Answer(tokens=tuple(tokens[:heard]))


def written(model: Model, plan: Plan[Any], texts: Sequence[str], on_step: Callable[[Step], object] = id) -> Any:
    """Return the result of a plan whose model says these texts, one at each step."""
    steps, rest = next(plan), iter(texts)
    while not isinstance(steps[0], Keep):
        (step,) = steps
        on_step(step)
        steps = plan.send([says(model, step, next(rest))])
    assert [*rest] == []
    return result_of(plan)


def result_of(plan: Plan[Any]) -> Any:
    """Return the result of a plan whose last step is done."""
    with pytest.raises(StopIteration) as end:
        plan.send([Answer()])
    return end.value.value


def test_what_the_schema_forces_is_there_before_the_first_question(model: Model) -> None:
    (step,) = next(plan_of(model, UNIT))
    assert before(model, step) == '{"unit":"'
    assert offered(model, step) == ["celsius", "fahrenheit"]
    assert isinstance(step, Ask)
    assert step.query.mode == "best"


def test_a_record_is_what_the_model_says_between_what_is_forced(model: Model) -> None:
    record = written(model, plan_of(model, WEATHER), ['Oslo"', "f", ",", "1", "2"])
    assert record.value == {"city": "Oslo", "unit": "fahrenheit", "days": 12}
    assert record.text == '{"city":"Oslo","unit":"fahrenheit","days":12}'
    assert record.stats is not None
    assert record.stats.n_choices == 3


def test_a_field_that_nothing_requires_is_a_question(model: Model) -> None:
    record = written(model, plan_of(model, WEATHER), ['Oslo"', "c", "}"])
    assert record.value == {"city": "Oslo", "unit": "celsius"}


def test_an_optional_field_whose_value_is_null_where_the_schema_has_no_null_is_left_out(model: Model) -> None:
    record = written(model, plan_of(model, WEATHER), ['Oslo"', "c", ",", "n"])
    assert record.text == '{"city":"Oslo","unit":"celsius"}'
    either = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["boolean", "null"]}}}
    plan, offers = plan_of(model, either), list[list[str]]()
    record = written(model, plan, ['"', "a", '":', '"', "null"], lambda step: offers.append(offered(model, step)))
    assert record.text == '{"b":null}'
    assert not any("a" in offer for offer in offers[3:])


@pytest.mark.parametrize(
    ("field", "first"),
    [
        ({"type": "boolean"}, {"t", "f", "n"}),
        ({"type": "integer", "minimum": -3, "maximum": 25}, {"-", *"0123456789", "n"}),
        ({"enum": [3, 71, True]}, {"3", "7", "t", "n"}),
    ],
)
def test_null_is_weighed_against_all_values_of_an_optional_field(model: Model, field: Any, first: set[str]) -> None:
    plan = plan_of(model, {"type": "object", "properties": {"k": {"const": 1}, "a": field}, "required": ["k"]})
    (step,) = next(plan)
    (step,) = plan.send([says(model, step, ",")])
    begun = before(model, step).rpartition("a")[2]
    assert {f"{begun}{text}".removeprefix('":')[:1] for text in offered(model, step)} == first


def test_the_sequence_at_the_end_is_the_record(model: Model) -> None:
    plan = plan_of(model, UNIT)
    (step,) = next(plan)
    (kept,) = plan.send([says(model, step, "c")])
    assert isinstance(kept, Keep)
    assert before(model, kept) == '{"unit":"celsius"}'


def test_a_probability_is_that_of_the_answer(model: Model) -> None:
    plan = plan_of(model, UNIT)
    (step,) = next(plan)
    plan.send([says(model, step, "c", float(np.log(0.25)))])
    assert result_of(plan).probabilities == {"/unit": pytest.approx(0.25)}


@pytest.mark.parametrize("mode", ["exact", "greedy", "sampled"])
def test_a_mode_is_that_of_the_queries_for_values(model: Model, mode: Any) -> None:
    (step,) = next(plan_of(model, UNIT, mode=mode))
    assert isinstance(step, Ask)
    assert step.query.mode == {"exact": "best", "greedy": "scores"}.get(mode, mode)


def test_each_step_draws_by_a_seed_of_its_own(model: Model) -> None:
    seeds: list[int] = []
    plan = plan_of(model, WEATHER, mode="sampled", seed=7)
    written(model, plan, ['Oslo"', "c", "}"], lambda step: seeds.append(step.query.sampling.seed))  # type: ignore[attr-defined]
    assert len({*seeds}) == 3
    plan = plan_of(model, WEATHER, mode="sampled", seed=7)
    (step,) = next(plan)
    assert step.query.sampling.seed == seeds[0]  # type: ignore[attr-defined]


def test_the_layout_is_asked_for_where_layouts_differ_first(model: Model) -> None:
    plan = plan_of(model, {**WEATHER, "required": ["city", "unit", "days"]}, None)
    record = written(model, plan, ["{", 'Oslo"', "c", "4"])
    assert record.text == '{\n  "city": "Oslo",\n  "unit": "celsius",\n  "days": 4\n}'


def test_a_text_that_begins_another_is_told_apart_from_it(model: Model) -> None:
    schema = {"type": "integer", "minimum": 2, "maximum": 120}
    for said, value in ((["2", "\n"], 2), (["1", "2", "\n"], 12), (["1", "2", "0"], 120)):
        assert written(model, plan_of(model, schema), said).value == value


def test_what_several_tokens_spell_is_worth_their_sum(model: Model) -> None:
    inner = {"type": "object", "properties": {"n": {"type": "integer"}, "b": {"const": 1}}, "required": ["n"]}
    plan = plan_of(model, {"type": "object", "properties": {"o": inner}, "required": ["o"]})
    (step,) = next(plan)
    (step,) = plan.send([says(model, step, "7}")])
    shares = {',"': 0.4, "}": 0.35, "}}": 0.25}
    options = offered(model, step)
    assert {*options} == {*shares}
    (kept,) = plan.send([Answer(logprobs=np.log([shares[option] for option in options]))])
    assert before(model, kept) == '{"o":{"n":7}}'


def test_an_item_that_must_not_repeat_is_offered_once(model: Model) -> None:
    offers: list[list[str]] = []
    record = written(model, plan_of(model, TAGS), ["b", ","], lambda step: offers.append(offered(model, step)))
    assert record.value == ["b", "a"]
    assert len(offers[0]) == 2
    assert not any('"b"' in offer for offer in offers[1])


@pytest.mark.parametrize("said", ['Oslo"', 'Oslo","unit', 'Oslo"}'])
def test_what_the_model_says_after_a_string_is_cut_off(model: Model, said: str) -> None:
    assert written(model, plan_of(model, CITY), [said]).text == '{"city":"Oslo"}'


def test_a_quote_that_is_escaped_ends_no_string(model: Model) -> None:
    assert written(model, plan_of(model, CITY), [r'O\"s\\"']).value == {"city": 'O"s\\'}


def test_a_string_ends_at_its_maximum_length(model: Model) -> None:
    record = written(model, plan_of(model, {"type": "string", "maxLength": 3}), ["Oslo"])
    assert (record.value, record.truncated) == ("Osl", ())


def test_a_string_without_an_end_is_closed_and_named(model: Model) -> None:
    record = written(model, plan_of(model, CITY), ["Osl\\"])
    assert (record.value, record.truncated) == ({"city": "Osl"}, ("/city",))


def test_an_object_without_an_end_is_closed_and_named(model: Model) -> None:
    record = written(model, plan_of(model, {"type": "object"}), ['{"a":[1,2'])
    assert (record.value, record.truncated) == ({"a": [1]}, ("",))


@pytest.mark.parametrize("one", ["[", '{"a":', '[{"b": ['])
def test_a_free_value_that_nests_without_end_is_closed_where_readers_still_read_it(model: Model, one: str) -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {"const": 1}}, "required": ["a", "b"]}
    record = written(model, plan_of(model, schema, max_tokens=5000), [one * 1000])
    assert record.truncated == ("/a",)
    assert record.value["b"] == 1
    assert MAX_NESTING <= record.text.count("[") + record.text.count("{") <= MAX_NESTING + 3
    flat = written(model, plan_of(model, schema, max_tokens=5000), ["[" + "[{}]," * 50 + "[]]"])
    assert (len(flat.value["a"]), flat.truncated) == (51, ())


def test_a_value_that_may_not_be_cut_is_an_error(model: Model) -> None:
    properties = {"id": {"type": "string", "pattern": "^[0-9]{5}$"}}
    plan = plan_of(model, {"type": "object", "properties": properties, "required": ["id"]})
    with pytest.raises(LimitError, match="record/id: no end after 3 tokens: '123'"):
        written(model, plan, ["123"])


def test_a_number_or_an_alternative_to_it_is_one_text(model: Model) -> None:
    schema = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert written(model, plan_of(model, schema), ["42,"]).value == 42
    assert written(model, plan_of(model, schema), ["null"]).value is None


def test_tokens_that_only_the_answer_has_are_read(model: Model) -> None:
    plan = plan_of(model, CITY)
    next(plan)
    plan.send([Answer(tokens=tuple(model.vocab.tokenize([b'Oslo"'], "text")[0].tolist()))])
    assert result_of(plan).value == {"city": "Oslo"}


def test_each_part_is_reported_as_soon_as_it_is_decided(model: Model) -> None:
    parts: list[str] = []
    written(model, plan_of(model, WEATHER, on_text=parts.append), ['Oslo"', "c", "}"])
    assert parts == ['{"city":"', 'Oslo"', ',"unit":', '"celsius"', "}"]
    parts = []
    written(model, plan_of(model, WEATHER, on_text=parts.append, indent=2), ['O,{\\"slo"', "c", "}"])
    assert parts == ['{\n  "city": "', 'O,{\\"slo"', ',\n  "unit":', ' "celsius"', "\n}"]


def test_no_finite_score_is_an_error(model: Model) -> None:
    plan = plan_of(model, UNIT)
    next(plan)
    with pytest.raises(ContextError, match="finite score"):
        plan.send([Answer()])


def test_an_error_of_a_grammar_names_the_value(model: Model) -> None:
    plan = plan_of(model, CITY)
    next(plan)
    with pytest.raises(GrammarError, match="record/city: no"):
        plan.throw(GrammarError("no"))


def test_a_record_that_does_not_fit_the_context_is_an_error(model: Model) -> None:
    with pytest.raises(ContextError, match="does not fit the context of 512 tokens"):
        next(plan_of(model, {"type": "object", "properties": {"a": {"const": "a" * 600}}, "required": ["a"]}))


def test_the_depth_of_a_free_value_counts_open_brackets_outside_strings() -> None:
    free, almost = FreeText(ANYTHING, Grammar(ANYTHING.value)), "[" * (MAX_NESTING - 1)
    assert free.is_full(almost + "{")
    for text in (almost + '"a', almost + '"\\"[', almost + "[".join('""'), "[]" * MAX_NESTING):
        assert not free.is_full(text)


def test_the_time_of_a_free_value_is_that_of_reading_it() -> None:
    free, text, began = FreeText(ANYTHING, Grammar(ANYTHING.value)), "[", time.process_time()
    for _ in range(2000):
        text += '{"a":"b"},'
        assert not free.is_full(text)
    assert time.process_time() - began < 4
