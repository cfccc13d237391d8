"""Whole records: 100 tool calls and 63 records, side by side."""

import json
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, Literal

import jsonschema
import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import StreamHandle
from token_trie.records.fill import RecordStats
from token_trie.sets.prompt import tokenize_prompt

from bench.completion import Completion, Handle, Outcome
from bench.contenders import llguidance_tokenizer
from bench.models import Model, load
from bench.results import Results, Share, Table, progress
from bench.sets import data
from bench.timing import watch

_MAX_TOKENS = 128
GREEDY, EXACT, GRAMMAR, GUIDANCE = "token-trie greedy", "token-trie exact", "llama-cpp-python", "llguidance"
_SHOWN = [
    ("Is it hot in Cairo today?", "get_weather", {"city": "Cairo", "when": "today", "unit": "celsius"}),
    ("Get me up at 7:15 on Sunday", "set_alarm", {"hour": 7, "minute": 15, "repeat": "once"}),
    ("Tell Ben that lunch is ready", "send_message", {"to": "Ben", "text": "Lunch is ready"}),
]
_RECORD = {"action": "OPEN_URL", "urgent": False, "priority": "medium", "minutes": 10, "note": "The page of the bank"}
_TITLE = "Tool calls: 6 tools of 2 to 5 arguments; records: an enum of 30, a boolean, an enum of 3, an integer, a note"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


class _Records:
    """Records of an action of 30, a boolean, an enum of 3, an integer of 0 to 60 and a note."""

    name = "a record"

    def __init__(self) -> None:
        actions = data("actions.json")[:30]
        properties = {
            "action": {"enum": actions},
            "urgent": {"type": "boolean"},
            "priority": {"enum": ["low", "medium", "high"]},
            "minutes": {"type": "integer", "minimum": 0, "maximum": 60},
            "note": {"type": "string", "maxLength": 60},
        }
        self.schema = object_schema(properties)
        shown = f"Request: Show me the bank's page in ten minutes\nRecord: {_json(_RECORD)}"
        begin = f"Actions: {', '.join(actions)}\n\n{shown}\n\n"
        self.prompts = [f"{begin}Request: {request['text']}\nRecord:" for request in data("requests.json")]
        self.expected: list[str | None] = [None] * len(self.prompts)

    def write(self, handle: StreamHandle, mode: Literal["exact", "greedy"]) -> tuple[str, RecordStats | None]:
        record = handle.fill(self.schema, mode=mode)
        return record.text, record.stats


class _Calls:
    """Calls of six tools of two to five arguments."""

    name = "a tool call"

    def __init__(self) -> None:
        given = data("tool_calls.json")
        self._tools = given["tools"]
        functions = [tool["function"] for tool in self._tools]
        calls = ({"name": {"const": f["name"]}, "arguments": f["parameters"]} for f in functions)
        self.schema = {"anyOf": list(map(object_schema, calls))}
        lines = ["Tools:", *(f"- {function['name']}: {function['description']}" for function in functions)]
        for request, name, arguments in _SHOWN:
            lines += ["", f"Request: {request}", f"Call: {_json({'name': name, 'arguments': arguments})}"]
        begin = "\n".join([*lines, ""])
        self.prompts = [f"{begin}\nRequest: {row['text']}\nCall:" for row in given["requests"]]
        self.expected: list[str | None] = [row["tool"] for row in given["requests"]]

    def write(self, handle: StreamHandle, mode: Literal["exact", "greedy"]) -> tuple[str, RecordStats | None]:
        call = handle.choose_tool(self._tools, mode=mode)
        return _json({"name": call.name, "arguments": call.arguments}), call.stats


