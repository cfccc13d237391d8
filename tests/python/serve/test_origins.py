"""Pages of other origins, as browsers let them ask, and what clients say of themselves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import Tab
from serving import Serving

ASKED = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
PAGE = b"<!doctype html><title>Other</title><iframe name=frame></iframe>"
ASK_IN_EVERY_WAY = """async ([url, bodies]) => {
    const read = [];
    const ask = async (path, options) => {
        try {
            const answer = await fetch(url + path, options);
            if (answer.type != "opaque" && answer.status != 403) read.push([path, answer.status, await answer.text()]);
        } catch {}
    };
    const types = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json", ""];
    const paths = ["/", "/health", "/metrics", "/v1/models", "/v1/sets"];
    for (const mode of ["cors", "no-cors"]) {
        for (const path of paths) await ask(path, {mode});
        for (const [path, body] of Object.entries(bodies)) {
            for (const type of types) {
                await ask(path, {method: "POST", mode, body: new Blob([body], {type})});
                navigator.sendBeacon(url + path, new Blob([body], {type}));
            }
        }
    }
    for (const [path, body] of Object.entries(bodies)) {
        const form = document.createElement("form");
        const cut = body.length / 2 | 0;
        Object.assign(form, {method: "POST", action: url + path, enctype: "text/plain", target: "frame"});
        const field = document.createElement("input");
        form.append(Object.assign(field, {name: body.slice(0, cut), value: body.slice(cut)}));
        document.body.append(form);
        form.submit();
        await new Promise(done => document.querySelector("iframe").onload = done);
    }
    for (const tag of ["img", "script"]) {
        const element = document.createElement(tag);
        await new Promise(done => {
            element.onload = () => { read.push([tag, "loaded"]); done(); };
            element.onerror = done;
            element.src = url + "/v1/sets";
            document.body.append(element);
        });
    }
    return read;
}"""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """Port of the server of another site."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *told: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield http.server_port
        http.shutdown()


@pytest.mark.parametrize("site", ["evil.example", "localhost", "127.0.0.1"])
def test_a_page_of_another_origin_reads_and_asks_nothing(
    browser: Tab, elsewhere: int, model_paths: dict[str, Path], site: str
) -> None:
    bodies = {path: json.dumps(body) for path, body in (("/v1/systemone", ASKED), ("/v1/chat/completions", CHAT))}
    with Serving(model_paths["tiny"]) as serving:
        for url in (
            serving.url,
            serving.url.replace("127.0.0.1", "localhost"),
            serving.url.replace("127.0.0.1", "x.example"),
        ):
            browser.open(f"http://{site}:{elsewhere}/")
            assert browser.run(f"({ASK_IN_EVERY_WAY})({json.dumps([url, bodies])})") == []
        counted = httpx.get(f"{serving.url}/metrics").text
        assert "systemone" not in counted
        assert "completions" not in counted


def test_a_page_of_an_allowed_host_asks_from_any_port(
    browser: Tab, elsewhere: int, model_paths: dict[str, Path]
) -> None:
    options = {"method": "POST", "headers": {"content-type": "application/json", "authorization": "Bearer k"}}
    for key in ([], ["--api-key", "k"]):
        with Serving(model_paths["tiny"], "--allow-host", "localhost", *key) as serving:
            for body, field in ((ASKED, "answers"), ({}, "detail")):
                browser.open(f"http://localhost:{elsewhere}/")
                given = json.dumps([f"{serving.url}/v1/systemone", options | {"body": json.dumps(body)}])
                assert field in browser.run(f"fetch(...{given}).then(a => a.json())")
            browser.open(f"http://evil.example:{elsewhere}/")
            assert browser.run(f"fetch(...{given}).then(a => a.status, e => e.name)") == "TypeError"


@pytest.mark.parametrize("name", ["localhost:3000", "http://localhost", "localhost/", ""])
def test_an_allowed_host_is_a_name_alone(model_paths: dict[str, Path], name: str) -> None:
    with pytest.raises(AssertionError, match=r"--allow-host: '.*' is not a name alone"):
        Serving(model_paths["tiny"], "--allow-host", name).__enter__()


def test_a_name_that_was_made_to_lead_here_reads_and_asks_nothing(browser: Tab, model_paths: dict[str, Path]) -> None:
    with Serving(model_paths["tiny"]) as serving:
        browser.open(serving.url.replace("127.0.0.1", "rebound.example"))
        assert "--allow-host" in browser.run("document.body.innerText")
        for method, path, body in [
            ("GET", "/v1/models", None),
            ("GET", "/v1/sets", None),
            ("POST", "/v1/systemone", ASKED),
        ]:
            options = {"method": method, "headers": {"content-type": "application/json"}}
            options |= {} if body is None else {"body": json.dumps(body)}
            assert browser.run(f"fetch({json.dumps(path)}, {json.dumps(options)}).then(a => a.status)") == 403
        assert "systemone" not in httpx.get(f"{serving.url}/metrics").text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "192.168.0.7"}, 200),
        ({"host": "gpu-box:8000"}, 200),
        ({"host": "host.docker.internal"}, 200),
        ({"host": "Ai.Example.org:8000"}, 200),
        ({"host": "example.org"}, 403),
        ({"host": "evil.ai.example.org"}, 403),
        ({"host": "127.0.0.1.example.org"}, 403),
        ({"host": "["}, 403),
        ({"host": "localhost", "origin": "http://localhost"}, 200),
        ({"host": "localhost", "origin": "http://localhost:3000"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
        ({"host": "localhost", "origin": "http://["}, 403),
        ({"host": "localhost", "origin": "https://ai.example.org"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
    ],
    ids=range(20),
)
def test_hosts_and_origins(allowing: str, headers: dict[str, str], status: int) -> None:
    assert httpx.get(f"{allowing}/v1/models", headers=headers).status_code == status
    answer = httpx.post(f"{allowing}/v1/systemone", json=ASKED, headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["type"] == "forbidden_error"


@pytest.fixture(scope="module")
def allowing(model_paths: dict[str, Path]) -> Iterator[str]:
    with Serving(model_paths["tiny"], "--allow-host", "ai.example.org") as serving:
        yield serving.url


def test_a_link_leads_to_the_page(url: str) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert httpx.get(f"{url}/", headers=headers).status_code == 200
    assert httpx.get(f"{url}/", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}).status_code == 403


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
def test_what_is_not_said_to_be_json_is_refused(url: str, kind: str) -> None:
    for path in ("/v1/systemone", "/v1/completions"):
        refused = httpx.post(url + path, content=json.dumps(ASKED), headers={"content-type": kind})
        assert refused.status_code == 415
        assert "application/json" in refused.text


def test_json_with_a_charset_is_json(url: str) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert httpx.post(f"{url}/v1/systemone", content=json.dumps(ASKED), headers=headers).status_code == 200


def test_with_a_key_any_name_is_the_servers(model_paths: dict[str, Path]) -> None:
    with Serving(model_paths["tiny"], "--api-key", "k") as serving:
        headers = {"host": "example.org", "authorization": "Bearer k"}
        assert httpx.get(f"{serving.url}/v1/models", headers=headers).status_code == 200
        assert (
            httpx.get(f"{serving.url}/v1/models", headers={**headers, "origin": "http://evil.example"}).status_code
            == 403
        )
