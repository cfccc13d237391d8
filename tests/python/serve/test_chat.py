from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from public_schemas import KEPT, REFUSED, check
from pydantic import BaseModel
from token_trie import choose

MESSAGES: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
CITIES = ["Paris", "London", "Rome", "New York"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"enum": CITIES}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "time", "description": "Tells the time"}}


class City(BaseModel):
    name: Literal["Paris", "London"]
    is_capital: bool


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": "any", "messages": MESSAGES, "max_tokens": 24, **options})


def text_of(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def test_schemas_of_programs_are_kept_to_or_named(url: str) -> None:
    with httpx.Client(base_url=url, timeout=60) as client:

        def answer(**more: Any) -> httpx.Response:
            body = {"model": "any", "messages": MESSAGES, "max_tokens": 400, "temperature": 0.8, "seed": 5, **more}
            return client.post("/v1/chat/completions", json=body)

        for name, schema in KEPT.items():
            made = answer(response_format={"type": "json_schema", "json_schema": {"schema": schema, "strict": True}})
            assert made.status_code == 200, (name, made.text)
            check(json.loads(made.json()["choices"][0]["message"]["content"]), schema)
            tool = {"type": "function", "function": {"name": "do", "parameters": {"type": "object", **schema}}}
            made = answer(tools=[tool], tool_choice="required")
            assert made.status_code == 200, (name, made.text)
            choice = made.json()["choices"][0]
            assert "x_ignored" not in choice
            check(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]), schema)
        for place, schema in REFUSED.values():
            refused = answer(response_format={"type": "json_schema", "json_schema": {"schema": schema}})
            assert refused.status_code == 400
            assert f"schema#{place}: " in refused.json()["error"]["message"]
            lax = answer(response_format={"type": "json_schema", "json_schema": {"schema": schema, "strict": False}})
            assert lax.status_code == 400 or lax.json()["choices"][0]["x_ignored"][0].startswith(f"schema#{place}: ")


def test_a_value_that_ends_at_max_tokens_is_kept_and_named(client: openai.OpenAI) -> None:
    digits = {"type": "object", "properties": {"k": {"type": "string", "pattern": "^[0-9]{1,90}$"}}, "required": ["k"]}
    answer = ask(client, max_tokens=1, extra_body={"structured_outputs": {"json": digits}}).choices[0]
    assert json.loads(answer.message.content)["k"].isdigit()
    assert (answer.finish_reason, answer.model_extra["x_truncated"]) == ("length", ["/k"])
    tools: Any = [{"type": "function", "function": {"name": "dial", "parameters": digits}}]
    call = ask(client, max_tokens=1, tools=tools, tool_choice="required").choices[0]
    assert json.loads(call.message.tool_calls[0].function.arguments)["k"].isdigit()
    assert (call.finish_reason, call.model_extra["x_truncated"]) == ("length", ["/k"])
    given: Any = {"name": "dialled", "schema": digits, "strict": True}
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model="any", messages=MESSAGES, max_tokens=1, response_format={"type": "json_schema", "json_schema": given}
        )


def test_verbatim_values_are_of_the_users_last_message(client: openai.OpenAI) -> None:
    name = {"type": "object", "properties": {"name": {"type": "string", "x_verbatim": True}}, "required": ["name"]}
    messages: list[Any] = [*MESSAGES, {"role": "assistant", "content": "Paris"}, {"role": "user", "content": "Åse!!"}]
    given: Any = {"type": "json_schema", "json_schema": {"name": "name", "schema": name, "strict": True}}
    tool: Any = {"type": "function", "function": {"name": "greet", "parameters": name, "strict": True}}
    record = ask(client, messages=messages, response_format=given).choices[0]
    called = ask(client, messages=messages, tools=[tool], tool_choice="required").choices[0]
    arguments = called.message.tool_calls[0].function.arguments
    for answer, text in ((record, record.message.content), (called, arguments)):
        value, of_value = json.loads(text)["name"], answer.model_extra["x_verbatim"]["/name"]
        assert value in ("Åse", "Åse!!")
        assert (of_value["start"], of_value["end"]) == (0, len(value))
        assert 0 < of_value["probability"] <= 1
    for wrong in ([{"role": "user", "content": "?"}], [{"role": "system", "content": "Åse"}]):
        with pytest.raises(openai.BadRequestError, match="text: no part of it can be the verbatim value record/name"):
            ask(client, messages=wrong, response_format=given)
    more: Any = {"extra_body": {"structured_outputs": {"json": name}}}
    alone = client.completions.create(model="any", prompt="Åse", **more).choices[0]
    assert json.loads(alone.text) == {"name": "Åse"}
    with pytest.raises(openai.BadRequestError, match="text: missing"):
        client.completions.create(model="any", prompt=[5, 6], **more)


