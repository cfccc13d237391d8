from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jsonschema
import llama_cpp
import pydantic
import pytest
from support.drawing import seeded
from token_trie import ArgumentError, StreamHandle, Think, ToolCall, choose_tool
from token_trie.asynchronous import achoose_tool
from token_trie.decisions.options import RecordOptions
from token_trie.decisions.request import TextRequest
from token_trie.llama.batch import chooser
from token_trie.llama.contexts import common_prefix
from token_trie.llama.drivers import StreamDriver
from token_trie.llama.text import TextOptions
from token_trie.plan import run
from token_trie.records.fill import read_template, record_request
from token_trie.records.tool_prompt import ASKING, PLAIN, CallTemplate, ask_for_tools
from token_trie.records.tools import CallOrText, beginnings_of_calls, read_tools, text_before, tool_request

MESSAGES = [{"role": "user", "content": "Is it warm in Rome?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 10}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
}
ALARM = {
    "type": "object",
    "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}},
    "required": ["hour"],
}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    function = {"name": name, "description": f"What {name} does"}
    return {"type": "function", "function": function if parameters is None else function | {"parameters": parameters}}


def strict(name: str, parameters: Any) -> dict[str, Any]:
    made = tool(name, parameters)
    return {**made, "function": {**made["function"], "strict": True}}


TOOLS = [tool("get_weather", WEATHER), tool("set_alarm", ALARM), tool("set"), tool("stop")]
# As models with tools have it.
TEMPLATE = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture
def templated(smollm2: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    return with_template(smollm2, monkeypatch)


def with_template(llm: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(llm.metadata, "tokenizer.chat_template", TEMPLATE)
    monkeypatch.setattr(llm, "chat_format", "chat_template.default")
    return llm


def parameters_of(name: str) -> Any:
    return next(t["function"].get("parameters", {}) for t in TOOLS if t["function"]["name"] == name)


@pytest.mark.parametrize("mode", ["exact", "greedy", "sampled"])
def test_a_call_has_openais_shape_and_valid_arguments(llm: Any, mode: Any) -> None:
    call = choose_tool(llm, MESSAGES, TOOLS, mode=mode, **seeded(mode, 3))
    shaped = call.to_dict()
    assert shaped == {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.text},
    }
    assert len(call.id) == 9
    assert call.id.isalnum(), "as Mistral's templates demand"
    assert json.loads(shaped["function"]["arguments"]) == call.arguments
    jsonschema.validate(call.arguments, parameters_of(call.name))
    assert 0 < call.probability <= 1


def test_a_tool_without_parameters_has_no_arguments(any_model: Any) -> None:
    call = choose_tool(any_model, MESSAGES, [tool("stop")])
    assert (call.name, call.arguments, call.text, call.probability) == ("stop", {}, "{}", 1.0)


def test_a_name_that_begins_another_can_be_chosen(precise: Any) -> None:
    tools = [tool("set"), tool("set_alarm")]
    names = {choose_tool(precise, MESSAGES, tools, mode="sampled", seed=seed).name for seed in range(20)}
    assert names == {"set", "set_alarm"}


def test_without_tools_in_its_template_a_model_reads_them_in_the_system_message(smollm2: Any) -> None:
    tokens, form = ask_for_tools(smollm2, [{"role": "system", "content": "Be brief."}, *MESSAGES], TOOLS, 1024)
    text = smollm2.detokenize(tokens, special=True).decode()
    lines = "\n".join(json.dumps(t["function"]) for t in TOOLS)
    assert f"<|im_start|>system\nBe brief.\n{ASKING}\n{lines}<|im_end|>" in text
    assert form == PLAIN


def test_a_template_with_tools_tells_of_them_and_gives_the_form(templated: Any) -> None:
    tokens, form = ask_for_tools(templated, MESSAGES, TOOLS, 1024)
    text = templated.detokenize(tokens, special=True).decode()
    assert json.dumps(TOOLS) in text
    assert text.endswith("<|im_start|>assistant\n")
    assert form[:3] == ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
    call = choose_tool(templated, MESSAGES, TOOLS, mode="greedy")
    jsonschema.validate(call.arguments, parameters_of(call.name))


def test_a_call_of_the_templates_own_form_follows_the_thought(templated: Any) -> None:
    think = Think("</think>", max_tokens=4)
    call = choose_tool(templated, MESSAGES, TOOLS, mode="greedy", think=think)
    prompt, form = ask_for_tools(templated, MESSAGES, TOOLS, 1024)
    with StreamHandle(templated) as stream:
        stream.prefill(prompt)
        thought = stream.text(4)
        assert thought.text == call.thought
        stream.append(f"</think>{form.before}")
        beside = stream.choose([tool["function"]["name"] for tool in TOOLS], probabilities=True)
        assert beside.probability(call.name) > 0.7 * max(beside.probabilities)  # between close ones, batches decide


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        (
            "{{ call.function.arguments | tojson }}",
            "{% for k, v in call.function.arguments.items() %}<{{ k }}>{% endfor %}",
        ),
        ("{{ call.function.arguments | tojson }}", "{{ call.function.arguments.no.such }}"),
        ("{{ tools | tojson }}", "{{ raise_exception('no tools') if tools }}"),
    ],
)
def test_a_template_without_calls_as_json_is_not_used_for_tools(
    templated: Any, monkeypatch: pytest.MonkeyPatch, written: str, instead: str
) -> None:
    monkeypatch.setitem(templated.metadata, "tokenizer.chat_template", TEMPLATE.replace(written, instead))
    call = {"type": "function", "function": {"name": "stop", "arguments": {"a": 1}}}
    turns = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "done"}]
    tokens, form = ask_for_tools(templated, turns, TOOLS, 1024)
    text = templated.detokenize(tokens, special=True).decode()
    assert ASKING in text
    assert '{"name":"stop","arguments":{"a":1}}' in text
    assert form == PLAIN


