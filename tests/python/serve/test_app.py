from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from hostile import head_of
from serving import Serving
from tiny_model import write_tiny_model

QUESTION = {"type": "noul", "instructions": "Is it late?"}
ASKED = {"model": "any", "state": "The parcel has not come.", "questions": {"q": QUESTION}}
JSON = {"content-type": "application/json"}
SLOW = {**ASKED, "state": "The parcel has not come. " * 12}


def wait_until_nothing_is_under_way(url: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while "token_trie_requests_under_way 0.0" not in httpx.get(f"{url}/metrics").text:
        assert time.monotonic() < end, "a slot is held"
        time.sleep(0.02)


@pytest.fixture
def tiny_path(model_paths: dict[str, Path]) -> Path:
    return model_paths["tiny"]


def ask(url: str, body: object = ASKED, **options: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/systemone", json=body, timeout=60, **options)  # type: ignore[arg-type]


def test_there_is_health_a_list_of_models_and_counts(server: str) -> None:
    assert httpx.get(f"{server}/health").json() == {"status": "ok"}
    models = httpx.get(f"{server}/v1/models").json()
    assert models["data"][0]["id"] == models["models"][0]["name"]
    assert [httpx.get(f"{server}/v1/models/{one['id']}").json() for one in models["data"]] == models["data"]
    assert httpx.get(f"{server}/v1/models/another").status_code == 404
    ask(server)
    assert 'token_trie_requests_total{path="/v1/systemone",status="200"}' in httpx.get(f"{server}/metrics").text


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"\xff", 422),
        (b"[" * 100_000, 422),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, 422),
        (b'"\\ud800"', 422),
        (b"NaN", 422),
        (b'{"state": NaN, "questions": {}}', 422),
        (b" " * (9 << 20), 413),
        (json.dumps({**ASKED, "state": [[]] * 100_000}).encode(), 422),
        (json.dumps({**ASKED, "state": "word " * 100_000}).encode(), 422),
        (json.dumps({**ASKED, "state": json.loads("[" * 80 + "]" * 80)}).encode(), 422),
    ],
    ids=range(12),
)
def test_a_broken_body_is_refused(server: str, content: bytes, status: int) -> None:
    answer = httpx.post(f"{server}/v1/systemone", content=content, headers=JSON, timeout=60)
    assert answer.status_code == status
    assert "detail" in answer.json()
    other = httpx.post(f"{server}/v1/decisions", content=content, headers=JSON, timeout=60)
    assert other.status_code == (400 if status == 422 else status)
    assert other.json()["error"]["message"]


def test_an_unknown_path_is_an_error_in_json(server: str) -> None:
    assert httpx.post(f"{server}/v1/none").json()["error"]["type"] == "not_found_error"
    assert httpx.get(f"{server}/v1/systemone").status_code == 405


def test_names_of_control_tokens_are_text(server: str) -> None:
    def read(state: str) -> int:
        return int(ask(server, {**ASKED, "state": state}).json()["usage"]["input_tokens"])

    assert read("a <|im_end|> b") - read("a b") > 2


def test_a_key_is_asked_for(model: Path) -> None:
    with Serving(model, "--api-key", "open sesame") as serving:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic open sesame"}):
            refused = ask(serving.url, headers=headers)
            assert refused.status_code == 401
            assert refused.json()["detail"]["error_type"] == "authentication_error"
        assert ask(serving.url, headers={"authorization": "Bearer open sesame"}).status_code == 200
        assert httpx.get(f"{serving.url}/v1/models").status_code == 401
        assert httpx.get(f"{serving.url}/health").status_code == 200


@pytest.mark.parametrize(
    ("key", "sent", "others"),
    [
        (" open sesame\n", [b"open sesame", b"  open sesame"], [b"open", b"open  sesame", b"sesame"]),
        (
            "clé",
            ["clé".encode(), "clé".encode("latin-1")],
            [b"cl", b"cle", "cle\u0301".encode(), "clé".encode("cp437")],
        ),
        ("ключ", ["ключ".encode()], [b"", b"????", "ключи".encode(), "ключ".encode("cp1251")]),
    ],
    ids=["spaces", "latin", "cyrillic"],
)
def test_a_key_has_any_letters_and_spaces_around_it_do_not_count(
    model_paths: dict[str, Path], key: str, sent: list[bytes], others: list[bytes]
) -> None:
    with Serving(model_paths["tiny"], "--api-key", key) as serving:
        for each in (*sent, *others):
            answer = httpx.get(f"{serving.url}/v1/sets", headers={b"authorization": (b"Bearer " + each).strip()})
            assert answer.status_code == (200 if each in sent else 401), each


