"""Calls of tools: 100 requests, 12 tools, some requests for none; and the turn after a call."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from llama_cpp.llama_chat_format import get_chat_completion_handler
from token_trie import StreamHandle, ToolCall, choose_tool
from token_trie.records.tools import ask_for_tools

from bench.models import Model, load
from bench.results import Results, Share, Table, progress
from bench.sets import data

_N_CTX, _MAX_TOKENS = 4096, 96
_TITLE = "A call, or text where no tool fits: 50 requests of 100, 12 tools; the other 50 chose how"
_TURNS = "The turn after a call and its result, up to its first token: out of the same context, and reading all again"
Call = tuple[str, Any] | None


def _ours(model: Model, messages: Any, tools: Any) -> Call:
    answer = choose_tool(model.llm, messages, tools, tool_choice="auto", max_tokens=_MAX_TOKENS)
    return (answer.name, answer.arguments) if isinstance(answer, ToolCall) else None


def _handler(model: Model, messages: Any, tools: Any) -> Call:
    handler = get_chat_completion_handler("chatml-function-calling")
    given = {"messages": messages, "tools": tools, "tool_choice": "auto"}
    found: Any = handler(llama=model.llm, temperature=0, max_tokens=_MAX_TOKENS, **given)
    calls = found["choices"][0]["message"].get("tool_calls")
    return _read(json.dumps(calls[0]["function"]), tools) if calls else None


def _template(model: Model, messages: Any, tools: Any) -> Call:
    found: Any = model.llm.create_chat_completion(messages, tools=tools, temperature=0, max_tokens=_MAX_TOKENS)
    return _read(found["choices"][0]["message"]["content"] or "", tools)


def _read(text: str, tools: Any) -> Call:
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
    """Let everyone answer the held-out requests with all models, and measure a second turn."""
    results, given = Results(options.mode), data("tool_requests.json")
    tools, requests = given["tools"], given["requests"][1::2]
    answers, turns = [], []
    for name in options.models:
        model = load(name, n_ctx=_N_CTX, n_batch=512, n_gpu_layers=options.n_gpu_layers, threads=options.threads)
        for who, call in _CONTENDERS.items():
            call(model, [{"role": "user", "content": "Hello"}], tools)  # reads the tools
            ms, right = [], []
            for request in progress(requests, f"{model.name}, {who}"):
                started = time.perf_counter()
                found = call(model, [{"role": "user", "content": request["request"]}], tools)
                ms.append((time.perf_counter() - started) * 1e3)
                right.append(_is_right(found, request))
            of = np.array([request["tool"] is not None for request in requests])
            answers.append(
                {
                    "model": model.name,
                    "by": who,
                    ">right tool": Share(np.mean([tool for tool, _ in right], where=of)),
                    ">tool and arguments": Share(np.mean([whole for _, whole in right], where=of)),
                    ">right none": Share(np.mean([tool for tool, _ in right], where=~of)),
                    ">median ms": float(np.median(ms)),
                }
            )
        turns.append({"model": model.name, **_second_turn(model, tools, requests)})
    results.tables += [Table(_TITLE, answers), Table(_TURNS, turns)]
    results.finish(options.output)


def _is_right(found: Call, request: Any) -> tuple[bool, bool]:
    if found is None or request["tool"] is None:
        return (found is None) == (request["tool"] is None), found is None
    name, arguments = found
    expected = request["arguments"].items()
    is_right = name == request["tool"]
    return is_right, is_right and isinstance(arguments, dict) and all(arguments.get(k) == v for k, v in expected)


def _second_turn(model: Model, tools: Any, requests: Any) -> dict[str, Any]:
    turn, whole = [], []
    for request in requests[:5]:
        messages: list[Any] = [{"role": "user", "content": request["request"]}]
        call = choose_tool(model.llm, messages, tools)
        messages += [call.message, call.result({"status": "done"})]
        started = time.perf_counter()
        choose_tool(model.llm, messages, tools, tool_choice="auto", max_tokens=1)
        turn.append(time.perf_counter() - started)
        tokens, _ = ask_for_tools(model.llm, messages, tools, _N_CTX, writes_first=True)
        with StreamHandle(model.llm) as stream:
            started = time.perf_counter()
            stream.prefill(tokens)
            stream.text(1)
            whole.append(time.perf_counter() - started)
    second, all_again = float(np.median(turn)) * 1e3, float(np.median(whole)) * 1e3
    return {">second turn ms": second, ">reading all ms": all_again, ">ratio": second / all_again}