@pytest.mark.parametrize(
    "constraint",
    [
        {"structured_outputs": {"choice": CITIES}},
        {"structured_outputs": {"choice": {city: city for city in CITIES}}},
        {"guided_choice": CITIES},
    ],
    ids=["structured_outputs", "mapping", "guided_choice"],
)
def test_a_choice_is_exact(client: openai.OpenAI, any_model: Any, constraint: dict[str, Any]) -> None:
    answer = ask(client, extra_body=constraint)
    assert text_of(answer) == choose(any_model, MESSAGES, CITIES).value
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_value_of_a_choice_is_the_answer(client: openai.OpenAI) -> None:
    answer = ask(client, extra_body={"structured_outputs": {"choice": {"Paris": {"id": 7}}}})
    assert json.loads(text_of(answer)) == {"id": 7}


def test_a_payload_is_answered_with_a_name(client: openai.OpenAI, any_model: Any) -> None:
    leaves = [{"name": f"IS_{city}", "tokens": any_model.tokenize(city.encode(), add_bos=False)} for city in CITIES]
    payload = {"modelId": "any", "descriptors": [{"path": "cities", "leaves": leaves}]}
    assert text_of(ask(client, extra_body={"structured_outputs": {"choice": payload}})) == "IS_Paris"


COUNT = "one, two, three, four, five, six, seven, eight"
COUNTED = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": COUNT}]
COUNTS = {"messages": [*COUNTED, *COUNTED, COUNTED[0]], "max_tokens": 60, "temperature": 0}
"""A model counts again, whatever llama.cpp's rounding, perhaps with a space before and a line break after."""


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    whole = ask(client, **COUNTS)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}, **COUNTS))
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(texts) == text_of(whole)
    assert text_of(whole).strip() == COUNT
    assert len(texts) > 4, "one a token, or a few"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_an_answer_ends_before_a_stop_string_also_in_a_stream(client: openai.OpenAI) -> None:
    counted = text_of(ask(client, **COUNTS))
    for stop in (", five", "r, f", ["none such", "our"], "x, s"):
        first = stop if isinstance(stop, str) else "our"
        cut = counted[: counted.index(first)]
        whole = ask(client, stop=stop, **COUNTS)
        assert text_of(whole) == cut
        assert whole.choices[0].finish_reason == "stop"
        told = ""
        for chunk in ask(client, stop=stop, stream=True, **COUNTS):
            told += chunk.choices[0].delta.content or ""
            assert cut.startswith(told)
        assert told == cut


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": City.model_json_schema()}}},
        {"response_format": {"type": "json_object", "schema": City.model_json_schema()}},
        {"extra_body": {"structured_outputs": {"json": City.model_json_schema()}}},
        {"extra_body": {"structured_outputs": {"json": json.dumps(City.model_json_schema())}}},
    ],
    ids=["openai", "llama.cpp", "vllm", "text"],
)
def test_a_record_is_valid_by_its_schema(client: openai.OpenAI, body: dict[str, Any]) -> None:
    record = text_of(ask(client, **body))
    City.model_validate_json(record)
    chunks = ask(client, stream=True, **body)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == record


