"""Calls of tools: 100 requests with 12 tools and 40 with 6, some for none; later turns; and what turns cost."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from llama_cpp.llama_chat_format import get_chat_completion_handler
from token_trie import ToolCall, choose, choose_tool

from bench.models import Model, load
from bench.results import Results, Share, Table, progress
from bench.sets import data
from bench.timing import watch

_N_CTX, _MAX_TOKENS = 4096, 96
_TITLE = "A call, or text where no tool fits: 70 requests of 140, 12 and 6 tools; the other 70 chose how"
_TURNS = "The turns after a call and its result: out of the same context, and reading all again"
_LATER = "Turns after others: a call, or text where all is done; with a gate, a less probable call counts as none"
_SENTENCE = "Answer in one sentence if no tool is needed, or if a tool has returned what was asked for."
_GATES = (0.5, 0.8)
_N_CONTINUED = 3
Call = tuple[str, Any] | None


def _ours(model: Model, messages: Any, tools: Any) -> Call:
    answer = choose_tool(model.llm, messages, tools, tool_choice="auto", max_tokens=_MAX_TOKENS)
    return (answer.name, answer.arguments) if isinstance(answer, ToolCall) else None


def _handler(model: Model, messages: Any, tools: Any) -> Call:
    handler = get_chat_completion_handler("chatml-function-calling")
    given = {"messages": messages, "tools": tools, "tool_choice": "auto"}
    found: Any = handler(llama=model.llm, temperature=0, max_tokens=_MAX_TOKENS, **given)
    calls = found["choices"][0]["message"].get("tool_calls")
    return read_call(json.dumps(calls[0]["function"]), tools) if calls else None


def _template(model: Model, messages: Any, tools: Any) -> Call:
    found: Any = model.llm.create_chat_completion(messages, tools=tools, temperature=0, max_tokens=_MAX_TOKENS)
    return read_call(found["choices"][0]["message"]["content"] or "", tools)


def read_call(text: str, tools: Any) -> Call:
    """Return the first call in a text, with any tag or fence around it."""
    names = [tool["function"]["name"] for tool in tools]
    for at in re.finditer(r"{", text):
        try:
            found, _ = json.JSONDecoder().raw_decode(text, at.start())
            arguments = found.get("arguments", found.get("parameters"))
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            continue
        if found.get("name") in names:
            return found["name"], arguments
    return None


_CONTENDERS: dict[str, Callable[[Model, Any, Any], Call]] = {
    "token-trie": _ours,
    "llama-cpp-python, chatml-function-calling": _handler,
    "llama-cpp-python, the model's template, text parsed": _template,
}


def run(options: Any) -> None:
    """Let everyone answer the held-out requests with all models, and measure further turns."""
    results, groups = Results("tools"), data("tool_requests.json")
    answers, later, turns = [], [], []
    for name in options.models:
        model = load(name, options, n_ctx=_N_CTX)
        for who, call in _CONTENDERS.items():
            ms, right = [], []
            for group in groups:
                requests, tools = group["requests"][1::2], group["tools"]
                requests = requests[:: -(-len(requests) // options.cases) if options.cases else 1]
                call(model, [{"role": "user", "content": "Hello"}], tools)  # reads the tools
                for request in progress(requests, f"{model.name}, {who}"):
                    with watch() as took:
                        found = call(model, [{"role": "user", "content": request["request"]}], tools)
                    ms.append(took.wall_ns / 1e6)
                    right.append((request["tool"] is not None, *_is_right(found, request)))
            of, tool, whole = np.array(right).T
            answers.append(
                {
                    "model": model.name,
                    "by": who,
                    f">right tool of {of.sum()}": Share(np.mean(tool, where=of)),
                    ">tool and arguments": Share(np.mean(whole, where=of)),
                    f">right none of {(~of).sum()}": Share(np.mean(tool, where=~of)),
                    ">median ms": float(np.median(ms)),
                }
            )
        later += _later(model, options.cases)
        turns.append({"model": model.name, **_continued(model, groups[0])})
    results.tables += [Table(_TITLE, answers), Table(_LATER, later), Table(_TURNS, turns)]
    results.finish(options.output)


def _is_right(found: Call, request: Any) -> tuple[bool, bool]:
    if found is None or request["tool"] is None:
        is_right = (found is None) == (request["tool"] is None)
        return is_right, is_right
    name, arguments = found
    expected = request["arguments"].items()
    is_right = name == request["tool"]
    return is_right, is_right and isinstance(arguments, dict) and all(arguments.get(k) == v for k, v in expected)


def _later(model: Model, n_cases: int | None) -> list[dict[str, Any]]:
    """Let `choose_tool` answer conversations that have begun, also after a sentence in the system message."""
    given, rows = data("tool_turns.json"), []
    for name, before in {"as it is": [], "with a sentence": [{"role": "system", "content": _SENTENCE}]}.items():
        found = []
        for each in progress(given["conversations"][:n_cases], f"{model.name}, later turns, {name}"):
            messages, tools = before + each["messages"], given["tools"][each["tools"]]
            answer: Any = choose_tool(model.llm, messages, tools, tool_choice="auto", max_tokens=_MAX_TOKENS)
            call = (answer.name, answer.probability) if isinstance(answer, ToolCall) else ("", 1.0)
            found.append((each["right"] or [""], *call))
        of = np.array([right != [""] for right, *_ in found])
        for gate in (0.0, *_GATES):
            is_right = [(tool if p >= gate else "") in right for right, tool, p in found]
            row = {"model": model.name, "": name, ">gate": gate or None}
            row |= {f">right call of {of.sum()}": int(np.sum(is_right, where=of))}
            rows.append(row | {f">right none of {(~of).sum()}": int(np.sum(is_right, where=~of))})
    return rows


def _continued(model: Model, group: Any) -> dict[str, Any]:
    tools, requests, took = group["tools"], group["requests"][1::2], []
    for i in range(_N_CONTINUED):
        messages: list[Any] = [{"role": "user", "content": requests[2 * i]["request"]}]
        call = choose_tool(model.llm, messages, tools, max_tokens=_MAX_TOKENS)
        messages += [call.message, call.result({"status": "done"})]
        second = _timed(model, messages, tools)
        messages += [
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": requests[2 * i + 1]["request"]},
        ]
        took.append((second, _timed(model, messages, tools)))
    choose(model.llm, "Another text", ["a", "b"])
    again = _timed(model, messages, tools)
    second, third = np.median(took, axis=0).tolist()
    return {
        ">second turn ms": second,
        ">third turn ms": third,
        ">reading all ms": again,
        ">third to all": third / again,
    }


def _timed(model: Model, messages: Any, tools: Any) -> float:
    with watch() as took:
        choose_tool(model.llm, messages, tools, tool_choice="auto", max_tokens=1)
    return took.wall_ns / 1e6