def object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that requires all properties and allows no other."""
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _guidance(model: Model, requests: Any, completion: Completion) -> Callable[[list[int]], Outcome]:
    """Return llguidance in a loop of our own: forced tokens are evaluated in one batch with the next token."""
    import llguidance.numpy as with_numpy
    from llguidance import LLMatcher

    compact = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(requests.schema), overrides=compact)
    matcher = LLMatcher(llguidance_tokenizer(model), grammar)
    if matcher.is_error():
        raise RuntimeError(matcher.get_error())
    mask = with_numpy.allocate_token_bitmask(1, model.n_vocab)

    def write(prompt: list[int]) -> Outcome:
        completion.prepare(prompt)
        matcher.reset()
        tokens: list[int] = []
        pending: list[int] = []
        n_passes = 0
        with watch() as took:
            while len(tokens) < _MAX_TOKENS:
                forced = matcher.compute_ff_tokens()
                matcher.consume_tokens(forced)
                tokens += forced
                pending += forced
                if matcher.is_stopped():
                    break
                if pending:
                    model.llm.eval(pending)
                    n_passes += 1
                logits = model.logits_now()
                with_numpy.fill_next_token_bitmask(matcher, mask, 0)
                with_numpy.apply_token_bitmask_inplace(logits, mask)
                token = int(logits.argmax())
                matcher.consume_token(token)
                if llama_cpp.llama_vocab_is_eog(model.vocab, token):
                    break
                tokens.append(token)
                pending = [token]
        return Outcome(tokens, model.text(tokens), took.wall_ns, took.cpu_ns, n_passes=n_passes)

    return write


def run(options: Any) -> None:
    """Let everyone write all calls and records with all models."""
    results, lines = Results("record"), []
    for name in options.models:
        model = load(name, options, n_ctx=1024)
        for requests in (_Calls(), _Records()):
            lines += _measure(model, requests, options.rounds or 1)
    results.tables.append(Table(_TITLE, lines))
    results.finish(options.output)


def _measure(model: Model, requests: Any, rounds: int) -> list[dict[str, Any]]:
    prompts = [tokenize_prompt(model.llm, prompt) for prompt in requests.prompts]
    handle, completion = Handle(model, prompts), Completion(model, prompts)
    grammar = LlamaGrammar.from_json_schema(json.dumps(requests.schema), verbose=False)

    def ours(mode: Literal["exact", "greedy"], prompt: list[int]) -> Outcome:
        handle.prepare(prompt)
        with watch() as took:
            text, stats = requests.write(handle.stream, mode)
        assert stats is not None
        return Outcome([0] * stats.n_tokens, text, took.wall_ns, took.cpu_ns, n_passes=stats.n_passes)

    contenders: dict[str, Callable[[list[int]], Outcome]] = {
        GREEDY: partial(ours, "greedy"),
        EXACT: partial(ours, "exact"),
        GRAMMAR: partial(completion.answer, max_tokens=_MAX_TOKENS, grammar=grammar),
        GUIDANCE: _guidance(model, requests, completion),
    }
    for write in contenders.values():  # building at the first use is not timed
        write(prompts[0])
    found: dict[str, list[Outcome]] = {who: [] for who in contenders}
    with closing(handle.stream):
        for prompt in progress(prompts * rounds, f"{model.name}, {requests.name}"):
            for who, write in contenders.items():
                found[who].append(write(prompt))
    return [_row(model, requests, who, outcomes, rounds) for who, outcomes in found.items()]


def _row(model: Model, requests: Any, who: str, outcomes: list[Outcome], rounds: int) -> dict[str, Any]:
    ms = np.array([outcome.wall_ns for outcome in outcomes]) / 1e6
    read = [_read(requests, outcome.text) for outcome in outcomes]
    pairs = zip(read, requests.expected * rounds, strict=True)
    right = [record is not None and record.get("name") == tool for record, tool in pairs if tool is not None]
    return {
        "model": model.name,
        "task": requests.name,
        "by": who,
        ">median ms": float(np.median(ms)),
        ">p90 ms": float(np.percentile(ms, 90)),
        ">cpu ms": float(np.median([outcome.cpu_ns for outcome in outcomes])) / 1e6,
        ">tokens": float(np.mean([len(outcome.tokens) for outcome in outcomes])),
        ">passes": float(np.mean([outcome.n_passes for outcome in outcomes])),
        ">valid": Share(np.mean([record is not None for record in read])),
        ">right tool": Share(np.mean(right)) if right else None,
    }


def _read(requests: Any, text: str) -> dict[str, Any] | None:
    """Return a record if it is valid."""
    try:
        record: dict[str, Any] = json.loads(text)
        jsonschema.validate(record, requests.schema)
    except (ValueError, jsonschema.ValidationError):
        return None
    return record