@pytest.mark.parametrize("key", ["  ", "a\nb"])
def test_a_key_that_no_client_can_send_is_refused(model_paths: dict[str, Path], key: str) -> None:
    with pytest.raises(AssertionError, match="--api-key: empty, or with characters that no client can send"):
        Serving(model_paths["tiny"], "--api-key", key).__enter__()


def test_a_port_that_is_taken_is_an_error_with_what_to_do(model_paths: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(AssertionError, match=rf"error: --port: .* 127\.0\.0\.1:{port}; use another port"):
            Serving(model_paths["tiny"], "--port", port).__enter__()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_second_interrupt_leaves_who_is_still_served_without_a_word(
    model_paths: dict[str, Path], stream: bool
) -> None:
    endless = {"type": "array", "items": {"type": "boolean"}, "minItems": 2000}
    asked = {"messages": [{"role": "user", "content": "Hi"}], "structured_outputs": {"json": endless}}

    def read(url: str) -> None:
        body = {**asked, "stream": stream, "max_tokens": 7000}
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)

    with Serving(model_paths["tiny"]) as serving, ThreadPoolExecutor(1) as clients:
        reading = clients.submit(read, serving.url)
        while "token_trie_requests_under_way 1.0" not in httpx.get(f"{serving.url}/metrics").text:
            time.sleep(0.01)
        for _ in range(2):
            os.kill(serving.pid, signal.SIGINT)
            time.sleep(0.05)
        reading.result()
    assert "finishing the requests in progress; a second interrupt cancels them" in serving.told
    assert "Traceback" not in serving.told
    assert "Error" not in serving.told


def test_an_address_of_ipv6_is_shown_as_clients_write_it(model_paths: dict[str, Path]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")
    with Serving(model_paths["tiny"], "--host", "::1") as serving:
        assert httpx.get(f"{serving.url}/health").status_code == 200


def test_too_many_at_once_are_answered_with_a_time_to_retry(model: Path) -> None:
    with Serving(model, "--max-requests", "2") as serving, ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: ask(serving.url, SLOW), range(8)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert all(answer.headers["retry-after"] == "1" for answer in refused)
        assert any(answer.status_code == 200 for answer in answers)
        assert ask(serving.url).status_code == 200


def test_what_takes_too_long_is_ended_and_no_client_repeats_it_by_itself(model: Path) -> None:
    with Serving(model, "--time-limit", "0.1") as serving:
        late = ask(serving.url, SLOW)
        assert late.status_code == 408
        assert late.headers["x-should-retry"] == "false"
    assert "POST /v1/systemone 408 in 0." in serving.told
    assert serving.told.rstrip().endswith(": timeout")


def test_what_was_read_in_vain_is_cached_for_the_next_try(model: Path) -> None:
    words = "The quick brown fox jumps over the lazy dog. " * 500
    with Serving(model, "--time-limit", "3") as serving:

        def status_and_cached(prompt: str) -> tuple[int, int]:
            body = {"prompt": prompt, "max_tokens": 1}
            told = httpx.post(f"{serving.url}/v1/completions", json=body, timeout=60)
            usage = told.json().get("usage", {"prompt_tokens_details": {"cached_tokens": 0}})
            return told.status_code, usage["prompt_tokens_details"]["cached_tokens"]

        assert status_and_cached(words)[0] == 408
        assert status_and_cached(words[:450])[1] > 32


def test_each_request_has_a_line_without_what_it_says(tiny_path: Path) -> None:
    with Serving(tiny_path) as serving:
        said = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 4}
        for more in (
            {},
            {"stream": True},
            {"secret_set": 1, "guided_choice": {"set": "secret"}},
            {"stop": {"secret": 1}},
        ):
            httpx.post(f"{serving.url}/v1/chat/completions", json={**said, **more}, timeout=60)
        ask(serving.url)
        httpx.post(f"{serving.url}/v1/secret", json={})
        httpx.post(f"{serving.url}/api/chat", json={})
    lines = [line for line in serving.told.splitlines() if line.startswith("POST")]
    asked = r"POST /v1/chat/completions {} in \d+\.\d\d s: {}"
    usage = r"\d+ tokens read, \d+ cached, \d+ answered"
    for line, pattern in zip(
        lines,
        [
            asked.format(200, usage),
            asked.format(200, usage),
            asked.format(404, "not_found at guided_choice"),
            asked.format(400, "invalid_request at stop"),
            rf"POST /v1/systemone 200 in \d+\.\d\d s: {usage}",
            "POST another route 404: there is no such route; use .*",
            "POST /api/chat 404: there is no such route; use /v1/chat/completions",
        ],
        strict=True,
    ):
        assert re.fullmatch(pattern, line), line
    assert "secret" not in serving.told


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/v1/responses", "/v1/chat/completions"),
        ("/v1/messages", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/api/generate", "/v1/completions"),
        ("/completion", "/v1/completions"),
        ("/api/tags", "/v1/models"),
        ("/v1/embeddings", "makes no embeddings"),
        ("/v2/systemone", "/v1/systemone, /v1/decisions"),
    ],
)
def test_the_error_of_a_route_that_is_not_there_names_the_one_to_use(url: str, path: str, instead: str) -> None:
    told = httpx.post(f"{url}{path}", json={})
    assert told.status_code == 404
    assert instead in told.json()["error"]["message"]


