from __future__ import annotations

import base64
import itertools
import json
import operator
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from serving import Serving
from token_trie import ArgumentError, Choice, TokenTrie, decide
from token_trie.questions.question import MAX_WHOLE
from token_trie.questions.searched import N_FOUND
from token_trie.serve.sets import Sets

MEMBERS = int(os.environ.get("MEMBERS", "1000"))
CITIES = ["Paris", "London"]


def choose(url: str, name: str, **left: Any) -> Any:
    body = {
        "messages": [{"role": "user", "content": "Where is the Eiffel Tower?"}],
        "structured_outputs": {"choice": {"set": name, **left}},
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    return answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else answer.json()


def test_sets_of_a_folder_are_listed_and_named(folder: Path, served: str) -> None:
    listed = httpx.get(f"{served}/v1/sets").json()["data"]
    assert sorted(one["name"] for one in listed) == sorted(
        path.stem for path in folder.iterdir() if path.suffix != ".txt"
    )
    assert {"object": "set", "name": "cities.of-1_Europe", "choices": 2} in listed
    assert choose(served, "cities.of-1_Europe") in CITIES
    assert choose(served, "valued", mask=bits_of(0, n=len(VALUES))) == json.dumps(VALUES["Paris"])
    assert choose(served, "few") in ("Paris", "Pizza", "yes Paris", "no", "Pizza Pizza")
    refused = choose(served, "none")["error"]
    assert (refused["type"], refused["param"]) == ("not_found_error", "structured_outputs.choice.set")


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_client_changes_no_set(folder: Path, served: str, method: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("towns", "x", "..%2Fx"):
        assert httpx.request(method, f"{served}/v1/sets/{name}", json=CITIES).status_code in (404, 405)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def bits_of(*indices: int, n: int) -> str:
    bits = np.zeros(n, np.bool_)
    bits[list(indices)] = True
    return base64.b64encode(np.packbits(bits, bitorder="little")).decode()


@pytest.mark.parametrize("name", ["towns", "town tokens"])
def test_a_request_leaves_some_members_of_a_set(served: str, name: str) -> None:
    assert choose(served, name, mask=bits_of(2, n=10)) == "Rome"
    assert choose(served, name, mask=bits_of(1, 5, n=10)) in ("London", "Town 2")
    for wrong, message in (
        ({"mask": bits_of(n=10)}, "no member of the set is left"),
        ({"mask": bits_of(2, n=8)}, "1 bytes, where 10 members take 2"),
        ({"mask": bits_of(2, 12, n=16)}, "bits after the last of 10 members"),
        ({"mask": "%"}, "no base64"),
        ({"mask": 7}, "must be base64"),
    ):
        refused = choose(served, name, **wrong)["error"]
        assert message in refused["message"], refused
        assert refused["param"] == "structured_outputs.choice"


@pytest.mark.parametrize("name", ["letters", "letters 0", "letters 1", "letters 2"])
def test_a_set_whose_leaves_have_become_one_is_not_filtered_by_positions(served: str, name: str) -> None:
    assert choose(served, name) in ("A", "B", "C")
    for n in (3, 4):
        found = choose(served, name, mask=bits_of(2, n=n))
        if name == "letters":
            assert found == "C"
        else:
            assert "mask: the file of this set has leaves of equal" in found["error"]["message"]
            assert found["error"]["param"] == "structured_outputs.choice"


@pytest.mark.parametrize("left", [{"index": [0]}, {"Mask": "AQ=="}, {"mask": "AQ==", "indices": [0]}])
def test_what_is_no_filter_of_a_set_does_not_make_it_a_choice_of_its_keys(served: str, left: dict[str, Any]) -> None:
    assert "only mask is known" in choose(served, "letters", **left)["error"]["message"]


@pytest.mark.parametrize(
    "given",
    [
        [],
        [1],
        ["a", ""],
        {"": 1},
        {},
        "x",
        7,
        None,
        {"descriptors": []},
        {"descriptors": [{"path": "x", "leaves": [{"name": "a", "tokens": [10_000_000]}]}]},
        ["a\0b"],
    ],
    ids=range(11),
)
def test_a_file_that_is_no_set_is_named(tiny: Any, tmp_path: Path, given: Any) -> None:
    (tmp_path / "fine.json").write_text(json.dumps(CITIES))
    (tmp_path / "broken.json").write_text(json.dumps(given))
    with pytest.raises(ArgumentError, match=r"--sets: .*broken\.json: ."):
        Sets.read(tiny, tmp_path)


def test_a_server_does_not_start_with_a_broken_set(tmp_path: Path, model_paths: Any) -> None:
    (tmp_path / "broken.trie").write_bytes(b"tokentri")
    with pytest.raises(AssertionError, match=r"--sets: .*broken\.trie"):
        Serving(model_paths["tiny"], "--sets", str(tmp_path)).__enter__()


def test_two_files_of_one_name_are_refused(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "towns.json").write_text(json.dumps(CITIES))
    TokenTrie.from_choices(tiny, ["Rome"]).save(tmp_path / "towns.trie")
    with pytest.raises(ArgumentError, match="there is another set 'towns'"):
        Sets.read(tiny, tmp_path)


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


VALUES = {"Paris": {"id": 1}, "Pizza": [2], "yes Paris": True, "no": 1, "ris": None}
TOWNS = ["Paris", "London", "Rome", *(f"Town {i}" for i in range(7))]
LETTERS = [{"name": name, "tokens": [token]} for name, token in (("A", 10), ("B", 11), ("C", 12))]
DOUBLES = [{"name": "A2", "tokens": [10]}, {"name": "A", "tokens": [10]}, {"name": "A2", "tokens": []}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: Any, any_model: Any) -> Path:
    """Return a folder of sets: texts, tokens, a small and a large file, and one for another model."""
    folder = tmp_path_factory.mktemp("sets")
    tokens = [{"name": name, "tokens": tiny.tokenize(name.encode(), add_bos=False)} for name in TOWNS]
    sets: dict[str, Any] = {
        "cities.of-1_Europe": CITIES,
        "valued": VALUES,
        "towns": TOWNS,
        "town tokens": {"descriptors": [{"path": "towns", "leaves": tokens}]},
        "letters": {"descriptors": [{"leaves": LETTERS}]},
    }
    for i, double in enumerate(DOUBLES):
        parts = [LETTERS[:1], [double], LETTERS[1:]]
        sets[f"letters {i}"] = {"descriptors": [{"path": str(k), "leaves": part} for k, part in enumerate(parts)]}
    for name, given in sets.items():
        (folder / f"{name}.json").write_text(json.dumps(given))
    (folder / "notes.txt").write_text("no set")
    texts = ["Paris", "Pizza", "yes Paris", "no", "Pizza Pizza"]
    TokenTrie.from_choices(tiny, texts, leading_space=True).save(folder / "few.trie")
    names = [
        f"{a}{b} {c}"
        for a in "PabcdeR"
        for b in "iouxyz"
        for c in ("yes", "no", "Pa", "Paris", "Pizza", "ris", "x", "z")
    ]
    TokenTrie.from_choices(tiny, names, leading_space=True).save(folder / "many.trie")
    TokenTrie.from_choices(any_model, names).save(folder / "other.trie")
    return folder


@pytest.fixture(scope="module")
def served(folder: Path, model_paths: Any) -> Iterator[str]:
    """Where a server with these sets listens."""
    with Serving(model_paths["tiny"], "--sets", str(folder)) as serving:
        yield serving.url


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize("name", ["few", "many"])
def test_the_members_of_a_set_are_options_of_a_question(
    served: str, folder: Path, tiny: Any, path: str, name: str
) -> None:
    trie = TokenTrie.open(folder / f"{name}.trie")
    assert (len(trie) > MAX_WHOLE) == (name == "many")
    keep = np.arange(len(trie)) % 3 > 0
    for options, asked in (
        ({}, Choice(ASK, trie)),
        ({"x_top": 2}, Choice(ASK, trie, top=2)),
        ({"x_mask": bits_of(*np.flatnonzero(keep), n=len(trie))}, Choice(ASK, trie.filtered(keep))),
    ):
        found, expected = ask(served, path, x_set=name, **options), decide(tiny, STATE, asked)
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
def test_texts_of_a_file_are_options_with_their_values(served: str, tiny: Any, path: str) -> None:
    expected = decide(tiny, STATE, Choice(ASK, list(VALUES), top=3))
    found = ask(served, path, x_set="valued", x_top=3)
    assert found["probabilities"] == pytest.approx(expected.probabilities, abs=2e-2)
    assert found["x_values"] == {text: VALUES[text] for text in found["probabilities"]}
    left = ask(served, path, x_set="valued", x_mask=bits_of(1, 3, n=len(VALUES)))
    assert left["x_values"] == {"no": 1, "Pizza": [2]}


def test_a_request_with_a_set_counts_what_it_cost(served: str) -> None:
    for path in FORMATS:
        usage = httpx.post(f"{served}{path}", json=bodies(x_set="many")[path], timeout=60).json()["usage"]
        assert usage["output_tokens"] > N_FOUND, path
        assert usage["input_tokens"] > 20


NAMED = {"/v1/systemone": {"criteria": {"a": None, "b": None}}, "/v1/decisions": {"choices": [{"value": "a"}] * 2}}


@pytest.mark.parametrize(
    ("question", "at", "message"),
    [
        ({"x_set": "none"}, "x_set", "there is no set none"),
        ({"x_set": "no such name"}, "x_set", "there is no set of this name"),
        ({"x_set": 7}, "x_set", "valid string"),
        ({"x_set": "other"}, "", "another vocabulary"),
        ({"x_set": "few", "x_mask": "AQ==AQ=="}, "x_mask", "no base64"),
        ({"x_set": "few", "x_mask": "AQEB"}, "x_mask", "3 bytes, where 5 members take 1"),
        ({"x_set": "few", "x_mask": "AA=="}, "x_mask", "no member of the set is left"),
        ({"x_set": "few", "x_mask": [0]}, "x_mask", "valid string"),
        ({"x_set": "few", "x_top": 0}, "x_top", "greater than or equal to 1"),
        ({"x_set": "few", "x_top": 256}, "x_top", "must be at most 255, not 256"),
        ({"x_set": "few", "x_top": 10_000}, "x_top", "must be at most 255"),
        ({"x_set": "few", "x_top": "5"}, "x_top", "valid integer"),
        ({"x_set": "few", **NAMED["/v1/systemone"], **NAMED["/v1/decisions"]}, "x_set", "goes with no c"),
        ({"x_top": 3, **NAMED["/v1/systemone"], **NAMED["/v1/decisions"]}, "x_top", "goes with x_set"),
        ({"x_mask": "AQ=="}, "x_mask", "goes with x_set"),
        ({}, "c", "required"),
    ],
)
@pytest.mark.parametrize("path", FORMATS)
def test_what_is_no_question_about_a_set_is_refused_with_its_position(
    served: str, path: str, question: dict[str, Any], at: str, message: str
) -> None:
    error = ask(served, path, **question)
    if path == "/v1/systemone":
        loc = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in error[0]["loc"])
        place, said = loc.removeprefix(".body.questions.q").lstrip("."), error[0]["msg"]
    else:
        place, said = error["param"].removeprefix("questions[0]").lstrip("."), error["message"]
    assert place.startswith(at)
    assert bool(at) == bool(place)
    assert message in said


def test_reproducible_answers_about_a_set_are_the_same_bit_by_bit(served: str) -> None:
    body = bodies(x_set="many")["/v1/systemone"] | {"x_reproducible": True}
    answers = [httpx.post(f"{served}/v1/systemone", json=body, timeout=60).json()["answers"] for _ in range(2)]
    ask(served, "/v1/systemone", x_set="few")
    answers.append(httpx.post(f"{served}/v1/systemone", json=body, timeout=60).json()["answers"])
    assert answers[0] == answers[1] == answers[2]


def test_who_owns_both_ends_may_have_more_options(folder: Path, model_paths: Any) -> None:
    words = [f"{i:04}" for i in range(1001)]
    with Serving(model_paths["tiny"], "--sets", str(folder), "--max-options", "1000") as serving:
        for path, named in (
            ("/v1/systemone", lambda n: {"criteria": dict.fromkeys(words[:n])}),
            ("/v1/decisions", lambda n: {"choices": [{"value": word} for word in words[:n]]}),
        ):
            assert len(ask(serving.url, path, **named(1000))["probabilities"]) == 1000
            assert "must be at most 1,000, not 1,001" in str(ask(serving.url, path, **named(1001)))
            assert len(ask(serving.url, path, x_set="many", x_top=1000)["probabilities"]) > MAX_WHOLE
            assert "must be at most 1,000, not 1,001" in str(ask(serving.url, path, x_set="many", x_top=1001))


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
    mask = bits_of(*np.flatnonzero(keep), n=len(trie))
    options = "--sets", str(tmp_path), "--time-limit", "3600"
    with Serving(model_paths[name], *options) as serving, ThreadPoolExecutor(8) as clients:

        def answer(state: str, *, exactly: bool) -> Any:
            one = {"type": "choice", "instructions": question.instructions, "x_set": "items", "x_mask": mask}
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