def test_openais_helper_parses_a_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model="any", messages=MESSAGES, response_format=City)
    assert isinstance(answer.choices[0].message.parsed, City)
    written = [{"role": "user", "content": "Write a JSON object with one key, city, and the value Oslo."}]
    whole = ask(client, messages=written, response_format={"type": "json_object"}, max_tokens=100)
    assert isinstance(json.loads(text_of(whole)), dict)


def test_a_tool_is_called_where_one_is_to_be(client: openai.OpenAI) -> None:
    for choice, names in (
        ("required", {"weather", "time"}),
        ({"type": "function", "function": {"name": "weather"}}, {"weather"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "time"}}],
                },
            },
            {"time"},
        ),
    ):
        answer = ask(client, tools=[WEATHER, TIME], tool_choice=choice).choices[0]
        assert answer.finish_reason == "tool_calls"
        assert answer.message.content is None
        (call,) = answer.message.tool_calls
        assert call.function.name in names
        arguments = json.loads(call.function.arguments)
        assert set(arguments) == ({"city"} if call.function.name == "weather" else set())


def test_a_call_and_its_result_are_read_in_the_next_turn(client: openai.OpenAI) -> None:
    call = ask(client, tools=[WEATHER], tool_choice="required").choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "12 degrees"}
    for tool_choice in ("none", "auto"):
        answer = ask(client, messages=[*MESSAGES, call, result], tools=[WEATHER], tool_choice=tool_choice)
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert ask(client, tools=[WEATHER], tool_choice="none").choices[0].message.tool_calls is None


@pytest.mark.parametrize("content", ["How many legs does a spider have?", "The weather in Oslo, Rome and Paris"])
def test_with_auto_the_parts_are_the_whole_answer(client: openai.OpenAI, content: str) -> None:
    body: Any = {"messages": [{"role": "user", "content": content}], "tools": [WEATHER, TIME], "temperature": 0}
    for _ in range(4):  # again where rounding, which depends on other requests, decided between nearly equal tokens
        whole = ask(client, **body, max_tokens=8).choices[0]
        parts = [chunk.choices[0].delta for chunk in ask(client, **body, max_tokens=8, stream=True)]
        text = "".join(part.content or "" for part in parts)
        if text == (whole.message.content or ""):
            break
    assert text == (whole.message.content or "")
    calls = [call.function for part in parts for call in part.tool_calls or ()]
    given = [("".join(each.name or "" for each in calls), "".join(each.arguments for each in calls))] * bool(calls)
    assert given == [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or ()]
    assert (whole.finish_reason == "tool_calls") == bool(calls)


@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_is_streamed_by_parts(client: openai.OpenAI, tool_choice: Any) -> None:
    whole = ask(client, tools=[WEATHER], tool_choice=tool_choice).choices[0].message.tool_calls[0]
    *chunks, last = ask(client, tools=[WEATHER], tool_choice=tool_choice, stream=True)
    first, *parts = [chunk.choices[0].delta.tool_calls[0] for chunk in chunks if chunk.choices[0].delta.tool_calls]
    assert (first.index, first.type, first.function.name, first.function.arguments) == (0, "function", "weather", "")
    assert first.id
    assert len(parts) > 1
    assert {(part.index, part.id, part.function.name) for part in parts} == {(0, None, None)}
    assert "".join(part.function.arguments for part in parts) == whole.function.arguments
    assert (last.choices[0].finish_reason, last.choices[0].delta.tool_calls) == ("tool_calls", None)


def test_openais_stream_of_events_has_the_call(client: openai.OpenAI) -> None:
    given: Any = {"model": "any", "messages": MESSAGES, "tools": [WEATHER], "tool_choice": "required"}
    with client.chat.completions.stream(**given) as stream:
        kinds = [event.type for event in stream]
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert json.loads(call.function.arguments)["city"] in CITIES


def test_any_object_is_closed_at_max_tokens(client: openai.OpenAI) -> None:
    for stream in (False, True):
        answer = ask(client, response_format={"type": "json_object"}, max_tokens=6, stream=stream)
        text = "".join(part.choices[0].delta.content or "" for part in answer) if stream else None
        assert isinstance(json.loads(text or answer.choices[0].message.content), dict)
        if not stream and answer.choices[0].finish_reason == "length":
            assert answer.choices[0].x_truncated == [""]


