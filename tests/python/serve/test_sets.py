from __future__ import annotations

import ast
import base64
import itertools
import json
import operator
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from serving import Serving
from token_trie import Catalogue, Choice, TokenTrie, decide
from token_trie.questions.searched import MAX_WHOLE, N_FOUND

KILLS = int(os.environ.get("TOKEN_TRIE_KILLS", "20"))
MEMBERS = int(os.environ.get("MEMBERS", "1000"))
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
            ({"mask": bits_of(2, 12, n=16)}, "bits after the last of 10 members"),
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


@pytest.mark.parametrize("left", [{"index": [0]}, {"Indices": [0]}, {"mask": "AQ==", "indices": [0]}])
def test_what_is_no_filter_of_a_set_does_not_make_it_a_choice_of_its_keys(url: str, left: dict[str, Any]) -> None:
    payload = {"descriptors": [{"leaves": [{"name": "A", "tokens": [10]}]}]}
    assert httpx.put(f"{url}/v1/sets/letters", json=payload).is_success
    assert "one of mask and indices" in choose(url, "letters", **left)["error"]["message"]
    httpx.delete(f"{url}/v1/sets/letters")


def test_a_catalogue_in_the_folder_is_a_set_that_its_owner_changes(tmp_path: Path, model_paths: Any, tiny: Any) -> None:
    file = tmp_path / "sets" / "towns.trie"
    file.parent.mkdir()
    TokenTrie.from_choices(tiny, ["Paris", "London"]).save(file)
    (file.parent / "broken.trie").write_bytes(b"tokentri")
    model = tiny.model_path
    with Serving(Path(model), "--sets", str(file.parent)) as serving, Catalogue(file) as catalogue:
        assert choose(serving.url, "towns") in ("Paris", "London")
        catalogue.add(TokenTrie.from_choices(tiny, ["Rome"]))
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


STATE, ASK = "I was charged twice for Pizza in Paris.", "Which one?"
FORMATS = ("/v1/systemone", "/v1/decisions")


def bodies(**question: Any) -> dict[str, Any]:
    """Return the body of one question in each format."""
    one = {"type": "choice", "instructions": ASK, **question}
    return {
        "/v1/systemone": {"state": STATE, "questions": {"q": one}},
        "/v1/decisions": {"model": "any", "input": STATE, "questions": [{"name": "q", **one}]},
    }


def ask(url: str, path: str, **question: Any) -> Any:
    """Return the answer, with probabilities by value, or the error."""
    answer = httpx.post(f"{url}{path}", json=bodies(**question)[path], timeout=60)
    if answer.status_code != 200:
        return answer.json().get("error") or answer.json()["detail"]
    found = answer.json()["answers"]
    if path == "/v1/systemone":
        return found["q"]
    return found[0] | {"probabilities": {one["value"]: one["probability"] for one in found[0]["probabilities"]}}


@pytest.fixture(scope="module")
def towns(tmp_path_factory: pytest.TempPathFactory, tiny: Any, smollm2: Any) -> Path:
    """Return a folder with sets in files: a small, a large one, and one for another model."""
    folder = tmp_path_factory.mktemp("sets")
    texts = ["Paris", "Pizza", "yes Paris", "no", "Pizza Pizza"]
    TokenTrie.from_choices(tiny, texts, leading_space=True).save(folder / "few.trie")
    names = [
        f"{a}{b} {c}"
        for a in "PabcdeR"
        for b in "iouxyz"
        for c in ("yes", "no", "Pa", "Paris", "Pizza", "ris", "x", "z")
    ]
    TokenTrie.from_choices(tiny, names, leading_space=True).save(folder / "many.trie")
    TokenTrie.from_choices(smollm2, names).save(folder / "other.trie")
    return folder


@pytest.fixture(scope="module")
def catalogues(towns: Path, model_paths: Any) -> Any:
    with Serving(model_paths["tiny"], "--sets", str(towns)) as serving:
        yield serving.url


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize("name", ["few", "many"])
def test_the_members_of_a_set_are_options_of_a_question(
    catalogues: str, towns: Path, tiny: Any, path: str, name: str
) -> None:
    trie = TokenTrie.open(towns / f"{name}.trie")
    assert (len(trie) > MAX_WHOLE) == (name == "many")
    keep = np.arange(len(trie)) % 3 > 0
    for options, asked in (
        ({}, Choice(ASK, trie)),
        ({"x_top": 2}, Choice(ASK, trie, top=2)),
        ({"x_filter": {"mask": bits_of(*np.flatnonzero(keep), n=len(trie))}}, Choice(ASK, trie.filtered(keep))),
        ({"x_filter": {"indices": [0, 3, 2]}}, Choice(ASK, trie.filtered([0, 3, 2]))),
    ):
        found, expected = ask(catalogues, path, x_set=name, **options), decide(tiny, STATE, asked)
        assert found["choice"] == expected.value
        assert found["probabilities"] == pytest.approx(expected.probabilities, abs=2e-2)
        assert found["confidence"] == pytest.approx(expected.confidence, abs=2e-2)
        assert found["x_mass"] == pytest.approx(expected.mass, rel=5e-2)
        assert found["x_rest"] == pytest.approx(expected.rest, rel=5e-2, abs=1e-3)
        assert found["x_proved"] == expected.proved
        assert found["x_gap"] == (0 if expected.proved else None)
        assert found["x_calibration"] == "contextual"
        assert "x_values" not in found


