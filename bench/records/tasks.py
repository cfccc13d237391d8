"""What is asked, and how it would be written."""

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, cast

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


@dataclass(frozen=True)
class Request:
    """One request, and what a person would call."""

    tokens: list[int]
    tool: str


class Requests:
    """All of them, in a model's tokens."""

    def __init__(self, model: Model, n: int | None = None) -> None:
        self.model = model
        given = cast(dict[str, Any], data("tool_calls.json"))
        self.tools: list[dict[str, Any]] = given["tools"]
        rows = given["requests"][:n]
        self.cases = [Request(tokenize_prompt(model.llm, self._prompt(row["text"])), row["tool"]) for row in rows]

    @cached_property
    def n_shared(self) -> int:
        """Tokens that all prompts begin with."""
        columns = zip(*(case.tokens for case in self.cases), strict=False)
        return sum(takewhile(bool, (len(set(column)) == 1 for column in columns)))

    def portions(self, case: Request) -> list[int]:
        """Where a prompt is cut; everyone evaluates it in these portions."""
        n = len(case.tokens)
        return sorted({self.n_shared, n - 1, n} - {0})

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The same as one schema: a call of any of the tools."""
        return {"anyOf": [_call(tool["function"]) for tool in self.tools]}

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
