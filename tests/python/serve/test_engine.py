"""The batch of all clients: who waits for whom, and what is left of requests that were cancelled."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import llama_cpp
import pytest
from serving import Serving
from token_trie import TokenTrie
from token_trie.decisions.options import RecordOptions
from token_trie.llama.batch import Batch
from token_trie.llama.query import Plan, Query
from token_trie.records.fill import read_template, record_request
from token_trie.serve.completions import chat_completion, completion
from token_trie.serve.engine import CHUNK_ROWS, Engine
from token_trie.serve.limits import Budget
from token_trie.serve.service import Calibrations, ServerConfig, Service
from token_trie.serve.sets import Sets
from token_trie.serve.shapes import ChatRequest, CompletionRequest

N_REQUESTS = int(os.environ.get("MIXED_REQUESTS", "60"))
SEED = int(os.environ.get("MIXED_SEED", "0"))
N_CTX = 8192
ENDLESS = 'root ::= "a" root'
WORDS = [" Paris", " Rome", " Oslo", " Bern"]


@pytest.fixture(scope="module")
def batch(model_paths: dict[str, Path]) -> Iterator[Batch]:
    llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=N_CTX, verbose=False)
    made = Batch(llm, 0, N_CTX, CHUNK_ROWS)
    yield made
    made.close()
    llm.close()


class Passes:
    """Counts the passes of a batch: a text under way gets one token in each."""

    def __init__(self, batch: Batch, n_vocab: int) -> None:
        self.batch, self._n_vocab = batch, n_vocab
        self._ticket = batch.submit([1, 2, 3], Query("text", max_tokens=400, gbnf=ENDLESS))
        self.run(1)

    @property
    def n(self) -> int:
        return len(self.batch.text(self._ticket, 0))

    def run(self, n: int) -> None:
        """Run at least so many passes."""
        until = self.n + n
        while self.n < until:
            assert self.batch.next(1) is None

    def until_answered(self, ticket: int) -> int:
        """Return the number of passes until a ticket has its answer."""
        begun = self.n
        while (answer := self.batch.next(1)) is None:
            pass
        assert answer.ticket == ticket
        assert answer.error is None
        return self.n - begun

    def close(self) -> None:
        self.batch.withdraw(self._ticket)
        while self.batch.next(1) is not None:
            pass


def test_a_short_question_beside_eight_heavy_clients_waits_for_few_passes(batch: Batch, tiny: Any) -> None:
    words = TokenTrie.from_choices(tiny, WORDS)
    rng = random.Random(1)

    def question() -> int:
        return batch.submit(tiny.tokenize(b"Which city? ", add_bos=True), Query("scores", words))

    passes = Passes(batch, tiny.n_vocab())
    try:
        alone = passes.until_answered(question())
        heavy = [
            batch.submit([rng.randrange(200, 390) for _ in range(n)], Query("text", max_tokens=200, gbnf=ENDLESS))
            for n in [1500] * 4 + [20, 30, 40, 50]
        ]
        beside = []
        for _ in range(12):
            passes.run(3)
            beside.append(passes.until_answered(question()))
        assert max(beside) <= alone + 1, (alone, beside)
        for ticket in heavy:
            batch.withdraw(ticket)
    finally:
        passes.close()


RECORD = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "n": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["city", "n", "note"],
}
TOOL = {"type": "function", "function": {"name": "note", "parameters": RECORD}}
QUESTION = {"type": "choice", "instructions": "Where?", "criteria": {"a": "a city", "b": "a village"}}


def test_short_plans_find_a_worker_while_large_ones_are_read_and_planned_one_after_the_other(
    model_paths: dict[str, Path],
) -> None:
    go_on, begun = threading.Event(), list[int]()

    def read_large() -> None:
        begun.append(1)
        go_on.wait()

    def plan(_: Any, read: Callable[[], Any]) -> Plan[Any]:
        yield from ()
        return read()

    async def all_at_once() -> None:
        engine = Engine(llama_cpp.Llama(str(model_paths["tiny"]), verbose=False))
        try:
            large = [engine.read(read_large, plan, is_large=True) for _ in range(8)]
            waiting = [asyncio.ensure_future(each) for each in (*large, engine.on_worker(read_large, is_large=True))]
            short = await asyncio.wait_for(engine.read(lambda: "answered", plan), 60)
            assert short.result == "answered"
            assert len(begun) <= 1
            go_on.set()
            await asyncio.gather(*waiting)
            assert len(begun) == 9
        finally:
            go_on.set()
            await asyncio.to_thread(engine.close)

    asyncio.run(all_at_once())


def test_short_chats_and_completions_do_not_wait_until_large_schemas_are_read(model_paths: dict[str, Path]) -> None:
    go_on = threading.Event()
    large = {"enum": [f"value {i}" for i in range(2000)]}
    chat = {"messages": [{"role": "user", "content": "Hi. " * 10}], "max_tokens": 4}
    by_schema = {"type": "json_schema", "json_schema": {"schema": {"enum": ["a", "b"]}}}

    async def all_at_once() -> None:
        llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=2048, verbose=False)
        service = Service(ServerConfig(load=lambda: llm, name="tiny"), Engine(llm), Sets(), Calibrations())

        def asked(more: dict[str, Any]) -> Any:
            return chat_completion(service, ChatRequest.model_validate(chat | more), Budget(1 << 30).claim())

        try:
            reading = asyncio.ensure_future(service.engine.on_worker(go_on.wait, is_large=True))
            waiting = asyncio.ensure_future(asked({"format": large}))
            for more in ({}, {"tools": [TOOL]}, {"response_format": by_schema}, {"guided_choice": ["a", "b"]}):
                assert await asyncio.wait_for(asked(more), 60)
            body = CompletionRequest(prompt="Hi", max_tokens=4)
            assert await asyncio.wait_for(completion(service, body, Budget(1 << 30).claim()), 60)
            assert not waiting.done()
            go_on.set()
            assert await reading
            assert await waiting
        finally:
            go_on.set()
            await asyncio.to_thread(service.engine.close)

    asyncio.run(all_at_once())


def mixed(rng: random.Random, i: int) -> tuple[str, dict[str, Any]]:
    """Return path and body of a request of any kind."""
    text, stream = f"Case {i} " * rng.choice([1, 1, 20]), rng.random() < 0.5
    of_prompt: list[dict[str, Any]] = [
        {"structured_outputs": {"json": RECORD}},
        {"guided_choice": ["Paris", "Rome", "Oslo"]},
        {},
    ]
    chat = {"messages": [{"role": "user", "content": text}], "stream": stream, "max_tokens": 40}
    return rng.choice(
        [
            *(("/v1/completions", {"prompt": text, "max_tokens": 40, "stream": stream, **one}) for one in of_prompt),
            ("/v1/chat/completions", {**chat, "tools": [TOOL], "tool_choice": "required"}),
            ("/v1/chat/completions", {**chat, "tools": [TOOL]}),
            ("/v1/systemone", {"state": text, "questions": {"q": QUESTION}}),
        ]
    )


def send_and_leave(serving: Serving, i: int) -> None:
    """Send a request, or half of it, and close the connection at some time; one of three stays for the answer."""
    rng = random.Random(f"{SEED} {i}")
    path, body = mixed(rng, i)
    data = json.dumps(body).encode()
    if i % 3 == 0:
        reply = httpx.post(serving.url + path, content=data, headers={"content-type": "application/json"}, timeout=60)
        assert reply.status_code == 200, (body, reply.text)
        assert "error" not in reply.text, (body, reply.text)
        return
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    n_sent = rng.choice([len(data) // 2, len(data), len(data), len(data)])
    with serving.connected(head.encode() + data[:n_sent]) as connection:
        time.sleep(rng.choice([0, 0.002, 0.01, 0.03, 0.1]))
        if rng.random() < 0.5 and n_sent == len(data):
            connection.recv(200)


def test_requests_whose_clients_leave_hold_no_slot_and_no_cell(model_paths: dict[str, Path]) -> None:
    with Serving(model_paths["tiny"], "--n-ctx", "2048", "--time-limit", "30") as serving:
        with ThreadPoolExecutor(16) as clients:
            list(clients.map(lambda i: send_and_leave(serving, i), range(N_REQUESTS)))
        until = time.monotonic() + 5
        while "token_trie_requests_under_way 0.0" not in httpx.get(f"{serving.url}/metrics", timeout=60).text:
            assert time.monotonic() < until, "a slot is held"
            time.sleep(0.02)
        whole = {"prompt": [200] * 1750, "max_tokens": 40, "temperature": 0}
        reply = httpx.post(f"{serving.url}/v1/completions", json=whole, timeout=60).json()
        assert reply["usage"]["completion_tokens"] == 40, "all cells are free again"
    assert "Traceback" not in serving.told


def test_records_and_calls_beside_others_are_those_of_each_alone(url: str) -> None:
    def ask(i: int) -> Any:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": f"Case {i} of {i % 3}"}], "max_tokens": 12}
        if i % 2:
            body |= {"tools": [TOOL], "tool_choice": "required"}
        else:
            body |= {"response_format": {"type": "json_schema", "json_schema": {"schema": RECORD}}}
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
        message = reply["choices"][0]["message"]
        return message["tool_calls"][0]["function"] if i % 2 else message["content"]

    alone = [ask(i) for i in range(10)]
    with ThreadPoolExecutor(10) as clients:
        assert list(clients.map(ask, range(10))) == alone


def test_a_record_begins_with_the_cells_of_the_one_before(url: str) -> None:
    def n_cached(text: str) -> int:
        task = "Fill in the form for the request of a user. " * 4
        messages = [{"role": "system", "content": task}, {"role": "user", "content": text}]
        schema = {"type": "json_schema", "json_schema": {"schema": RECORD}}
        body = {"messages": messages, "max_tokens": 12, "response_format": schema}
        usage = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    n_cached("To Paris")
    assert n_cached("From Rome") > 40


def test_few_rows_after_a_long_prompt_have_the_same_scores_with_flash_attention(
    model_paths: dict[str, Path], tiny: Any
) -> None:
    words, scores = TokenTrie.from_choices(tiny, WORDS), []
    for attention in (llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED):
        llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=2048, verbose=False)
        llm.context_params.flash_attn_type = attention
        batch = Batch(llm, 0, 2048, CHUNK_ROWS)
        for n in (440, 442):  # the second evaluates two tokens, and the set
            ticket = batch.submit([200 + i % 150 for i in range(n)], Query("scores", words))
            answer = batch.next(-1)
            assert answer.ticket == ticket
        scores.append(answer.logprobs.tolist())
        batch.close()
        llm.close()
    assert scores[0] == pytest.approx(scores[1], abs=0.02)


TICKETS = ["I was charged twice.", "The app crashes when I open it, and the invoice is wrong, too."]
CRITERIA = {"billing": "Payments and charges", "technical": "Bugs and outages", "other": None}
TEAM = {"type": "choice", "instructions": "Which team?", "criteria": CRITERIA}
TEAM_SCHEMA = {"type": "object", "properties": {"team": {"enum": list(CRITERIA)}, "why": {"type": "string"}}}
VARYING = {"id", "created", "usage"}


def requests() -> list[tuple[str, dict[str, Any]]]:
    short, long = TICKETS
    messages = [{"role": "user", "content": short}]
    return [
        ("systemone", {"state": long, "questions": {"a": TEAM, "b": {"type": "noul"}}}),
        ("systemone", {"state": short, "questions": {"a": TEAM}, "x_form": "listed", "x_orders": 2}),
        ("chat/completions", {"messages": messages, "guided_choice": list(CRITERIA)}),
        ("chat/completions", {"messages": messages, "structured_outputs": {"json": TEAM_SCHEMA}, "max_tokens": 12}),
        ("completions", {"prompt": long, "max_tokens": 12, "temperature": 0, "logprobs": 3}),
        ("completions", {"prompt": [short, long], "max_tokens": 12, "seed": 3}),
        ("completions", {"prompt": long, "max_tokens": 12, "seed": 3}),
    ]


def ask(url: str, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{url}/v1/{path}", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return {name: value for name, value in answer.json().items() if name not in VARYING}


def test_answers_are_the_same_whatever_else_is_asked(model: Path) -> None:
    given = requests()
    with Serving(model, "--reproducible") as serving:
        alone = [ask(serving.url, *one) for one in given]
    order = list(range(len(given)))
    random.Random(0).shuffle(order)
    with Serving(model, "--reproducible") as serving, ThreadPoolExecutor(6) as clients:
        found = dict(zip(order, clients.map(lambda i: ask(serving.url, *given[i]), order), strict=True))
        for i in order:
            assert found[i] == alone[i], given[i]


def test_a_record_that_is_answered_alone_is_streamed_once(model: Path) -> None:
    async def streamed() -> tuple[str, str]:
        parts: list[str] = []
        schema = {"type": "array", "items": {"enum": ["u", "v"]}, "minItems": 1, "maxItems": 2}
        request = record_request(read_template(schema), RecordOptions(on_text=parts.append))
        engine = Engine(llama_cpp.Llama(str(model), n_ctx=256, verbose=False), reproducible=True)
        outcome = await engine.read("Once", request.plan)
        engine.close()
        return outcome.result.text, "".join(parts)

    text, parts = asyncio.run(streamed())
    assert parts == text