def test_a_tool_without_a_description_goes_with_a_template_that_expects_one(
    templated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = "{% for t in tools %}{{ t.function.name + ': ' + t.function.description }}\n{% endfor %}"
    monkeypatch.setitem(templated.metadata, "tokenizer.chat_template", TEMPLATE.replace("{{ tools | tojson }}", shown))
    tools = [{"type": "function", "function": {"name": name}} for name in ("set", "stop")]
    tokens, form = ask_for_tools(templated, MESSAGES, tools, 1024)
    assert "set: \nstop: \n" in templated.detokenize(tokens, special=True).decode()
    assert form.before == '<tool_call>\n{"name": "'


def test_a_template_that_shows_a_message_only_at_the_end_has_its_own_calls(
    templated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}{{ m.content }}"
    monkeypatch.setitem(templated.metadata, "tokenizer.chat_template", TEMPLATE.replace("{{ m.content }}", shown))
    _, form = ask_for_tools(templated, [{"role": "system", "content": "Be brief."}, *MESSAGES], TOOLS, 1024)
    assert form[:3] == ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")


def test_a_thought_that_is_always_begun_is_ended_once(templated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    empty, begin = "<think>\n\n</think>\n\n", "<|im_start|>{{ m.role }}\n"
    template = TEMPLATE.replace(begin, begin + "{% if m.tool_calls %}" + empty + "{% endif %}")
    template = template.replace("assistant\n{% endif %}", "assistant\n<think>{{ '\n' }}{% endif %}")
    monkeypatch.setitem(templated.metadata, "tokenizer.chat_template", template)
    for thinks, end in ((False, empty), (True, "<think>\n")):
        tokens, form = ask_for_tools(templated, MESSAGES, TOOLS, 1024, thinks=thinks)
        assert templated.detokenize(tokens, special=True).decode().endswith("assistant\n" + end)
        assert form.before == '<tool_call>\n{"name": "'


def test_a_template_that_opens_a_thought_closes_it_before_a_call(
    templated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = "{% if enable_thinking is defined and not enable_thinking %}</think>{% else %}<think>{% endif %}"
    template = TEMPLATE.replace("assistant\n{% endif %}", f"assistant\n{closed}{{% endif %}}")
    template = template.replace(
        "{% for call in m.tool", "{% if m.tool_calls %}</think>{% endif %}{% for call in m.tool"
    )
    plain = template.replace("call.function.arguments | tojson", "call.function.arguments.no.such")
    for text, before in ((template, '<tool_call>\n{"name": "'), (plain, PLAIN.before)):
        monkeypatch.setitem(templated.metadata, "tokenizer.chat_template", text)
        handler = llama_cpp.llama_chat_format.Jinja2ChatFormatter(text, "", "").to_chat_handler()
        monkeypatch.setitem(templated._chat_handlers, "chat_template.default", handler)
        for must in (True, False):
            tokens, form = ask_for_tools(templated, MESSAGES, TOOLS, 1024, must=must)
            assert templated.detokenize(tokens, special=True).decode().endswith("assistant\n</think>")
            assert form.before == before


def test_an_empty_thought_of_the_template_is_before_a_call_and_not_after_a_thought(
    templated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, begin = "<think>\n\n</think>\n\n", "<|im_start|>{{ m.role }}\n"
    closed = "{% if enable_thinking is defined and not enable_thinking %}" + empty + "{% endif %}"
    template = TEMPLATE.replace(begin, begin + "{% if m.tool_calls %}" + empty + "{% endif %}")
    template = template.replace("assistant\n{% endif %}", f"assistant\n{closed}{{% endif %}}")
    monkeypatch.setitem(templated.metadata, "tokenizer.chat_template", template)
    for options, end, before in (
        ({}, empty, "<tool_call>"),
        ({"thinks": True}, "", "<tool_call>"),
        ({"must": False}, empty, "<tool_call>"),
    ):
        tokens, form = ask_for_tools(templated, MESSAGES, TOOLS, 1024, **options)
        assert templated.detokenize(tokens, special=True).decode().endswith("<|im_start|>assistant\n" + end)
        assert form[:3] == (before + '\n{"name": "', '", "arguments": ', "}\n</tool_call>")


@pytest.mark.parametrize("text", ["Is it warm in Rome?", "Stop!", 'Repeat after me: {"name": "stop", "arguments": {}}'])
def test_auto_answers_with_what_the_model_begins_to_write(templated: Any, text: str) -> None:
    messages = [{"role": "user", "content": text}]
    answer = choose_tool(templated, messages, TOOLS, tool_choice="auto", max_tokens=12)
    prompt, form = ask_for_tools(templated, messages, TOOLS, 1024, must=False)
    written = run(templated, prompt, TextRequest(12).plan)
    if isinstance(answer, ToolCall):
        assert any(begin in written.text for begin in beginnings_of_calls(read_tools(TOOLS), form))
    else:
        assert written.text.startswith(answer.text)
        assert answer.stop_string or answer.text == written.text


def written_from(llm: Any, beginning: str, *, record: bool = False) -> Any:
    """Return the answer after a text, where `beginning` begins a call."""
    call = tool_request(read_tools([tool("stop")]), RecordOptions(mode="greedy"))
    text = TextRequest(24, TextOptions(stop=[beginning]))
    other = record_request(read_template({"const": 7}), RecordOptions()).plan if record else None
    tokens = llm.tokenize(b"The days of the week are", add_bos=False)
    return run(llm, tokens, CallOrText(call, text, (beginning,), other).plan)


def test_a_text_ends_before_what_begins_a_call(byte_level: Any) -> None:
    tokens = byte_level.tokenize(b"The days of the week are", add_bos=False)
    whole = run(byte_level, tokens, TextRequest(24).plan).text
    for at in (3, len(whole) // 2, len(whole) - 2):
        begin = whole[at : at + 2]
        answer = written_from(byte_level, begin)
        if before := text_before(whole[: whole.index(begin)]):
            assert (answer.text, answer.stop_string) == (before, begin)
        else:
            assert isinstance(answer, ToolCall)
    assert isinstance(written_from(byte_level, whole[:2]), ToolCall)
    assert written_from(byte_level, "<tool_call>").text == whole


def test_where_the_other_answer_is_a_record_a_call_is_what_the_model_begins_too(byte_level: Any) -> None:
    tokens = byte_level.tokenize(b"The days of the week are", add_bos=False)
    whole = run(byte_level, tokens, TextRequest(24).plan).text
    assert isinstance(written_from(byte_level, whole[:2], record=True), ToolCall)
    assert written_from(byte_level, "<tool_call>", record=True).value == 7


def test_the_next_turn_evaluates_only_what_is_new(templated: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "Is it warm in Rome?"}]
    before = 0
    for _ in range(3):
        call = choose_tool(templated, messages, TOOLS, mode="greedy", max_tokens=8)
        with chooser(templated) as stream:
            evaluated, written = stream.tokens, call.stats.n_prompt
        messages += [call.message, call.result({"degrees": 21})]
        again, _ = ask_for_tools(templated, messages, TOOLS, 2048)
        n_same = next((i for i, (a, b) in enumerate(zip(evaluated, again, strict=False)) if a != b), len(evaluated))
        assert n_same >= len(evaluated) - 1, "the template writes the call as it was written"
        assert written > before
        before = written
    assert messages[1]["tool_calls"] == [{**messages[1]["tool_calls"][0], "type": "function"}]
    assert messages[2] == {
        "role": "tool",
        "tool_call_id": messages[1]["tool_calls"][0]["id"],
        "name": messages[1]["tool_calls"][0]["function"]["name"],
        "content": '{"degrees": 21}',
    }


def test_in_three_turns_nothing_is_evaluated_twice(precise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[int] = []
    ask = StreamDriver._ask

    def cached(stream: Any) -> list[int]:
        return stream.tokens[: stream.raw_state.n_cached]

    def counted(driver: StreamDriver, step: Any) -> Any:
        before = cached(driver._stream)
        answered = ask(driver, step)
        evaluated.append(len(cached(driver._stream)) - common_prefix(before, cached(driver._stream)))
        return answered

    monkeypatch.setattr(StreamDriver, "_ask", counted)
    llm = with_template(precise, monkeypatch)
    messages: list[Any] = [{"role": "user", "content": "Is it warm in Rome?"}]
    for turn in range(3):
        call = choose_tool(llm, messages, [tool("set", ALARM), tool("stop")], mode="greedy")
        messages += [call.message, call.result({"degrees": turn})]
        with chooser(llm) as stream:
            assert sum(evaluated) == len(cached(stream))


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ('Sure.\n<tool_call>\n{"name": "stop"', "Sure."),
        ('```json\n{\n  "name": "stop"', ""),
        ('{"name":"stop"', ""),
        ("[stop(", ""),
        ('{{"name": "stop"', ""),
        ("<function=stop>", ""),
        ('{"name": "Anna"', None),
        ("You can stop(the car)", None),
    ],
)
def test_calls_begin_as_models_write_them(text: str, begins: str | None) -> None:
    stops = beginnings_of_calls(read_tools([tool("stop")]), CallTemplate("<tool_call>\n", '", "arguments": ', "}"))
    found = [text.index(stop) for stop in stops if stop in text]
    assert (text_before(text[: min(found)]) if found else None) == begins


def test_what_goes_not_with_auto_is_named(any_model: Any) -> None:
    with pytest.raises(ArgumentError, match="think: goes with tool_choice"):
        choose_tool(any_model, MESSAGES, TOOLS, tool_choice="auto", think=Think())
    with pytest.raises(ArgumentError, match="tool_choice must be one of 'required', 'auto'"):
        choose_tool(any_model, MESSAGES, TOOLS, tool_choice="maybe")  # type: ignore[call-overload]
    call = choose_tool(any_model, MESSAGES, [tool("stop")])
    with pytest.raises(ArgumentError, match="value: no JSON"):
        call.result(object())


def test_a_call_on_the_handle_is_part_of_its_sequence(any_model: Any) -> None:
    with StreamHandle(any_model, n_ctx=256) as stream:
        stream.prefill("Is it warm in Rome?\nCall:\n")
        call = stream.choose_tool(TOOLS)
        text = any_model.detokenize(stream.tokens).decode()
        assert text == f'Is it warm in Rome?\nCall:\n{{"name":"{call.name}","arguments":{call.text}}}'


def test_an_event_loop_goes_on_meanwhile(any_model: Any) -> None:
    async def call() -> ToolCall[dict[str, Any]]:
        return await achoose_tool(any_model, MESSAGES, TOOLS, mode="greedy")

    assert asyncio.run(call()) == choose_tool(any_model, MESSAGES, TOOLS, mode="greedy")


def test_step_by_step_a_pass_is_a_branch_point_or_a_free_token(llm: Any) -> None:
    stats = choose_tool(llm, MESSAGES, [TOOLS[0], TOOLS[3]], mode="greedy").stats
    assert stats is not None
    assert stats.n_passes == stats.n_branches + stats.n_free - 1  # the first with the prompt


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "required": []},
        {"type": "object", "properties": None},
        {"type": "object", "required": [], "description": "Nothing"},
        {"type": "object", "additionalProperties": False},
        {
            "type": "object",
            "properties": {},
            "additionalProperties": False,
            "$schema": "http://json-schema.org/draft-07/schema#",
        },
        {"properties": {}},
    ],
    ids=str,
)
def test_no_arguments_are_said_in_many_ways(precise: Any, parameters: Any) -> None:
    assert choose_tool(precise, MESSAGES, [tool("stop", parameters)]).arguments == {}


