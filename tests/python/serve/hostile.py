"""Requests that nobody means well with, over every route: bodies, and ways of sending and reading them."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from typing import Any

TEXT = "The parcel has not come."
SCHEMA_ROUTES = ("response_format", "structured_outputs", "tools")


def bytes_of(rng: random.Random) -> tuple[str, bytes]:
    """Return path and body of a request."""
    path, make = rng.choice(ROUTES)
    body = make(rng)
    data = body if isinstance(body, bytes) else json.dumps(body).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        at = rng.randrange(len(data) + 1)
        data = (
            data[:at]
            + rng.choice([b"", b"\xff", b"\0", b"1e999", b"]}", b"[" * 1000, b"," * 100_000])
            + data[at:][:8_000_000]
        )
    return path, data


def value(rng: random.Random, depth: int = 0) -> Any:
    """Return any JSON value."""
    leaves = [None, True, 0, -1, 2**31, 10**30, 0.5, 1e300, "", "a", TEXT, "\ud800", "\0", "x" * 10_000, [], {}]
    if depth > 3 or rng.random() < 0.6:
        return rng.choice(leaves)
    n = rng.choice([1, 2, 3, 20, 300 if depth < 1 else 3])
    if rng.random() < 0.5:
        return [value(rng, depth + 1) for _ in range(n)]
    return {rng.choice(["type", "a", "", "\0", str(i)]): value(rng, depth + 1) for i in range(n)}


def large(rng: random.Random) -> bytes:
    """Return a body as large as is read, or a little larger."""
    piece = rng.choice([b"0,", b"[],", b'{"a":0},', b'"",', b'"abc",', b"null,", b" ", b"[", b'{"a":', b"1e9,"])
    n = rng.choice([1 << 16, 1 << 20, 1 << 22, 8 << 20, 9 << 20]) // len(piece)
    key = rng.choice(["questions", "state", "messages", "prompt", "input", "choices", "tools", "x", "guided_choice"])
    begin = rng.choice([b"[", b'{"%s": [' % key.encode()])
    return begin + piece * n + rng.choice([b"0]}", b"0]", b""])


def systemone(rng: random.Random) -> Any:
    """Return questions, too many or too large."""
    n_options = rng.choice([2, 3, 50, 255, 256, 5000])
    criteria: Any = {f"{i}": rng.choice([None, TEXT, 0, "x" * 1000]) for i in range(n_options)}
    kind = rng.choice(["choice", "score", "noul", "none"])
    if kind == "score":
        criteria = list(criteria)[: rng.choice([2, 10, 11, 5000])]
    question = {"type": kind, "instructions": rng.choice([TEXT, 0, "y" * 50_000]), "criteria": criteria}
    if kind == "choice" and rng.random() < 0.4:
        question = of_set(rng, {"type": kind, "instructions": TEXT})
    n = rng.choice([1, 2, 10, 399, 401] if n_options < 100 else [1, 2, 10, 60])
    return {
        "state": rng.choice([TEXT, TEXT * 20, TEXT * 100_000, value(rng)]),
        "questions": {f"q{i}": question for i in range(n)},
        "x_orders": rng.choice([1, 1, 2, 64, 65, "auto", -1]),
        "x_form": rng.choice([None, "listed", "unlisted", "lettered"]),
        "x_reproducible": rng.random() < 0.05,
    }


def of_set(rng: random.Random, question: dict[str, Any]) -> dict[str, Any]:
    """Return a choice from the set x, or from none."""
    question["x_set"] = rng.choice(["x", "x", "x", "", "y" * 10_000, 7, None])
    question["x_mask"] = rng.choice([None, None, "", "/" * 100_000, "AQ==", "%", {}, list(range(50_000)), 7])
    question["x_top"] = rng.choice([None, None, 1, 255, 256, 0, -1, 2**70, "5", 1.5])
    return question


def decisions(rng: random.Random) -> Any:
    """Return the same in the other format."""
    choices = [{"value": f"{i}", "description": rng.choice([None, TEXT])} for i in range(rng.choice([2, 255, 5000]))]
    question = {"type": rng.choice(["choice", "predicate", "x"]), "instructions": TEXT, "choices": choices}
    if rng.random() < 0.3:
        question = of_set(rng, {"type": "choice", "instructions": TEXT})
    return {
        "model": "m",
        "input": rng.choice([TEXT, value(rng), [{"role": "user", "content": TEXT}] * 1000]),
        "questions": [question] * rng.choice([1, 2, 20]),
        "x_orders": rng.choice([1, 64]),
        "x_form": rng.choice([None, "listed"]),
    }


def schema(rng: random.Random) -> Any:
    """Return a JSON Schema that takes work."""
    n = rng.choice([10, 200, 3000, 20_000])
    several = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(n)}}
    inner = rng.choice(
        [
            {"enum": [f"value {i}" for i in range(n)]},
            {"enum": ["a" * 60 + "!"], "pattern": "^(a+)+$"},
            {"type": "string", "pattern": rng.choice(PATTERNS)},
            {"anyOf": [{"enum": [f"{i} {j}" for j in range(100)]} for i in range(min(n, 257))]},
            {"oneOf": [{"type": "object", "properties": {f"k{i}": {"const": i}}} for i in range(min(n, 257))]},
            {**several, "required": [f"p{i}" for i in range(n)]},
            several,
            {"type": "array", "items": {"type": "array", "items": {"type": "string"}}, "minItems": n},
            {"type": "string", "minLength": n, "maxLength": 10 * n},
            {"type": "integer", "minimum": -(10**n if n < 300 else 10**30), "maximum": 10**30},
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
            {"$ref": "#", "type": "object"},
            {"allOf": [{"type": "object"}] * min(n, 3000)},
            {"uniqueItems": True, "type": "array", "items": {"enum": list(range(min(n, 3000)))}, "maxItems": n},
            value(rng),
        ]
    )
    return rng.choice([inner, {"type": "object", "properties": {"a": inner}, "required": ["a"]}])


PATTERNS = [
    "^(a+)+$",
    "(x+x+)+y",
    "^" + ".?" * 200 + "$",
    "^(" * 90 + "a" + ")*" * 90 + "$",
    "^[0-9]{1,1000}$",
    "^([a-z]{1,50}){1,50}$",
    "(a|a)*" * 50,
    "(" * 5000,
    "^" + "|".join(f"w{i}" for i in range(2000)) + "$",
    "\\p{L}+",
    "^(?=.*a)(?!b)",
]


def completion(rng: random.Random) -> Any:
    """Return a request for texts under a constraint."""
    body: dict[str, Any] = {
        "max_tokens": rng.choice([0, 1, 16, 500, 2**31 - 1, -1]),
        "stream": rng.random() < 0.3,
        "stop": rng.choice([None, "x", ["a" * 999 + "b"] * 16, ["a" * 20_000] * 16, [""] * 17, 0]),
        "temperature": rng.choice([0, 1, 100, "0.7"]),
        "logprobs": rng.choice([None, None, 0, 20]),
    }
    kind = rng.choice([*SCHEMA_ROUTES, "guided_choice", "none", "none"])
    if kind in SCHEMA_ROUTES:
        made = schema(rng)
        shapes: dict[str, Any] = {
            "response_format": {"type": "json_schema", "json_schema": {"schema": made}},
            "structured_outputs": {"json": made},
            "tools": [{"type": "function", "function": {"name": "f", "parameters": made}}] * rng.choice([1, 2, 50]),
        }
        body[kind] = shapes[kind]
        if kind == "tools":
            body["tool_choice"] = rng.choice(["required", "auto"])
    elif kind != "none":
        some = [f"choice {i}" for i in range(rng.choice([1, 100, 20_000]))]
        body[kind] = rng.choice([some, {"set": "x", "mask": "/" * 100_000}, {"set": "x" * 10_000}, value(rng)])
    return body


def chat(rng: random.Random) -> Any:
    """Return a chat."""
    message = {
        "role": rng.choice(["user", "assistant", "tool", "x"]),
        "content": rng.choice([TEXT, TEXT * 50_000, None]),
    }
    return {**completion(rng), "messages": [message] * rng.choice([0, 1, 2, 5000])}


def prompts(rng: random.Random) -> Any:
    """Return prompts."""
    given = [TEXT, "", [TEXT] * 128, [TEXT] * 100_000, [1] * 500, [[1, 2]] * 64, [10**9], TEXT * 100_000, value(rng)]
    return {**completion(rng), "prompt": rng.choice(given)}


ROUTES: list[tuple[str, Callable[[random.Random], Any]]] = [
    ("/v1/systemone", systemone),
    ("/v1/systemone", large),
    ("/v1/decisions", decisions),
    ("/v1/decisions", large),
    ("/v1/chat/completions", chat),
    ("/v1/chat/completions", large),
    ("/v1/completions", prompts),
    ("/v1/completions", large),
]


def head_of(path: str, length: int) -> bytes:
    """Return the head of a request."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    return head.encode()


def send(rng: random.Random, connect: Callable[[bytes], socket.socket], seconds: float) -> socket.socket | None:
    """Send a request in some way, and read its answer; return the connection where that is left open."""
    path, data = bytes_of(rng)
    way = rng.choice(["whole"] * 10 + ["half", "slow", "deaf", "leave", "no head", "line", "again"])
    head = head_of(path, len(data))
    if way == "half":
        return connect(head + data[: rng.randrange(len(data) + 1) // 2])
    if way == "no head":
        return connect(head[: rng.randrange(len(head))])
    if way == "line":
        return connect(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 50)
    connection = connect(head)
    connection.settimeout(seconds)
    try:
        if way == "slow":
            for at in range(3):
                connection.sendall(data[at : at + 1])
            return connection
        connection.sendall(data)
        if way == "deaf":
            return connection
        if way != "leave":
            assert connection.recv(12)[9:10] in (b"2", b"4", b"5", b""), "no answer"
            if way == "again":
                connection.sendall(head + data)
    except ConnectionError:  # the server has closed it
        pass
    finally:
        if way not in ("slow", "deaf"):
            connection.close()
    return None
