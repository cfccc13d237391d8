from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import commands
import jsonschema
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from token_trie import Choice, Predicate, choose, decide

COMMAND = str(Path(sys.executable).with_name("token-trie"))
PROMPT = "The capital of France is"
CHOICES = [" Paris", " Rome", " Berlin"]
STATE = "I was charged twice for my order."
QUESTIONS: dict[str, Any] = {
    "team": {
        "type": "choice",
        "instructions": "Which team should handle this?",
        "criteria": {"billing": "payments and charges", "technical": None},
    },
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
}


def talk(talk: Callable[[Client], Coroutine[Any, Any, Any]], *options: str) -> Any:
    """Let a client talk to the command."""

    async def run() -> Any:
        command = StdioServerParameters(command=COMMAND, args=["mcp", *options])
        with open("/dev/null", "w") as errors:
            async with Client(stdio_client(command, errlog=errors)) as client:
                return await asyncio.wait_for(talk(client), 120)

    return asyncio.run(run())


def told(result: Any) -> Any:
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def test_tools_answer_as_the_functions_do(tiny: Any, model_paths: dict[str, Path]) -> None:
    async def both(client: Client) -> Any:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"decide", "choose"}
        return await asyncio.gather(
            client.call_tool("decide", {"state": STATE, "questions": QUESTIONS}),
            client.call_tool("choose", {"prompt": PROMPT, "choices": CHOICES}),
        )

    decided, chosen = map(told, talk(both, "-m", str(model_paths["tiny"])))
    expected = decide(
        tiny,
        STATE,
        {
            "team": Choice("Which team should handle this?", {"billing": "payments and charges", "technical": None}),
            "urgent": Predicate("Is it urgent?"),
        },
    )
    answers = decided["answers"]
    assert answers["team"]["choice"] == expected["team"].value
    assert answers["team"]["probabilities"] == pytest.approx(expected["team"].probabilities, abs=0.02)
    assert answers["urgent"]["noul"] == pytest.approx(expected["urgent"].probability, abs=0.02)
    decision = choose(tiny, PROMPT, CHOICES, probabilities=True)
    assert chosen["choice"] == decision.value
    assert decision.probabilities is not None
    expected_p = dict(zip(CHOICES, decision.probabilities.tolist(), strict=True))
    assert chosen["probabilities"] == pytest.approx(expected_p, abs=0.02)
    assert list(chosen["probabilities"].values()) == sorted(chosen["probabilities"].values(), reverse=True)


def test_faults_are_reported_with_their_position_and_the_next_call_is_answered(model_paths: dict[str, Path]) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("decide", {"state": "x", "questions": {"q": {"type": "choice"}}}, "questions.q.criteria"),
        ("decide", {"state": "x", "questions": {}}, "questions"),
        ("decide", {"state": "x", "questions": QUESTIONS, "temperature": 1}, "temperature"),
        ("choose", {"prompt": "x", "choices": []}, "choices"),
        ("choose", {}, "prompt"),
    ]

    async def errors(client: Client) -> None:
        for name, arguments, place in wrong:
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert place in result.content[0].text
        with pytest.raises(MCPError, match="no tool 'other'"):
            await client.call_tool("other", {})
        right = told(await client.call_tool("choose", {"prompt": "x", "choices": ["a", "b", "a"]}))
        assert set(right["probabilities"]) == {"a", "b"}

    talk(errors, "-m", str(model_paths["tiny"]))


def test_schemas_take_what_the_tools_take() -> None:
    async def schemas(client: Client) -> Any:
        return {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}

    found = talk(schemas)
    jsonschema.validate({"state": {"x": 1}, "questions": QUESTIONS}, found["decide"])
    jsonschema.validate({"prompt": PROMPT, "choices": CHOICES}, found["choose"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"state": "x", "questions": {"q": {"type": "choice"}}}, found["decide"])


def served(model: Path, *messages: dict[str, Any]) -> tuple[subprocess.Popen[str], list[dict[str, Any]]]:
    """Return the command at work, with its answers to a greeting and these messages."""
    meta = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    greeting: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": meta},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ]
    process = commands.Command(["mcp", "-m", str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    for message in (*greeting, *messages):
        print(json.dumps(message), file=process.stdin, flush=True)
    return process, [json.loads(process.stdout.readline()) for _ in range(1 + len(messages))]


def test_standard_output_is_the_protocols_alone(model_paths: dict[str, Path]) -> None:
    call = {"name": "choose", "arguments": {"prompt": "x", "choices": ["a", "b"]}}
    process, answers = served(model_paths["tiny"], {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 0
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["structuredContent"]["choice"] in ("a", "b")


def test_an_interrupt_ends_it_though_the_client_stays(model_paths: dict[str, Path]) -> None:
    process, _ = served(model_paths["tiny"])
    with process:
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == -signal.SIGINT
        finally:
            process.kill()


def test_a_missing_model_is_reported() -> None:
    done = commands.run("mcp", "-m", "none.gguf")
    assert done.returncode == 1
    assert "none.gguf" in done.stderr
    assert done.stdout == ""