@pytest.mark.parametrize("required", [[{}], [["day"]], [1, "hour"], ["month", None]])
def test_names_of_required_properties_that_are_none_are_left_out(precise: Any, required: Any) -> None:
    parameters = {"type": "object", "properties": {"hour": {"enum": [1, 2]}}, "required": required}
    call = choose_tool(precise, MESSAGES, [tool("stop", parameters)])
    assert call.arguments.keys() <= {"hour"}
    assert any("required" in note for note in call.ignored)


@pytest.mark.parametrize("description", [["x"], {"a": 1}, 5])
@pytest.mark.parametrize("tool_choice", ["required", "auto"])
def test_a_description_that_is_no_text_is_refused(precise: Any, description: Any, tool_choice: Any) -> None:
    given = {"type": "function", "function": {"name": "a", "description": description}}
    with pytest.raises(ArgumentError, match=r"tools\[0\]\.function\.description: no text"):
        choose_tool(precise, MESSAGES, [given], tool_choice=tool_choice)


def test_free_arguments_are_an_object(byte_level: Any) -> None:
    free = {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 1}
    call = choose_tool(byte_level, MESSAGES, [tool("note", free)], mode="sampled", seed=1)
    jsonschema.validate(call.arguments, free)


class Kind(enum.Enum):
    DAILY = "daily"
    HOURLY = "hourly"


