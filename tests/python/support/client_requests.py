"""Bodies of chats as public clients send them: each with what has to be in the prompt, or the place that is refused."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

PIXEL = "data:image/png;base64,iVBORw0KGgo="
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"


class Sent(NamedTuple):
    """A request, and the parameter by which it is refused, if it is."""

    body: dict[str, Any]
    refused: str | None = None


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def part(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def call(name: str, arguments: str, call_id: str = "call_0000") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, **more}
    return {"type": "function", "function": {"name": name, "description": f"The tool {name}", "parameters": parameters}}


def result(content: Any, call_id: str = "call_0000", **more: Any) -> dict[str, Any]:
    return say("tool", content, tool_call_id=call_id, **more)


TEXT = {"type": "string"}
READ = tool("read_file", {"path": TEXT}, required=["path"], additionalProperties=False)
LIGHT = tool("HassTurnOff", {"name": TEXT, "area": TEXT, "domain": {"type": "array", "items": TEXT}}, required=[])
SYSTEM, USER = say("system", "You are a coding agent."), say("user", "Show me notes.txt")
READING = [SYSTEM, USER, say("assistant", None, tool_calls=[call("read_file", '{"path": "notes.txt"}')])]
OLD = [USER, say("assistant", None, function_call={"name": "read_file", "arguments": '{"path": "notes.txt"}'})]
PERSON = {"type": "object", "properties": {"name": TEXT, "age": {"type": "integer"}}, "required": ["name", "age"]}
PRICE = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": DECIMAL}]}
IMAGE = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "auto"}}
SEEN = [say("user", [part("What is this?"), IMAGE]), say("assistant", "A chart."), say("user", "Of what?")]


def schema(given: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": given, **more}}


CLIENT_REQUESTS: dict[str, Sent] = {
    "cline: parts and an environment": Sent(
        {
            "messages": [SYSTEM, say("user", [part("<task>Fix it</task>"), part("<environment_details>cwd: /app")])],
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ),
    "cline: a stop of two texts": Sent({"messages": [SYSTEM, USER], "stop": ["</read_file>", "</write_to_file>"]}),
    "cline: a thought beside an answer": Sent(
        {"messages": [USER, say("assistant", "Done.", reasoning_content="I should read it."), say("user", "Thanks")]}
    ),
    "cline: an image in an old turn": Sent({"messages": SEEN}),
    "cline: an image in the last turn": Sent({"messages": SEEN[:1]}, "messages[0].content[1]"),
    "continue: a chat without limits": Sent({"messages": [USER], "max_tokens": -1, "stop": ["x"]}),
    "continue: sampling of every kind": Sent(
        {
            "messages": [USER],
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.05,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.2,
            "mirostat": 2,
        }
    ),
    "continue: a result of a tool": Sent({"messages": [*READING, result("Buy milk")], "tools": [READ]}),
    "continue: results of two calls": Sent(
        {
            "messages": [
                USER,
                say(
                    "assistant",
                    "",
                    tool_calls=[call("read_file", '{"path": "a"}'), call("read_file", '{"path": "b"}', "call_0001")],
                ),
                result("first text"),
                result("second text", "call_0001"),
            ],
            "tools": [READ],
            "parallel_tool_calls": True,
        }
    ),
    "opencode: tools with strict off": Sent(
        {"messages": [SYSTEM, USER], "tools": [{**READ, "function": {**READ["function"], "strict": False}}]}
    ),
    "opencode: a cached system prompt": Sent(
        {"messages": [say("system", [part("You are opencode.", cache_control={"type": "ephemeral"})]), USER]}
    ),
    "opencode: whole numbers as floats": Sent({"messages": [USER], "max_tokens": 20.0, "temperature": 0}),
    "opencode: a call that was cut short": Sent(
        {
            "messages": [
                USER,
                say("assistant", "", tool_calls=[call("write", '{"path": "a.py", "content": "import')]),
                result("Error: no JSON"),
            ],
            "tools": [READ],
        }
    ),
    "opencode: a call without arguments": Sent(
        {"messages": [USER, say("assistant", None, tool_calls=[call("list", "")]), result("a.txt")], "tools": [READ]}
    ),
    "home assistant: no required name": Sent(
        {"messages": [say("system", "You are a voice assistant."), say("user", "Turn off the fan")], "tools": [LIGHT]}
    ),
    "home assistant: a result as JSON": Sent(
        {
            "messages": [
                say("user", "Turn off the fan"),
                say("assistant", None, tool_calls=[call("HassTurnOff", '{"name": "office fan"}')]),
                result('{"speech": {}, "response_type": "action_done"}'),
            ],
            "tools": [LIGHT],
            "user": "01J",
        }
    ),
    "home assistant: functions of the older format": Sent(
        {"messages": [USER], "functions": [READ["function"]], "function_call": "auto"}, "functions"
    ),
    "home assistant: what a function gave": Sent({"messages": [*OLD, say("function", "Buy milk", name="read_file")]}),
    "n8n: an agent of tools with null": Sent(
        {"messages": [USER], "tools": [tool("search", {"input": TEXT}, required=None)], "tool_choice": "auto"}
    ),
    "n8n: a tool of zod": Sent(
        {
            "messages": [USER],
            "tools": [tool("calc", {"input": TEXT}, **{"$schema": "http://json-schema.org/draft-07/schema#"})],
            "n": 1,
        }
    ),
    "n8n: JSON by mode": Sent(
        {"messages": [say("user", "Answer in JSON")], "response_format": {"type": "json_object"}}
    ),
    "n8n: an empty answer of a tool": Sent({"messages": [*READING, result("")], "tools": [READ]}),
    "open webui: a chat with its options": Sent(
        {"messages": [USER], "stream": True, "repeat_penalty": 1.1, "chat_id": "1", "features": {"web_search": False}}
    ),
    "open webui: a title": Sent(
        {
            "messages": [say("user", "### Task:\nMake a title")],
            "max_completion_tokens": 50,
            "metadata": {"task": "title"},
        }
    ),
    "open webui: Ollama's format": Sent({"messages": [USER], "format": PERSON}),
    "open webui: a file in the last turn": Sent(
        {"messages": [say("user", [part("Read it"), {"type": "file", "file": {"file_id": "f"}}])]},
        "messages[0].content[1]",
    ),
    "librechat: names of speakers": Sent(
        {"messages": [say("user", "Hello", name="Ann"), say("assistant", "Hi", name="Bot"), USER]}
    ),
    "librechat: a system message in the middle": Sent(
        {"messages": [USER, say("assistant", "Yes?"), say("developer", "Be brief."), USER]}
    ),
    "librechat: a refusal": Sent({"messages": [USER, say("assistant", None, refusal="I cannot do that."), USER]}),
    "librechat: a thought as a part": Sent(
        {"messages": [USER, say("assistant", [{"type": "thinking", "thinking": "Hm."}, part("Done.")]), USER]}
    ),
    "langchain: structured output": Sent({"messages": [USER], "response_format": schema(PERSON, strict=True)}),
    "langchain: a tool that must be called": Sent({"messages": [USER], "tools": [READ], "tool_choice": "any"}),
    "langchain: a tool by the form of Responses": Sent(
        {"messages": [USER], "tools": [READ], "tool_choice": {"type": "function", "name": "read_file"}}
    ),
    "langchain: a price of pydantic": Sent(
        {"messages": [USER], "tools": [tool("pay", {"price": PRICE}, required=["price"])]}
    ),
    "langchain: a set of texts": Sent(
        {"messages": [USER], "tools": [tool("tag", {"tags": {"type": "array", "items": TEXT, "uniqueItems": True}})]}
    ),
    "langchain: a result of parts": Sent({"messages": [*READING, result([part("Buy milk")])], "tools": [READ]}),
    "langchain: a bias of logits": Sent({"messages": [USER], "logit_bias": {"50256": -100}}, "logit_bias"),
    "ai sdk: an object": Sent(
        {"messages": [USER], "response_format": schema({**PERSON, "additionalProperties": False})}
    ),
    "ai sdk: any JSON": Sent({"messages": [USER], "response_format": schema({})}),
    "ai sdk: a search beside functions": Sent(
        {"messages": [USER], "tools": [{"type": "web_search"}, READ], "store": False}
    ),
    "ai sdk: a tool of one custom input": Sent(
        {"messages": [USER], "tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools"
    ),
    "ai sdk: text with a call": Sent(
        {
            "messages": [
                USER,
                say("assistant", "I look.", tool_calls=[call("read_file", '{"path": "notes.txt"}')]),
                result("Milk"),
            ],
            "tools": [READ],
            "tool_choice": "none",
        }
    ),
    "ai sdk: a mixed enum": Sent(
        {
            "messages": [USER],
            "tools": [READ, tool("rate", {"stars": {"type": "string", "enum": [1, 2, 3]}}, allOf=[{}])],
        }
    ),
    "ai sdk: a schema elsewhere": Sent(
        {"messages": [USER], "tools": [tool("go", {"to": {"$ref": "https://example.com/place.json"}}), READ]}
    ),
    "ai sdk: two answers": Sent({"messages": [USER], "n": 2}, "n"),
}


_KEYS = ("role", "type", "id", "tool_call_id")


def words_of(value: Any, place: str = "messages") -> dict[str, str]:
    """Return all texts of messages by place, but for roles, types and ids; arguments of calls as the values in them."""
    if isinstance(value, str) and place.endswith(".arguments"):
        try:
            value = json.loads(value or "{}")
        except ValueError:  # cut short
            return {place: value}
    inner = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    found = {place: value} if isinstance(value, str) and value else {}
    for key, each in inner:
        if key not in _KEYS:
            found |= words_of(each, f"{place}[{key}]" if isinstance(value, list) else f"{place}.{key}")
    return found
