"""The requests, and the records that answer them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal, Protocol, cast

from token_trie import RecordStats, StreamHandle
from token_trie.sets.prompt import tokenize_prompt

from bench.models import Model
from bench.sets import data

MOST_TOKENS = 128
"""Of a call, for those that count all of it."""

_SHOWN = [
    ("Is it hot in Cairo today?", "get_weather", {"city": "Cairo", "when": "today", "unit": "celsius"}),
    ("Get me up at 7:15 on Sunday", "set_alarm", {"hour": 7, "minute": 15, "repeat": "once"}),
    ("Tell Ben that lunch is ready", "send_message", {"to": "Ben", "text": "Lunch is ready"}),
]


_RECORD = {"action": "OPEN_URL", "urgent": False, "priority": "medium", "minutes": 10, "note": "The page of the bank"}


@dataclass(frozen=True)
class Request:
    """One request, and the record that a person would write."""

    tokens: list[int]
    tool: str | None


class Requests(Protocol):
    """All requests, in a model's tokens."""

    name: str
    model: Model
    cases: list[Request]
    schema: dict[str, Any]
    """Of what is written."""

    def write(self, handle: StreamHandle, mode: Literal["exact", "greedy"]) -> tuple[str, RecordStats | None]:
        """Write a record behind the sequence; return its text."""

    @property
    def n_shared(self) -> int:
        """Tokens that all prompts begin with."""

    def portions(self, case: Request) -> list[int]:
        """Return the positions at which a prompt is cut: every contender evaluates it in these portions."""


class _Shared:
    cases: list[Request]

    @cached_property
    def n_shared(self) -> int:
        """Tokens that all prompts begin with."""
        columns = zip(*(case.tokens for case in self.cases), strict=False)
        return sum(takewhile(bool, (len(set(column)) == 1 for column in columns)))

    def portions(self, case: Request) -> list[int]:
        """Return the positions at which a prompt is cut."""
        n = len(case.tokens)
        return sorted({self.n_shared, n - 1, n} - {0})


class Records(_Shared):
    """An action of 30, a boolean, an enum of 3, an integer of 0 to 60 and a note."""

    name = "a record"

    def __init__(self, model: Model, n: int | None = None) -> None:
        self.model = model
        self._actions = cast(list[str], data("actions.json"))[:30]
        rows = cast(list[dict[str, str]], data("requests.json"))[:n]
        self.cases = [Request(tokenize_prompt(model.llm, self._prompt(row["text"])), None) for row in rows]

    @cached_property
    def schema(self) -> dict[str, Any]:
        """Of a record."""
        properties = {
            "action": {"enum": self._actions},
            "urgent": {"type": "boolean"},
            "priority": {"enum": ["low", "medium", "high"]},
            "minutes": {"type": "integer", "minimum": 0, "maximum": 60},
            "note": {"type": "string", "maxLength": 60},
        }
        return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}

    def write(self, handle: StreamHandle, mode: Literal["exact", "greedy"]) -> tuple[str, RecordStats | None]:
        """Write a record."""
        record = handle.fill(self.schema, mode=mode)
        return record.text, record.stats

    def _prompt(self, text: str) -> str:
        shown = json.dumps(_RECORD, separators=(",", ":"))
        lines = [f"Actions: {', '.join(self._actions)}", "", "Request: Show me the bank's page in ten minutes"]
        return "\n".join([*lines, f"Record: {shown}", "", f"Request: {text}", "Record:"])


class Calls(_Shared):
    """Calls of six tools of two to five arguments."""

    name = "a tool call"

    def __init__(self, model: Model, n: int | None = None) -> None:
        self.model = model
        given = cast(dict[str, Any], data("tool_calls.json"))
        self.tools: list[dict[str, Any]] = given["tools"]
        rows = given["requests"][:n]
        self.cases = [Request(tokenize_prompt(model.llm, self._prompt(row["text"])), row["tool"]) for row in rows]

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The tools as one schema: a call of any of them."""
        return {"anyOf": [_call(tool["function"]) for tool in self.tools]}

    def write(self, handle: StreamHandle, mode: Literal["exact", "greedy"]) -> tuple[str, RecordStats | None]:
        """Choose a tool."""
        call = handle.choose_tool(self.tools, mode=mode)
        text = json.dumps({"name": call.name, "arguments": call.arguments}, separators=(",", ":"))
        return text, call.stats

    def _prompt(self, text: str) -> str:
        lines = ["Tools:"]
        for tool in self.tools:
            function = tool["function"]
            lines.append(f"- {function['name']}: {function['description']}")
        for request, name, arguments in _SHOWN:
            call = json.dumps({"name": name, "arguments": arguments}, separators=(",", ":"))
            lines += ["", f"Request: {request}", f"Call: {call}"]
        return "\n".join([*lines, "", f"Request: {text}", "Call:"])


def _call(function: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": function["parameters"]},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