class Alarm(pydantic.BaseModel):
    """Wakes a person."""

    hour: Annotated[int, pydantic.Field(ge=0, le=23, description="Of the day")]
    day: Literal["today", "tomorrow"] = "today"


@dataclasses.dataclass
class Lamp:
    is_on: bool


def get_weather(unit: Literal["celsius", "fahrenheit"], on: Kind = Kind.HOURLY, *, is_long: bool = False) -> str:
    """Weather of today."""
    return f"{unit} {on.name} {is_long}"


def stop() -> None:
    pass


def _many(**more: int) -> None:
    pass


def _odd(llm: StreamHandle) -> None:
    pass


def test_a_model_comes_back_as_its_instance(any_model: Any) -> None:
    call = choose_tool(any_model, MESSAGES, [Alarm])
    assert isinstance(call.value, Alarm)
    assert call.tool is Alarm
    assert call.name == "Alarm"
    assert call.value.model_dump(exclude_unset=True) == call.arguments
    lamp = choose_tool(any_model, MESSAGES, [Lamp]).value
    assert isinstance(lamp, Lamp)


@pytest.mark.parametrize("seed", range(4))
def test_a_function_comes_back_with_its_keyword_arguments(precise: Any, seed: int) -> None:
    call = choose_tool(precise, MESSAGES, [get_weather], mode="sampled", seed=seed)
    assert call.tool is get_weather
    assert isinstance(call.value.get("on", Kind.DAILY), Kind)
    assert call.tool(**call.value).startswith(call.arguments["unit"])
    assert choose_tool(precise, MESSAGES, [stop]).value == {}