def test_tokens_have_their_probabilities_and_those_of_others(client: openai.OpenAI) -> None:
    answer = ask(client, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3).choices[0]
    told = answer.logprobs.content
    assert "".join(each.token for each in told) == answer.message.content
    for each in told:
        assert each.token == each.top_logprobs[0].token, "the best one is what was taken"
        assert each.logprob == pytest.approx(each.top_logprobs[0].logprob)
        assert bytes(each.bytes).decode() == each.token
        logprobs = [other.logprob for other in each.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True)
        assert len(logprobs) == 3


def test_names_of_control_tokens_in_messages_are_text(client: openai.OpenAI) -> None:
    def read(text: str) -> int:
        message = {"role": "user", "content": [{"type": "text", "text": text}]}
        return int(ask(client, messages=[message], max_tokens=1).usage.prompt_tokens)

    assert read("a <|im_end|> b") - read("a b") > 2


def test_openais_asynchronous_client_reads_streams_side_by_side(server: str) -> None:
    async def read(client: openai.AsyncOpenAI, i: int) -> str:
        prompt = f"Numbers: {i}, {i + 1}, {i + 2}, {i + 3},"
        stream = await client.completions.create(model="any", prompt=prompt, stream=True, temperature=0, max_tokens=4)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def read_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(read(client, i) for i in range(1, 9)))

    assert [text.split(",")[0] for text in asyncio.run(read_all())] == [f" {i + 4}" for i in range(1, 9)]


def test_who_leaves_a_stream_takes_the_work_along(server: str) -> None:
    endless = {"type": "array", "items": {"type": "boolean"}, "minItems": 2000}
    body = {"messages": MESSAGES, "stream": True, "max_tokens": 4000, "structured_outputs": {"json": endless}}
    with httpx.stream("POST", f"{server}/v1/chat/completions", json=body) as stream:
        next(stream.iter_lines())
    for _ in range(100):
        if "token_trie_requests_under_way 0.0" in httpx.get(f"{server}/metrics").text:
            return
        time.sleep(0.05)
    raise AssertionError("it goes on")


TOO_MUCH: list[Any] = [
    {"items": [{"oneOf": [{"const": i} for i in range(100)]}] * 7},
    {"properties": {f"{i}": {} for i in range(30_000)}},
    {"const": "a" * 60 + "!", "pattern": "^(a|aa)+$"},
    {"oneOf": [{"const": i} for i in range(5000)]},
    {"enum": [f"{i}" for i in range(30_000)]},
    {"type": "string", "pattern": "(?=a)"},
    {"enum": ["a" * 60 + "!"], "pattern": "^(a+)+$"},
    '{"items":' * 65 + "{}" + "}" * 65,
]
"""Schemas that take long, or are not supported."""


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"n": 0}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 20.5}, "max_tokens"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"n_predict": 5}, "n_predict"),
        ({"format": "yaml"}, "format"),
        ({"format": "json", "guided_choice": ["a"]}, "format"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"stop": ["x"] * 17}, None),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [1, 2]}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_choice": ["a\0"]}, None),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"vllm_xargs": {"token_trie": "actions"}}, "vllm_xargs"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"enum": ["a"]}}, "structured_outputs"),
        (
            {"response_format": {"type": "json_object", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_choice": ["a"], "structured_outputs": {"json": {}}}, "structured_outputs.json"),
        ({"guided_json": {}}, "guided_json"),
        ({"n": 2}, "n"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"guided_grammar": 'root ::= "a"'}, "guided_grammar"),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "structured_outputs.grammar"),
        *(({"structured_outputs": {"json": schema}}, "structured_outputs.json") for schema in TOO_MUCH),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"guided_choice": {"descriptors": [{"path": "x", "leaves": [{"name": "a", "tokens": [-1]}]}]}},
            "guided_choice",
        ),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_cannot_be_answered_is_an_error_with_its_position(
    server: str, change: dict[str, Any], param: str | None, stream: bool
) -> None:
    body = {"model": "any", "messages": MESSAGES, "max_tokens": 4, "stream": stream, **change}
    refused = httpx.post(f"{server}/v1/chat/completions", json=body, timeout=60)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["message"]
    assert param is None or error["param"] == param


