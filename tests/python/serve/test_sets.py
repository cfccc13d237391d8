from __future__ import annotations

import ast
import base64
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from serving import Serving
from token_trie import Catalogue, TokenTrie

KILLS = int(os.environ.get("TOKEN_TRIE_KILLS", "20"))
CITIES = {"choices": ["Paris", "London"]}


def choose(url: str, name: str, **left: Any) -> Any:
    body = {
        "messages": [{"role": "user", "content": "Where is the Eiffel Tower?"}],
        "structured_outputs": {"choice": {"set": name, **left}},
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    return answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else answer.json()


def test_a_set_is_registered_named_listed_replaced_and_forgotten(server: str) -> None:
    url = f"{server}/v1/sets/cities.of-1_Europe"
    assert httpx.put(url, json=CITIES).status_code == 201
    assert httpx.get(url).json() == CITIES
    assert {"object": "set", "name": "cities.of-1_Europe", "choices": 2, "bytes": 30} in httpx.get(
        f"{server}/v1/sets"
    ).json()["data"]
    assert choose(server, "cities.of-1_Europe") in CITIES["choices"]
    replaced = httpx.put(url, json={"choices": {"Rome": "IT"}})
    assert replaced.status_code == 200
    assert choose(server, "cities.of-1_Europe") == "IT"
    assert httpx.delete(url).status_code == 204
    for gone in (httpx.get(url), httpx.delete(url)):
        assert gone.status_code == 404
        assert gone.json()["error"]["type"] == "not_found_error"
    assert choose(server, "cities.of-1_Europe")["error"]["param"] == "structured_outputs.choice.set"


def test_a_payload_is_a_set(server: str, smollm2: Any) -> None:
    leaves = [{"name": name, "tokens": smollm2.tokenize(name.encode(), add_bos=False)} for name in CITIES["choices"]]
    payload = {"modelId": "smollm2", "descriptors": [{"path": "cities", "leaves": leaves}]}
    assert httpx.put(f"{server}/v1/sets/tokens", json=payload).status_code == 201
    assert choose(server, "tokens") in CITIES["choices"]
    httpx.delete(f"{server}/v1/sets/tokens")


def bits_of(*indices: int, n: int) -> str:
    bits = np.zeros(n, np.bool_)
    bits[list(indices)] = True
    return base64.b64encode(np.packbits(bits, bitorder="little")).decode()


def test_a_request_leaves_some_members_of_a_set(server: str, smollm2: Any) -> None:
    names = ["Paris", "London", "Rome", *(f"Town {i}" for i in range(7))]
    leaves = [{"name": name, "tokens": smollm2.tokenize(name.encode(), add_bos=False)} for name in names]
    for given in ({"choices": names}, {"descriptors": [{"path": "towns", "leaves": leaves}]}):
        httpx.put(f"{server}/v1/sets/towns", json=given)
        assert choose(server, "towns", mask=bits_of(2, n=10)) == "Rome"
        assert choose(server, "towns", indices=[9]) == "Town 6"
        assert choose(server, "towns", mask=bits_of(1, 5, n=10)) in ("London", "Town 2")
        for wrong, message in (
            ({"mask": bits_of(n=10)}, "no member of the set is left"),
            ({"mask": bits_of(2, n=8)}, "1 bytes, where 10 members take 2"),
            ({"mask": bits_of(2, 12, n=16)}, "bits behind the last of 10 members"),
            ({"mask": "%"}, "no base64"),
            ({"mask": 7}, "int where base64"),
            ({"indices": [10]}, r"indices[0]: no index of 10"),
            ({"indices": [True]}, r"indices[0]: no index of 10"),
            ({"indices": "1"}, "str where a list"),
            ({"indices": []}, "no member of the set is left"),
        ):
            refused = choose(server, "towns", **wrong)["error"]
            assert message in refused["message"], refused
            assert refused["param"] == "structured_outputs.choice"
        httpx.delete(f"{server}/v1/sets/towns")


@pytest.mark.parametrize("more", [{"name": "A2", "tokens": [10]}, {"name": "A", "tokens": [10]}, {"tokens": []}])
def test_a_set_whose_leaves_have_become_one_is_not_filtered_by_positions(url: str, more: dict[str, Any]) -> None:
    leaves = [{"name": name, "tokens": [token]} for name, token in (("A", 10), ("B", 11), ("C", 12))]
    for given, refused in (([leaves], False), ([leaves[:1], [{"name": "A2", **more}], leaves[1:]], True)):
        payload = {"descriptors": [{"path": str(i), "leaves": each} for i, each in enumerate(given)]}
        assert httpx.put(f"{url}/v1/sets/letters", json=payload).is_success
        assert choose(url, "letters") in ("A", "B", "C")
        for left in ({"indices": [2]}, {"mask": bits_of(2, n=3)}, {"mask": bits_of(2, n=4)}):
            found = choose(url, "letters", **left)
            if refused:
                assert f"{next(iter(left))}: this set was registered with leaves of equal" in found["error"]["message"]
                assert found["error"]["param"] == "structured_outputs.choice"
            else:
                assert found == "C"
    httpx.delete(f"{url}/v1/sets/letters")


def test_a_catalogue_in_the_folder_is_a_set_that_its_owner_changes(tmp_path: Path, model_paths: Any, llm: Any) -> None:
    file = tmp_path / "sets" / "towns.trie"
    file.parent.mkdir()
    TokenTrie.from_choices(llm, ["Paris", "London"]).save(file)
    (file.parent / "broken.trie").write_bytes(b"tokentri")
    model = llm.model_path
    with Serving(Path(model), "--sets", str(file.parent)) as serving, Catalogue(file) as catalogue:
        assert choose(serving.url, "towns") in ("Paris", "London")
        catalogue.add(TokenTrie.from_choices(llm, ["Rome"]))
        catalogue.remove(["Paris", "London"])
        assert choose(serving.url, "towns") in ("Paris", "London"), "until it is compacted"
        catalogue.compact()
        assert choose(serving.url, "towns") == "Rome"
        url = f"{serving.url}/v1/sets/towns"
        assert httpx.get(url).json()["choices"] == 1
        assert [each["name"] for each in httpx.get(f"{serving.url}/v1/sets").json()["data"]] == ["towns"]
        for change in (httpx.put(url, json=CITIES), httpx.delete(url)):
            assert change.status_code == 400
        file.unlink()
        assert choose(serving.url, "towns") == "Rome"


@pytest.mark.parametrize(
    "name", ["..", ".hidden", "%2e%2e", "a%2Fb", "..%2Fx", "a%00b", "-a", "a" * 101, "a b", "ä", "con%5Cx"]
)
def test_no_name_leads_elsewhere(server: str, name: str) -> None:
    assert httpx.put(f"{server}/v1/sets/{name}", json=CITIES).status_code in (400, 404, 405)


@pytest.mark.parametrize(
    "given",
    [
        {"choices": []},
        {"choices": [1]},
        {"choices": ["a", ""]},
        {"choices": "abc"},
        [],
        "x",
        7,
        None,
        {"descriptors": []},
        {"descriptors": [{"path": "x", "leaves": [{"name": "a", "tokens": [10_000_000]}]}]},
        {"choices": ["a\0b"]},
    ],
    ids=range(11),
)
def test_what_is_no_set_changes_nothing(server: str, given: Any) -> None:
    url = f"{server}/v1/sets/before"
    httpx.put(url, json=CITIES)
    refused = httpx.put(url, content=json.dumps(given), headers={"content-type": "application/json"})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["message"]
    assert httpx.get(url).json() == CITIES
    httpx.delete(url)


def test_sets_are_there_after_a_restart_and_broken_ones_are_left_out(tmp_path: Path, model_paths: Any) -> None:
    folder = tmp_path / "sets"
    options = model_paths["tiny"], "--sets", str(folder)
    with Serving(*options) as serving, ThreadPoolExecutor(8) as clients:
        put = lambda i: httpx.put(f"{serving.url}/v1/sets/set-{i}", json={"choices": [f"{i}", "b"]})  # noqa: E731
        assert all(answer.status_code == 201 for answer in clients.map(put, range(20)))
        httpx.delete(f"{serving.url}/v1/sets/set-3")
        os.kill(serving.pid, signal.SIGKILL)
    (folder / "set-5.json").write_text('{"choices": ["5"')
    (folder / "set-6.json").write_text('{"choices": []}')
    (folder / "set-7.json.0123abcd.tmp").write_text("{")
    (folder / "other.txt").write_text("not ours")
    with Serving(*options) as serving:
        names = [each["name"] for each in httpx.get(f"{serving.url}/v1/sets").json()["data"]]
        assert names == sorted(f"set-{i}" for i in range(20) if i not in (3, 5, 6))
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".json") == ["other.txt"]