def test_classes_functions_and_openais_shape_go_together(precise: Any) -> None:
    tools = [Alarm, get_weather, tool("end")]
    calls = [choose_tool(precise, MESSAGES, tools, mode="sampled", temperature=3.0, seed=seed) for seed in range(12)]
    assert len({call.name for call in calls}) > 1
    assert all(call.tool in tools for call in calls)
    with StreamHandle(precise, n_ctx=256) as stream:
        stream.prefill("Call:\n")
        assert stream.choose_tool(tools).name in ("Alarm", "get_weather", "end")


def test_a_model_reads_tools_in_openais_shape(any_model: Any) -> None:
    alarm, weather, nothing = (found.shown for found in read_tools([Alarm, get_weather, stop]))
    hour = {"description": "Of the day", "maximum": 23, "minimum": 0, "type": "integer"}
    day = {"default": "today", "enum": ["today", "tomorrow"], "type": "string"}
    parameters = {"properties": {"hour": hour, "day": day}, "required": ["hour"], "type": "object"}
    function = {"name": "Alarm", "description": "Wakes a person.", "parameters": parameters}
    assert alarm == {"type": "function", "function": function}
    assert weather["function"]["description"] == "Weather of today."
    assert weather["function"]["parameters"]["required"] == ["unit"]
    assert nothing["function"] == {"name": "stop", "parameters": {"properties": {}, "type": "object"}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda x: x, r"tools\[0\]: <lambda>: parameter 'x' has no type hint"),
        (sorted, r"tools\[0\]: sorted: "),
        (_many, r"tools\[0\]: _many: parameter 'more' takes no keyword"),
        (int, r"tools\[0\]: int: not an object with properties"),
        (_odd, r"tools\[0\]: _odd: schema: pydantic makes none"),
        (3, r"tools\[0\] must be a tool of OpenAI's shape, a pydantic model or a function"),
    ],
)
def test_a_function_that_cannot_be_described_is_named(precise: Any, given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        choose_tool(precise, MESSAGES, [given])


TEXT = {"type": "string", "pattern": "^" + "a{1,999}b" * 20}
PATTERN = {"type": "object", "properties": {"text": TEXT}}


@pytest.mark.parametrize(
    ("messages", "tools", "message"),
    [
        (MESSAGES, [], "tools: none given"),
        (MESSAGES, "x", "tools must be "),
        (MESSAGES, [{"type": "x"}], r"tools\[0\]: not \{"),
        (MESSAGES, [tool("a"), tool("a")], r"tools\[1\].function.name: 'a' comes twice"),
        (MESSAGES, [tool(name, PATTERN) for name in "abc"], r"tools\[2\]: the patterns up to here have 60,\d* states"),
        (MESSAGES, [tool("")], r"tools\[0\].function.name: '' is no name"),
        (MESSAGES, [tool("a", {"type": "string"})], r"tools\[0\].function.parameters: not an object"),
        (
            MESSAGES,
            [strict("a", {"type": "object", "properties": {"x": {"$ref": "#/a"}}})],
            r"tools\[0\].function.parameters: schema#/properties/x/\$ref: '#/a' leads nowhere",
        ),
        ([], TOOLS, "messages: none given"),
        ("hi", TOOLS, "messages: not a list"),
        ([3], TOOLS, "messages: not a list"),
    ],
)
def test_what_is_wrong_is_named(any_model: Any, messages: Any, tools: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        choose_tool(any_model, messages, tools)
