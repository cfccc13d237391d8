from __future__ import annotations

import copy
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import llama_cpp
import pytest
from token_trie import ArgumentError, BusyError, TokenTrie, constrain

NAMES = ["yes", "no", "Paris", "Pizza"]
CHAT = [{"role": "user", "content": "Answer"}]


@pytest.fixture
def trie(tiny: Any) -> TokenTrie:
    return TokenTrie.from_choices(tiny, NAMES)


STREAMS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "create_completion": lambda llm: llm.create_completion("Answer:", max_tokens=8, stream=True),
    "call": lambda llm: llm("Answer:", max_tokens=8, stream=True),
    "create_chat_completion": lambda llm: llm.create_chat_completion(CHAT, max_tokens=8, stream=True),
    "generate": lambda llm: llm.generate([300]),
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("n_read", [0, 1])
def test_a_stream_made_in_a_block_gives_nothing_after_it(
    tiny: Any, trie: TokenTrie, stream: Callable[[Any], Iterator[Any]], n_read: int
) -> None:
    constraint = constrain(tiny, trie)
    with constraint:
        made = stream(tiny)
        for _ in range(n_read):
            next(made)
    with pytest.raises(BusyError, match="block ended"):
        next(made)
    with constraint:
        made = stream(tiny)
    with constraint, pytest.raises(BusyError, match="block ended"):
        next(made)


def test_a_handler_that_begins_only_when_read_is_bound_to_its_block_too(tiny: Any, trie: TokenTrie) -> None:
    def handler(llama: Any, **_: Any) -> Iterator[Any]:
        yield from llama.create_completion("Answer:", max_tokens=8, stream=True)

    tiny.chat_handler = handler
    try:
        with constrain(tiny, trie) as constraint:
            assert list(tiny.create_chat_completion(CHAT, stream=True))
            assert constraint.complete
            made = tiny.create_chat_completion(CHAT, stream=True)
        with pytest.raises(BusyError, match="block ended"):
            next(made)
    finally:
        tiny.chat_handler = None


def test_a_method_taken_before_the_block_gives_nothing_after_it(tiny: Any, trie: TokenTrie) -> None:
    create = tiny.create_completion
    with constrain(tiny, trie):
        made = create("Answer:", max_tokens=8, stream=True)
    with pytest.raises(BusyError, match="block ended"):
        next(made)


def test_a_refused_call_changes_nothing(tiny: Any, trie: TokenTrie) -> None:
    with constrain(tiny, trie, "sampled") as constraint:
        made = tiny.create_completion("Answer:", max_tokens=8, stream=True)
        parts = [next(made)]
        before = tiny._seed, tiny.n_tokens, constraint.names
        refused = []

        def call() -> None:
            for _ in range(3):
                try:
                    tiny.create_completion("Another:", max_tokens=8, seed=5)
                except BusyError as error:
                    refused.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert len(refused) == 3
        assert "another thread" in refused[0]
        assert (tiny._seed, tiny.n_tokens, constraint.names) == before
        parts += made
        assert "".join(part["choices"][0]["text"] for part in parts).strip() in NAMES


def test_threads_that_try_again_all_get_their_answers(tiny: Any, trie: TokenTrie) -> None:
    answers: list[str] = []

    def call() -> None:
        for _ in range(10):
            while True:
                try:
                    result = tiny.create_completion("Answer:", max_tokens=8)
                except BusyError:
                    continue
                answers.append(result["choices"][0]["text"].strip())
                break

    with constrain(tiny, trie, "sampled"):
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(answers) == 30
    assert set(answers) <= set(NAMES)


def test_a_stream_may_be_read_by_one_thread_after_the_other(tiny: Any, trie: TokenTrie) -> None:
    with constrain(tiny, trie):
        made, parts = tiny.create_chat_completion(CHAT, max_tokens=8, stream=True), []
        ended = threading.Event()

        def read() -> None:
            try:
                parts.append(next(made))
            except StopIteration:
                ended.set()

        while not ended.is_set():
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()
        assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts).strip() in NAMES
        # With the stream read, the model is free for this thread.
        assert tiny.create_completion("Answer:", max_tokens=8)


def test_a_call_inside_a_call_is_refused(tiny: Any, trie: TokenTrie) -> None:
    def ask(ids: Any, scores: Any) -> Any:
        with pytest.raises(BusyError, match="inside another"):
            tiny.create_completion("Answer:", max_tokens=8)
        return scores

    with constrain(tiny, trie):
        processors = llama_cpp.LogitsProcessorList([ask])
        assert tiny.create_completion("Answer:", max_tokens=8, logits_processor=processors)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_inside_a_member_leaves_none(tiny: Any, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    trie = TokenTrie.from_choices(tiny, ["Paris"], prompt="Answer:")
    with constrain(tiny, trie) as constraint, caplog.at_level(logging.WARNING, "token_trie"):
        result = tiny.create_completion("Answer:", max_tokens=8, stop=["x", "ris"], stream=stream)
        parts = list(result) if stream else [result]
    assert "".join(part["choices"][0]["text"] for part in parts) == " Pa"
    assert (constraint.complete, constraint.names) == (False, [])
    assert "inside a member" in caplog.text


def test_a_stop_string_between_members_leaves_those_before(tiny: Any) -> None:
    trie = TokenTrie.from_choices(tiny, ["Paris"], prompt="Answer:")
    comma = tiny._model.tokenize(b",", False, False)[-1:]
    with constrain(tiny, trie, on_complete="restart", separator=comma, max_items=3) as constraint:
        result = tiny.create_completion("Answer:", max_tokens=20, stop=",")
    assert result["choices"][0]["text"] == " Paris"
    assert (constraint.complete, constraint.names) == (True, ["Paris"])


def test_a_stop_string_that_does_not_come_changes_nothing(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    trie = TokenTrie.from_choices(tiny, ["Paris"], prompt="Answer:")
    with constrain(tiny, trie) as constraint, caplog.at_level(logging.WARNING, "token_trie"):
        tiny.create_completion("Answer:", max_tokens=8, stop=["Rome"])
    assert (constraint.complete, constraint.names, caplog.text) == (True, ["Paris"], "")


def test_a_constraint_cannot_be_copied(tiny: Any, trie: TokenTrie) -> None:
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ArgumentError, match="cannot be copied"):
            duplicate(constrain(tiny, trie))
