from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from token_trie import ArgumentError, StreamHandle, TokenTrie, VocabularyError, cache_stats
from token_trie.errors import PayloadError


def leaves(llm: Any, names: list[str]) -> list[dict[str, Any]]:
    return [{"name": name, "tokens": llm.tokenize(f" {name}".encode(), add_bos=False)} for name in names]


@pytest.fixture
def payload(smollm2: Any) -> dict[str, Any]:
    sets = {"action": ["GET_WEATHER", "SET_TIMER"], "parameters.city": ["Oslo", "Paris"], "contexts[]": ["a", "b", "c"]}
    return {"descriptors": [{"path": path, "leaves": leaves(smollm2, names)} for path, names in sets.items()]}


@pytest.fixture
def stream(smollm2: Any) -> Iterator[StreamHandle]:
    with StreamHandle(smollm2, n_ctx=256) as handle:
        handle.prefill("Weather in Paris? Action:")
        yield handle


def test_spans_of_one_payload_are_chosen_by_path(stream: StreamHandle, payload: dict[str, Any]) -> None:
    stream.set_payload(payload)
    action = stream.choose(path="action")
    stream.append("\nCity:")
    city = stream.choose(path="parameters.city", mode="greedy")
    stream.append("\nContexts:")
    contexts = stream.choose_list(path="contexts[]", min_items=2, max_items=2)
    assert action.value in ("GET_WEATHER", "SET_TIMER")
    assert city.value in ("Oslo", "Paris")
    assert set(contexts.values) <= {"a", "b", "c"}
    stream.append("\n")
    stream.set_token_trie(path="parameters.city")
    assert "".join(step.text for step in stream.generate()).strip() in ("Oslo", "Paris")
    assert stream.state.name in ("Oslo", "Paris")


def test_a_path_is_set_without_reading_the_payload_again(stream: StreamHandle, payload: dict[str, Any]) -> None:
    stream.set_payload(json.dumps(payload))
    before = cache_stats()
    for path in ("action", "contexts[]", "action"):
        stream.set_token_trie(path=path)
        stream.choose(path=path)
        stream.choose(path=path, mode="greedy")
    assert cache_stats() == before


def test_descriptors_of_one_path_are_one_set(smollm2: Any, stream: StreamHandle) -> None:
    first, other, second = (leaves(smollm2, [text]) for text in ("a", " yes", "b"))
    descriptors = [{"path": path, "leaves": each} for path, each in (("x", first), ("y", other), ("x", second))]
    stream.set_payload({"descriptors": descriptors})
    assert stream.choose_list(path="x", min_items=2).stop == "none_left"
    assert stream.choose(path="y").value == " yes"


def test_a_failed_choice_puts_the_path_back(stream: StreamHandle, payload: dict[str, Any]) -> None:
    stream.set_payload(payload)
    stream.set_token_trie(path="parameters.city")
    with pytest.raises(ValueError, match="do not fit the context"):
        stream.choose(["q7" * 4000])
    assert "".join(step.text for step in stream.generate()).strip() in ("Oslo", "Paris")


def test_a_fork_has_the_paths_too(stream: StreamHandle, payload: dict[str, Any]) -> None:
    stream.set_payload(payload)
    with stream.fork() as other:
        stream.set_payload(None)
        assert other.choose(path="action").value in ("GET_WEATHER", "SET_TIMER")
        with pytest.raises(ArgumentError, match="'action' is no path of the payload; there is none: call set_payload"):
            stream.choose(path="action")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"descriptors": []}, PayloadError, "payload: no descriptor"),
        ({}, PayloadError, 'the key "descriptors" is missing'),
        ({"descriptors": [{"path": "x", "leaves": []}]}, PayloadError, 'the path "x" has no leaf with tokens'),
        (
            {"descriptors": [{"path": "x", "leaves": [{"name": "a", "tokens": [10**6]}]}]},
            VocabularyError,
            r"descriptors\[0\].leaves\[0\].tokens\[0\]: 1000000 is outside",
        ),
        ({"vocab": "sha256:" + "0" * 64, "descriptors": [{"path": "x", "leaves": []}]}, PayloadError, "no leaf"),
    ],
)
def test_a_payload_that_is_refused_leaves_the_one_before(
    stream: StreamHandle, payload: dict[str, Any], change: Any, error: type[Exception], message: str
) -> None:
    stream.set_payload(payload)
    with pytest.raises(error, match=message):
        stream.set_payload(change)
    assert stream.choose(path="action").value in ("GET_WEATHER", "SET_TIMER")


def test_what_is_no_path_is_refused(stream: StreamHandle, smollm2: Any, payload: dict[str, Any]) -> None:
    stream.set_payload(payload)
    for call in (
        lambda: stream.choose(path="b"),
        lambda: stream.set_token_trie(path="b"),
        lambda: stream.set_token_trie(),
    ):
        with pytest.raises(ArgumentError, match=r"is no path of the payload; there is 'action', 'contexts\[\]'"):
            call()
    with pytest.raises(ArgumentError, match="choices and path: one of the two"):
        stream.choose(["a"], path="action")
    trie = TokenTrie.from_payload(payload, "action")
    assert stream.choose(trie).value in trie.names