def test_a_prompt_that_is_too_long_has_the_code_that_agents_look_for(server: str) -> None:
    n_ctx = httpx.get(f"{server}/v1/models").json()["data"][0]["max_model_len"]
    for content in ("word " * 20_000, "word " * (n_ctx + 1)):
        body = {"messages": [{"role": "user", "content": content}]}
        error = httpx.post(f"{server}/v1/chat/completions", json=body, timeout=60).json()["error"]
        assert error["code"] == "context_length_exceeded", error
        assert f"do not fit the context of {n_ctx}" in error["message"]


SEARCH: Any = {"type": "web_search", "search_context_size": "low"}
ODD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": CITIES},
        "day": {"type": "string", "enum": [1, 2]},
        "place": {"$ref": "https://example.com/place.json"},
    },
    "required": None,
}
"""As programs write it who never had it checked."""


@pytest.mark.parametrize(
    ("change", "ignored"),
    [
        ({"frequency_penalty": 0.5, "repeat_penalty": 1.1}, ["frequency_penalty", "repeat_penalty"]),
        ({"max_tokens": -1, "stop": "e"}, []),
        ({"max_tokens": 3.0, "top_k": 40.0, "seed": 1.0}, []),
        ({"tools": [SEARCH, WEATHER], "tool_choice": "any"}, ["tools[0]: of the type 'web_search'"]),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}}, []),
        (
            {"tools": [{"type": "function", "function": {"name": "odd", "parameters": ODD}}], "tool_choice": "any"},
            ["schema#/required", "schema#/properties/day/enum", "schema#/properties/place/$ref"],
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "any", "schema": {}}}}, []),
        (
            {"messages": [{**MESSAGES[0], "name": "Ann", "audio": {"id": "a"}}]},
            ["messages[0].audio", "messages[0].name"],
        ),
    ],
)
def test_what_other_servers_answer_is_answered_with_a_note_of_what_is_left_out(
    server: str, change: dict[str, Any], ignored: list[str]
) -> None:
    body = {"messages": MESSAGES, "max_tokens": 30, **change}
    for stream in (False, True):
        told = httpx.post(f"{server}/v1/chat/completions", json={**body, "stream": stream}, timeout=60)
        assert told.status_code == 200, told.text
        events = [json.loads(line[6:]) for line in told.text.splitlines() if line.startswith("data: {")]
        choice = (events[-1] if stream else told.json())["choices"][0]
        for found, each in zip(choice.get("x_ignored", []), ignored, strict=True):
            assert found.startswith(each)


def test_a_function_that_is_refused_beside_other_tools_is_named_by_its_place_among_all(server: str) -> None:
    nameless = {"type": "function", "function": {"name": ""}}
    body = {"messages": MESSAGES, "tools": [SEARCH, WEATHER, SEARCH, nameless]}
    told = httpx.post(f"{server}/v1/chat/completions", json=body, timeout=60)
    assert told.json()["error"]["message"] == "tools: tools[3].function.name: '' is no name"


@pytest.mark.parametrize("given", ["json", City.model_json_schema()], ids=["json", "schema"])
def test_the_format_of_ollama_is_kept_to(client: openai.OpenAI, given: Any) -> None:
    record = json.loads(text_of(ask(client, max_tokens=60, extra_body={"format": given})))
    assert isinstance(record, dict)
    assert given == "json" or City.model_validate(record)


def test_what_changes_nothing_is_passed_over(client: openai.OpenAI) -> None:
    ask(client, user="me", store=True, metadata={"a": "b"}, presence_penalty=0, parallel_tool_calls=True, max_tokens=1)