def test_what_the_server_did_not_write_stays_as_it_was(tmp_path: Path, model_paths: Any) -> None:
    own = ("thesis.docx.tmp", "x.tmp", "a.trie.0123abcd.tmp", "a.json.tmp", "a.json.0123abcd.tmp.bak", "a.json.xyz.tmp")
    for name in own:
        (tmp_path / name).write_text(name)
    for name in ("folder.tmp", "folder.json.0123abcd.tmp", "folder.json"):
        (tmp_path / name).mkdir()
    (tmp_path / "link.json.0123abcd.tmp").symlink_to(tmp_path / "x.tmp")
    (tmp_path / "package.json").write_text('"of somebody"')
    before = {path.name for path in tmp_path.iterdir()}
    (tmp_path / "ours.json.0123abcd.tmp").write_text("{")
    with Serving(model_paths["tiny"], "--sets", str(tmp_path)) as serving:
        for name in ("package", "folder"):
            refused = httpx.put(f"{serving.url}/v1/sets/{name}", json=CITIES)
            assert refused.status_code == 400
            assert "move it away" in refused.json()["error"]["message"]
        assert httpx.delete(f"{serving.url}/v1/sets/package").status_code == 404
        assert httpx.put(f"{serving.url}/v1/sets/a", json=CITIES).status_code == 201
    assert {path.name for path in tmp_path.iterdir()} == before | {"a.json"}
    assert [(tmp_path / name).read_text() for name in own] == list(own)
    assert (tmp_path / "package.json").read_text() == '"of somebody"'


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills what it has forked")
def test_a_kill_leaves_the_old_set_or_the_new_one(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("killed.py")), str(tmp_path), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 2 * KILLS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ast.literal_eval(done.stdout)["new"] > 0