@pytest.mark.parametrize("path", FORMATS)
def test_texts_that_were_registered_are_options_with_their_values(url: str, tiny: Any, path: str) -> None:
    values = {"Paris": {"id": 1}, "Pizza": [2], "yes Paris": True, "no": 1, "ris": None}
    httpx.put(f"{url}/v1/sets/valued", json={"choices": values})
    expected = decide(tiny, STATE, Choice(ASK, list(values), top=3))
    found = ask(url, path, x_set="valued", x_top=3)
    assert found["probabilities"] == pytest.approx(expected.probabilities, abs=2e-2)
    assert found["x_values"] == {text: values[text] for text in found["probabilities"]}
    left = ask(url, path, x_set="valued", x_filter={"indices": [3, 1]})
    assert left["x_values"] == {"no": 1, "Pizza": [2]}
    httpx.delete(f"{url}/v1/sets/valued")


def test_a_request_with_a_set_counts_what_it_cost(catalogues: str) -> None:
    for path in FORMATS:
        usage = httpx.post(f"{catalogues}{path}", json=bodies(x_set="many")[path], timeout=60).json()["usage"]
        assert usage["output_tokens"] > N_FOUND, path
        assert usage["input_tokens"] > 20


def test_the_description_has_the_fields(catalogues: str) -> None:
    schemas = httpx.get(f"{catalogues}/openapi.json").json()["components"]["schemas"]
    shapes = [shape for shape in schemas.values() if "x_set" in shape.get("properties", {})]
    assert len(shapes) == len(FORMATS)
    assert all({"x_filter", "x_top"} <= shape["properties"].keys() for shape in shapes)
    assert schemas["SetFilter"]["properties"].keys() == {"mask", "indices"}


NAMED = {"/v1/systemone": {"criteria": {"a": None, "b": None}}, "/v1/decisions": {"choices": [{"value": "a"}] * 2}}


@pytest.mark.parametrize(
    ("question", "at", "message"),
    [
        ({"x_set": "none"}, "x_set", "there is no set none"),
        ({"x_set": "no such name"}, "x_set", "there is no set of this name"),
        ({"x_set": 7}, "x_set", "valid string"),
        ({"x_set": "other"}, "", "another vocabulary"),
        ({"x_set": "few", "x_filter": {"mask": "AQ==AQ=="}}, "x_filter", "no base64"),
        ({"x_set": "few", "x_filter": {"mask": "AQEB"}}, "x_filter", "3 bytes, where 5 members take 1"),
        ({"x_set": "few", "x_filter": {"mask": "AA=="}}, "x_filter", "no member of the set is left"),
        ({"x_set": "few", "x_filter": {"indices": [5]}}, "x_filter", "no index of 5 members"),
        ({"x_set": "few", "x_filter": {"indices": [1, 1]}}, "x_filter", "twice"),
        ({"x_set": "few", "x_filter": {"indices": []}}, "x_filter", "no member of the set is left"),
        ({"x_set": "few", "x_filter": {"indices": ["1"]}}, "x_filter.indices[0]", "valid integer"),
        ({"x_set": "few", "x_filter": {}}, "x_filter", "one of mask and indices belongs here"),
        ({"x_set": "few", "x_filter": {"mask": "AQ==", "indices": [0]}}, "x_filter", "one of mask and indices"),
        ({"x_set": "few", "x_filter": {"which": [0]}}, "x_filter.which", "Extra inputs"),
        ({"x_set": "few", "x_top": 0}, "x_top", "greater than or equal to 1"),
        ({"x_set": "few", "x_top": 256}, "x_top", "256, where 255 are the most"),
        ({"x_set": "few", "x_top": 10_000}, "x_top", "are the most"),
        ({"x_set": "few", "x_top": "5"}, "x_top", "valid integer"),
        ({"x_set": "few", **NAMED["/v1/systemone"], **NAMED["/v1/decisions"]}, "x_set", "goes with no c"),
        ({"x_top": 3, **NAMED["/v1/systemone"], **NAMED["/v1/decisions"]}, "x_top", "goes with x_set"),
        ({"x_filter": {"indices": [0]}}, "x_filter", "goes with x_set"),
        ({}, "c", "required"),
    ],
)
@pytest.mark.parametrize("path", FORMATS)
def test_what_is_no_question_about_a_set_is_refused_with_its_position(
    catalogues: str, path: str, question: dict[str, Any], at: str, message: str
) -> None:
    error = ask(catalogues, path, **question)
    if path == "/v1/systemone":
        loc = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in error[0]["loc"])
        place, said = loc.removeprefix(".body.questions.q").lstrip("."), error[0]["msg"]
    else:
        place, said = error["param"].removeprefix("questions[0]").lstrip("."), error["message"]
    assert place.startswith(at)
    assert bool(at) == bool(place)
    assert message in said