def test_the_models_tell_how_long_a_prompt_may_be(tiny_path: Path) -> None:
    for options, n in (([], 448), (["--reproducible"], 512)):
        with Serving(tiny_path, "--n-ctx", "512", *options) as serving:
            told = httpx.get(f"{serving.url}/v1/models").json()["data"][0]
            assert told["meta"]["n_ctx"] == told["max_model_len"] == n
            for tokens, status in ((n - 1, 200), (n, 400)):
                body = {"prompt": [5] * tokens, "max_tokens": 1}
                assert httpx.post(f"{serving.url}/v1/completions", json=body).status_code == status


def test_who_leaves_takes_the_work_along(model: Path) -> None:
    with Serving(model, "--max-requests", "4") as serving:
        body = json.dumps(SLOW).encode()
        for _ in range(20):
            with serving.connected(head_of("/v1/systemone", len(body)) + body):
                time.sleep(0.05)
        wait_until_nothing_is_under_way(serving.url)
        assert ask(serving.url).status_code == 200


def test_who_leaves_in_the_middle_of_a_body_is_no_failure(model: Path) -> None:
    with Serving(model) as serving:
        with serving.connected(head_of("/v1/systemone", 100) + b"{"):
            time.sleep(0.2)
        assert ask(serving.url).status_code == 200
        counted = httpx.get(f"{serving.url}/metrics").text
    assert 'status="499"' in counted
    assert "Traceback" not in serving.told


@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/completions"])
def test_half_a_body_holds_its_slot_no_longer_than_the_limit(tiny_path: Path, path: str) -> None:
    with Serving(tiny_path, "--time-limit", "1", "--max-requests", "8") as serving:
        halves = [serving.connected(head_of(path, 100) + b"{") for _ in range(8)]
        time.sleep(0.3)
        assert ask(serving.url).status_code == 429
        wait_until_nothing_is_under_way(serving.url, 1.7)
        assert halves[0].recv(1000).startswith(b"HTTP/1.1 408 ")
        assert ask(serving.url).status_code == 200
        started = time.monotonic()
    assert time.monotonic() - started < 3
    for half in halves:
        half.close()


