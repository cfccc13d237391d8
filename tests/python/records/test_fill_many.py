"""`fill_many`, `choose_tool_many`, their async forms, and records of several threads: as alone, and nothing lost."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_model import watching
from random_schemas import RandomSchema
from token_trie import (
    ArgumentError,
    ContextError,
    Think,
    TokenTrieError,
    choose,
    choose_many,
    choose_tool,
    choose_tool_many,
    fill,
    fill_many,
)
from token_trie.asynchronous import achoose_tool_many, afill_many
from token_trie.llama.batch import SharedBatch
from token_trie.llama.contexts import common_prefix
from token_trie.llama.text import Text
from token_trie.native.lifetime import attachment

N_COMPANIES = int(os.environ.get("COMPANIES", "4"))
NEAR = 1e-4
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["C", "F", "K"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 30},
        "tags": {"type": "array", "items": {"enum": ["rain", "sun", "wind"]}, "maxItems": 3},
        "rainy": {"type": "boolean"},
    },
    "required": ["city", "unit", "days"],
}
WAYS: list[dict[str, Any]] = [
    {},
    {"mode": "greedy"},
    {"mode": "sampled", "seed": 3, "temperature": 1.3},
    {"temperature": 0.9, "seed": 5, "top_p": 0.9},
    {"indent": 2},
    {"max_nodes": None},
    {"think": Think("\n", max_tokens=5)},
]


def prompts(n: int) -> list[str]:
    return [f"Report the weather as JSON.\nReport {i * i}:" for i in range(n)]


def outcome(call: Any) -> Any:
    try:
        return call()
    except TokenTrieError as error:
        return error


def check_same(one: Any, alone: Any) -> None:
    if isinstance(alone, TokenTrieError):
        assert type(one) is type(alone), (one, alone)
        assert str(one).endswith(str(alone)) or isinstance(alone, ContextError)
        return
    assert (one.value, one.text, one.thought, one.truncated) == (
        alone.value,
        alone.text,
        alone.thought,
        alone.truncated,
    )
    assert one.probabilities == pytest.approx(alone.probabilities, abs=NEAR)
    assert one.stats.n_prompt == alone.stats.n_prompt
    assert one.stats.n_tokens == alone.stats.n_tokens
    assert one.stats.n_choices == alone.stats.n_choices


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_record_is_the_one_that_fill_writes_alone(precise: Any, way: dict[str, Any]) -> None:
    way = {"max_tokens": 24, **way}
    for prompt, record in zip(prompts(9), fill_many(precise, prompts(9), SCHEMA, **way), strict=True):
        check_same(record, fill(precise, prompt, SCHEMA, **way))


def are_drawn_apart(llm: Any, some: list[Any], others: list[Any]) -> bool:
    """Return whether texts after the same tokens part where two tokens have the same logit, up to rounding.

    A draw goes through the tokens in the order of their logits, and rounding decides that of such two.
    """
    texts = [
        [(step.tokens, answer.tokens) for step, answer in of if step.query.mode == "text"] for of in (some, others)
    ]
    for (before, tokens), (same, drawn) in itertools.product(*texts):
        n = common_prefix(tokens, drawn)
        if [*before] == [*same] and n < min(len(tokens), len(drawn)):
            llm.reset()
            llm.eval([*before, *tokens[:n]])
            row = oracle.logits(llm)
            return bool(abs(row[tokens[n]] - row[drawn[n]]) < NEAR)
    return False


@settings(max_examples=3 * N_COMPANIES)
@given(st.integers(0, 2**32 - 1))
def test_records_of_random_schemas_are_written_as_alone(precise: Any, seed: int) -> None:
    rng = random.Random(seed)
    schema = RandomSchema(seed, for_llama=False).make()
    beginnings = ["", "One beginning. " * rng.randint(1, 5), "x y " * 600]
    asked: list[Any] = [rng.choice(beginnings[:2]) + f"{rng.random()}:" for _ in range(rng.randint(1, 12))]
    for _ in range(rng.randint(0, 2)):  # rows that cannot be answered
        asked.insert(rng.randint(0, len(asked)), rng.choice([beginnings[2], None, 7, "a\0b"]))
    way = {"max_tokens": rng.choice([4, 16, 40]), **rng.choice(WAYS)}
    sizes = {"n_parallel": rng.choice([None, 2, 3, 8]), "n_ctx": rng.choice([None, 512])}
    records = fill_many(precise, asked, schema, on_error="return", **sizes, **way)
    n_taken = rng.choice([len(asked), rng.randint(0, len(asked))])
    with watching() as seen:
        for i in range(n_taken):
            with watching() as seen_alone:
                alone = outcome(lambda prompt=asked[i]: fill(precise, prompt, schema, **way))
            one = next(records)
            has_room = sizes["n_ctx"] is None or not isinstance(one, ContextError)
            if has_room and not are_drawn_apart(precise, seen_alone, seen):
                check_same(one, alone)
            if isinstance(one, TokenTrieError):
                assert str(one).startswith(f"prompts[{i}]: ")
    records.close()


def test_records_come_in_order_or_as_they_are_ready_with_their_positions(precise: Any) -> None:
    asked = ["y" * 400 if i % 7 == 0 else prompt for i, prompt in enumerate(prompts(20))]
    expected = [fill(precise, prompt, SCHEMA, max_tokens=16).text for prompt in asked]
    assert [r.text for r in fill_many(precise, asked, SCHEMA, max_tokens=16)] == expected
    ready = list(fill_many(precise, iter(asked), SCHEMA, max_tokens=16, as_ready=True))
    assert [r.text for _, r in sorted(ready, key=lambda pair: pair[0])] == expected


def test_options_are_checked_at_once(precise: Any) -> None:
    wrong: list[dict[str, Any]] = [{"mode": "best"}, {"on_error": "ignore"}, {"n_parallel": 1}, {"on_text": print}]
    for options in wrong:
        with pytest.raises(ArgumentError):
            fill_many(precise, prompts(1), SCHEMA, **options)
    with pytest.raises(ArgumentError, match="schema"):
        fill_many(precise, prompts(1), {"type": "colour"})
    with pytest.raises(ArgumentError, match="for one prompt there is fill"):
        fill_many(precise, "Report:", SCHEMA)
    with pytest.raises(ArgumentError, match="for one conversation there is choose_tool"):
        choose_tool_many(precise, "Report:", TOOLS)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="on_text: goes with choose_tool"):
        choose_tool_many(precise, [], TOOLS, on_text=print)


def test_a_record_that_does_not_end_is_its_rows_error(precise: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-c]{40,50}$"}}, "required": ["a"]}
    records = list(fill_many(precise, prompts(3), schema, max_tokens=3, on_error="return"))
    assert all("prompts[" in str(record) and "no end after 3 tokens" in str(record) for record in records)
    with pytest.raises(TokenTrieError, match=r"^prompts\[0\]: record/a: no end"):
        next(fill_many(precise, prompts(3), schema, max_tokens=3))


def test_as_many_records_as_the_context_holds_are_written_at_once_and_none_is_lost(precise: Any) -> None:
    asked = prompts(40)
    expected = [fill(precise, prompt, SCHEMA, max_tokens=16).text for prompt in asked]
    for n_ctx, n_parallel in ((160, None), (224, 3), (2048, 64)):
        records = fill_many(precise, asked, SCHEMA, max_tokens=16, n_ctx=n_ctx, n_parallel=n_parallel)
        assert [record.text for record in records] == expected


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {
                "type": "object",
                "properties": {"to": {"type": "string", "maxLength": 8}, "n": {"enum": [1, 2, 3]}},
                "required": ["to", "n"],
            },
        },
    }
    for name in ("send", "read_file", "alarm")
]


@pytest.mark.parametrize("tool_choice", ["required", "auto"])
def test_each_call_is_the_one_that_choose_tool_makes_alone(precise: Any, tool_choice: Any) -> None:
    talks: list[Any] = [[{"role": "user", "content": f"Send {i} letters to Anna with a tool."}] for i in range(4)]
    talks.insert(2, [])
    way: dict[str, Any] = {"tool_choice": tool_choice, "max_tokens": 12}
    found = list(choose_tool_many(precise, iter(talks), TOOLS, on_error="return", **way))
    assert str(found[2]).startswith("conversations[2]: ")
    for messages, one in zip(talks, found, strict=True):
        alone = outcome(lambda messages=messages: choose_tool(precise, messages, TOOLS, **way))
        assert type(one) is type(alone)
        if isinstance(alone, Text):
            assert one.text == alone.text
        elif not isinstance(alone, TokenTrieError):
            assert (one.name, one.text) == (alone.name, alone.text)
            assert one.probability == pytest.approx(alone.probability, abs=NEAR)


def test_models_with_states_write_together_what_each_writes_alone(recurrent: Any) -> None:
    records = fill_many(recurrent, prompts(3), SCHEMA, max_tokens=8)
    assert [r.text for r in records] == [fill(recurrent, p, SCHEMA, max_tokens=8).text for p in prompts(3)]


def test_threads_write_records_and_choose_in_one_batch(precise: Any) -> None:
    asked = prompts(6)
    expected = [fill(precise, prompt, SCHEMA, max_tokens=16).text for prompt in asked]
    chosen = [choose(precise, prompt, ["sun", "rain"]).value for prompt in asked]
    results: dict[int, list[Any]] = {}

    def work(n: int) -> None:
        if n % 3:
            results[n] = [fill(precise, prompt, SCHEMA, max_tokens=16).text for prompt in asked]
        else:
            results[n] = [choose(precise, prompt, ["sun", "rain"]).value for prompt in asked]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found == (expected if n % 3 else chosen) for n, found in results.items())
    shared = attachment(precise).made(SharedBatch)
    assert shared is not None
    assert not shared._waiting


def test_an_interrupt_or_a_close_in_the_middle_leaves_all_usable(precise: Any) -> None:
    def interrupted(delay: float) -> None:
        threading.Timer(delay, signal.raise_signal, [signal.SIGINT]).start()
        list(fill_many(precise, prompts(500), SCHEMA, max_tokens=16))

    expected = fill(precise, prompts(1)[0], SCHEMA, max_tokens=16).text
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # hypothesis counts its time in a callback, which lets no interrupt out
    try:
        for delay in (0.003, 0.01, 0.03, 0.05):
            with pytest.raises(KeyboardInterrupt):
                interrupted(delay)
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, before)
    records = fill_many(precise, prompts(30), SCHEMA, max_tokens=16)
    assert next(records).text == expected
    records.close()  # type: ignore[attr-defined]
    assert list(records) == []
    assert fill(precise, prompts(1)[0], SCHEMA, max_tokens=16).text == expected
    fill_many(precise, prompts(5), SCHEMA)  # never begun


def test_an_interrupt_of_one_thread_loses_no_token_of_another(precise: Any) -> None:
    expected = [fill(precise, prompt, SCHEMA, max_tokens=24).text for prompt in prompts(4)]
    results: list[list[str]] = []
    is_over = threading.Event()

    def work() -> None:
        try:
            for _ in range(6):
                results.append([fill(precise, prompt, SCHEMA, max_tokens=24).text for prompt in prompts(4)])
        finally:
            is_over.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=work)
    try:
        thread.start()
        while not is_over.is_set():
            timer = threading.Timer(random.uniform(0.001, 0.01), signal.raise_signal, [signal.SIGINT])
            try:
                timer.start()
                for _ in range(100):
                    fill(precise, prompts(1)[0], SCHEMA, max_tokens=24)
            except KeyboardInterrupt:
                timer.join()
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert results == [expected] * 6
    shared = attachment(precise).made(SharedBatch)
    assert shared is not None
    assert not shared._waiting


def test_tasks_get_the_same_records_and_may_be_cancelled(precise: Any) -> None:
    seen = []

    async def run() -> list[Any]:
        records = afill_many(precise, prompts(5), SCHEMA, max_tokens=16)
        return [record async for record in records]

    async def endless() -> None:
        async for record in afill_many(precise, (f"{i}:" for i in range(10**6)), SCHEMA, max_tokens=16):
            seen.append(record)

    async def cancel() -> None:
        task = asyncio.create_task(endless())
        while len(seen) < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert [r.text for r in asyncio.run(run())] == [
        r.text for r in fill_many(precise, prompts(5), SCHEMA, max_tokens=16)
    ]
    asyncio.run(cancel())
    assert fill(precise, "1:", SCHEMA, max_tokens=16).text == seen[1].text


def test_async_calls_of_tools_are_those_of_the_other_form(precise: Any) -> None:
    talks = [[{"role": "user", "content": f"Send {i} letters."}] for i in range(2)]

    async def run() -> list[Any]:
        return [call async for call in achoose_tool_many(precise, talks, TOOLS, max_tokens=6)]

    assert [c.text for c in asyncio.run(run())] == [
        c.text for c in choose_tool_many(precise, talks, TOOLS, max_tokens=6)
    ]


def test_prompts_that_raise_end_it_after_the_records_before(precise: Any) -> None:
    def broken() -> Iterator[str]:
        yield from prompts(3)
        raise OSError("the disk is gone")

    records = fill_many(precise, broken(), SCHEMA, max_tokens=16)
    assert len([next(records) for _ in range(3)]) == 3
    with pytest.raises(OSError, match="the disk is gone"):
        next(records)
    assert len(list(choose_many(precise, prompts(3), ["a", "b"]))) == 3