def test_a_set_may_change_while_it_is_asked_about(url: str) -> None:
    path, n = f"{url}/v1/sets/changing", 400
    sets = [{"choices": [f"{word} {i}" for i in range(n)]} for word in ("Paris", "Pizza")]
    httpx.put(path, json=sets[0])

    def change(i: int) -> int:
        if i % 5 == 4:
            return httpx.delete(path).status_code
        return httpx.put(path, json=sets[i % 2]).status_code

    with ThreadPoolExecutor(8) as clients:
        changes = clients.map(change, range(20))
        answers = list(clients.map(lambda i: ask(url, FORMATS[i % 2], x_set="changing"), range(60)))
    assert {status // 100 for status in changes} <= {2, 4}
    for answer in answers:
        if "choice" in answer:
            assert len({text.partition(" ")[0] for text in answer["probabilities"]}) == 1
        else:
            assert "there is no set" in str(answer)
    httpx.delete(path)


def test_reproducible_answers_about_a_set_are_the_same_bit_by_bit(catalogues: str) -> None:
    body = bodies(x_set="many")["/v1/systemone"] | {"x_reproducible": True}
    answers = [httpx.post(f"{catalogues}/v1/systemone", json=body, timeout=60).json()["answers"] for _ in range(2)]
    ask(catalogues, "/v1/systemone", x_set="few")
    answers.append(httpx.post(f"{catalogues}/v1/systemone", json=body, timeout=60).json()["answers"])
    assert answers[0] == answers[1] == answers[2]


def test_who_owns_both_ends_may_have_more_options(towns: Path, model_paths: Any) -> None:
    words = [f"{i:04}" for i in range(1001)]
    with Serving(model_paths["tiny"], "--sets", str(towns), "--max-options", "1000") as serving:
        for path, named in (
            ("/v1/systemone", lambda n: {"criteria": dict.fromkeys(words[:n])}),
            ("/v1/decisions", lambda n: {"choices": [{"value": word} for word in words[:n]]}),
        ):
            assert len(ask(serving.url, path, **named(1000))["probabilities"]) == 1000
            assert "1,001, where 1,000 are the most" in str(ask(serving.url, path, **named(1001)))
            assert len(ask(serving.url, path, x_set="many", x_top=1000)["probabilities"]) > MAX_WHOLE
            assert "1,001, where 1,000 are the most" in str(ask(serving.url, path, x_set="many", x_top=1001))


def test_eight_clients_get_the_answers_of_python_about_a_large_catalogue(
    tmp_path: Path, request: pytest.FixtureRequest, model_paths: Any
) -> None:
    name = "tiny" if MEMBERS < 10_000 else "smollm2"
    llm = request.getfixturevalue(name)
    makers, things = ["Nord", "Altura", "Castell", "Dunmore"], ["belt", "jacket", "lamp", "chair", "kettle"]
    named = list(itertools.product(makers, ["red", "blue", "black", "green"], things))
    texts = [f"{' '.join(named[i % len(named)])} {i}" for i in range(MEMBERS)]
    trie = TokenTrie.from_choices(llm, texts, leading_space=True)
    trie.save(tmp_path / "items.trie")
    keep = np.random.default_rng(0).random(len(trie)) < 0.5
    question = Choice("Which item does the customer want?", trie.filtered(keep))
    states = [
        f"Do you have the {colour} {thing} by {maker}?"
        for maker, colour, thing in named[:: 40 if MEMBERS < 10_000 else 10]
    ]
    mask = {"mask": bits_of(*np.flatnonzero(keep), n=len(trie))}
    options = "--sets", str(tmp_path), "--time-limit", "3600"
    with Serving(model_paths[name], *options) as serving, ThreadPoolExecutor(8) as clients:

        def answer(state: str, *, exactly: bool) -> Any:
            one = {"type": "choice", "instructions": question.instructions, "x_set": "items", "x_filter": mask}
            body = {"state": state, "questions": {"q": one}, "x_reproducible": exactly}
            found = httpx.post(f"{serving.url}/v1/systemone", json=body, timeout=3600)
            assert found.status_code == 200, found.text
            return found.json()["answers"]["q"]

        together = list(clients.map(partial(answer, exactly=False), states))
        alone = list(clients.map(partial(answer, exactly=True), states))
    expected = [decide(llm, state, question, reproducible=True) for state in states]
    assert [found["probabilities"] for found in alone] == [one.probabilities for one in expected]
    named_by = [[found["choice"].rpartition(" ")[0] for found in answers] for answers in (together, alone)]
    assert (
        sum(itertools.starmap(operator.eq, zip(*named_by, strict=True))) >= len(states) / 2
    )  # as batches round otherwise