def test_who_reads_nothing_holds_no_slot_and_no_shutdown(tiny_path: Path) -> None:
    levels = [{"label": letter * 3_000_000, "description": letter} for letter in "ab"]  # which the answer repeats
    large = {"model": "any", "input": "a", "questions": [{"type": "score", "instructions": "b", "levels": levels}]}
    stream = {"prompt": ["a"] * 8, "max_tokens": 900, "stream": True, "logprobs": 20}
    with Serving(tiny_path, "--time-limit", "2", "--max-requests", "8") as serving:

        def send(path: str, body: object) -> socket.socket:
            data = json.dumps(body).encode()
            return serving.connected(head_of(path, len(data)) + data)

        deaf = [send("/v1/decisions", large) for _ in range(4)]
        deaf += [send("/v1/completions", stream) for _ in range(4)]
        time.sleep(0.5)
        assert httpx.get(f"{serving.url}/health").status_code == 200
        wait_until_nothing_is_under_way(serving.url, 2.6)
        deaf.append(send("/v1/decisions", large))
        time.sleep(0.2)
        started = time.monotonic()
    assert time.monotonic() - started < 4
    for each in deaf:
        each.close()
    assert "Traceback" not in serving.told


def test_a_head_that_never_ends_holds_no_connection(tiny_path: Path) -> None:
    with Serving(tiny_path, "--time-limit", "0.5") as serving:
        silent = [serving.connected(b""), serving.connected(b"GET /health HTTP/1.1\r\nhost:")]
        for each in silent:
            each.settimeout(10)
            with each, contextlib.suppress(ConnectionResetError):
                assert each.recv(1000) == b""


def test_a_signal_lets_end_what_is_under_way(model: Path) -> None:
    async def talk(serving: Serving) -> int:
        async with httpx.AsyncClient(timeout=60) as client:
            asked = asyncio.create_task(client.post(f"{serving.url}/v1/systemone", json=SLOW))
            while "under_way 1.0" not in (await client.get(f"{serving.url}/metrics")).text:
                await asyncio.sleep(0.01)
            os.kill(serving.pid, signal.SIGTERM)
            return (await asked).status_code

    with Serving(model) as serving:
        assert asyncio.run(talk(serving)) == 200


def test_a_model_that_cannot_be_loaded_ends_the_command(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with pytest.raises(AssertionError, match="--model"), Serving(broken):
        pass


def test_no_answer_waits_for_the_kernel_to_send_it(server: str) -> None:
    with httpx.Client(base_url=server) as client:
        took = []
        for _ in range(20):
            started = time.perf_counter()
            client.get("/health")
            took.append(time.perf_counter() - started)
    assert min(took[1:]) < 0.03, "TCP holds back the second part of an answer for 40 ms, unless it is told not to"


def test_a_connection_that_idles_for_as_long_as_clients_keep_one_is_still_answered(server: str) -> None:
    forever = httpx.Limits(keepalive_expiry=None)
    with httpx.Client(base_url=server, limits=forever, transport=httpx.HTTPTransport(limits=forever)) as client:
        used = [client.get("/health").extensions["network_stream"].get_extra_info("client_addr")]
        time.sleep(6)
        used.append(client.get("/health").extensions["network_stream"].get_extra_info("client_addr"))
    assert used[0] == used[1]


def test_a_text_whose_logits_are_not_finite_is_refused_and_no_other_answer_changes(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "broken.gguf", broken=["▁Pizza"])
    with Serving(tmp_path / "broken.gguf") as serving, ThreadPoolExecutor(16) as clients:

        def write(text: str) -> httpx.Response:
            body = {"model": "any", "prompt": text, "max_tokens": 20, "temperature": 0}
            return httpx.post(f"{serving.url}/v1/completions", json=body, timeout=60)

        states = [f"case {i}" for i in range(12)]
        alone = [ask(serving.url, {**ASKED, "state": state}).json()["answers"]["q"]["noul"] for state in states]
        texts = [clients.submit(write, f"text {i} of Paris") for i in range(6)]
        asked = [clients.submit(ask, serving.url, {**ASKED, "state": state}) for state in [*states, "a Pizza"]]
        broken = [asked.pop(), clients.submit(write, "a Pizza")]
        assert [one.result().json()["answers"]["q"]["noul"] for one in asked] == pytest.approx(alone, abs=0.01)
        assert [one.result().status_code for one in texts] == [200] * 6
        for one in broken:
            assert one.result().status_code >= 400
            assert "no finite logits" in one.result().text
