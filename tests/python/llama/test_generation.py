from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import child_process
import pytest
from token_trie import ArgumentError, BusyError, StreamHandle, TokenTrie
from tokenized_choices import ACTIONS, PROMPT


def in_thread(call: Any) -> Any:
    """Return what a call returns in another thread, or the error it raises."""
    results = []

    def work() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0]


def test_a_second_generation_is_refused_until_the_first_ends(stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    alone = [step.token for step in stream.generate(max_tokens=4)]
    stream.prefill(PROMPT)
    first, second = stream.generate(max_tokens=4), stream.generate(max_tokens=4)
    tokens = [next(first).token]
    for _ in range(2):
        with pytest.raises(BusyError, match="another generation"):
            next(second)
        assert isinstance(in_thread(lambda: next(second)), BusyError)
        tokens.append(next(first).token)
    tokens += [step.token for step in first]
    assert tokens == alone
    assert len(list(second)) == 4


def test_a_generation_that_is_closed_leaves_the_handle_to_the_next(stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    steps = stream.generate(max_tokens=4)
    next(steps)
    steps.close()
    assert list(steps) == []
    assert len(list(stream.generate(max_tokens=2))) == 2


def test_a_generation_that_nobody_reads_any_more_leaves_the_handle_to_the_next(stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    for _ in stream.generate(max_tokens=4):
        break
    gc.collect()
    assert len(list(stream.generate(max_tokens=2))) == 2


def test_the_reader_may_change_what_comes_next_and_no_other_thread(stream: StreamHandle, actions: TokenTrie) -> None:
    stream.prefill(PROMPT)
    steps = stream.generate(max_tokens=40)
    next(steps)
    for change in (
        lambda: stream.prefill(PROMPT),
        lambda: stream.set_token_trie(actions),
        stream.clear_token_trie,
        lambda: stream.set_grammar(None),
        lambda: stream.set_seed(1),
    ):
        assert isinstance(in_thread(change), BusyError)
    stream.set_token_trie(actions)
    assert "".join(step.text for step in steps).strip() in ACTIONS


def test_another_prompt_ends_the_generation_of_the_one_before(stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    steps = stream.generate(max_tokens=4)
    next(steps)
    stream.prefill([400])
    with pytest.raises(BusyError, match="other text took the place"):
        next(steps)
    assert stream.state.n_tokens == 1
    assert len(list(stream.generate(max_tokens=2))) == 2


def test_one_generation_read_by_many_threads_gives_each_step_once_and_whole(tiny: Any) -> None:
    words = [tiny.tokenize(text, add_bos=False)[-1] for text in (b"yes", b"no", b"Pizza", b"Paris")]
    tokens = [words[i * i % 7 % 4] for i in range(1000)]
    got: list[Any] = []
    with StreamHandle(tiny, n_ctx=2048) as stream:
        stream.prefill([300])
        stream.set_token_trie(TokenTrie.from_sequences({"a": tokens}))
        steps = stream.generate()

        def read() -> None:
            while True:
                try:
                    got.append(next(steps))
                except BusyError:
                    time.sleep(0)
                except StopIteration:
                    return

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(step.token for step in got) == sorted(tokens)
    for step in got:
        assert step.text == tiny.detokenize([step.token]).decode()


def test_a_reader_that_comes_after_the_last_step_begins_nothing(tiny: Any) -> None:
    with StreamHandle(tiny) as stream:
        stream.prefill([300])
        stream.set_token_trie(TokenTrie.from_sequences({"a": tiny.tokenize(b"yes", add_bos=False)}))
        steps = stream.generate()
        assert list(steps)
        tokens = stream.tokens
        # Where a thread stands that had looked before another took the last step.
        assert steps._stream.step(steps, threading.get_ident()) is None
        assert stream.tokens == tokens


def test_an_interrupt_ends_the_step_that_evaluates_again_what_a_prefill_took(model_paths: dict[str, Path]) -> None:
    code = """
llm = load()
handle = StreamHandle(llm, n_ctx=16384)
handle.prefill(LONG[:6000])
def interrupt():
    while not is_busy(handle):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
for attempt in (lambda: handle.prefill([7] * 15000), lambda: next(handle.generate())):
    threading.Thread(target=interrupt).start()
    try:
        attempt()
    except KeyboardInterrupt:
        started = handle.state.n_tokens
    else:
        sys.exit("not interrupted")
assert handle.state.n_tokens == 6000
assert len(list(handle.generate(2))) == 2
"""
    child_process.run(model_paths["tiny"], code)


def test_a_generation_cannot_be_copied(stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    steps = stream.generate()
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ArgumentError, match="cannot be copied"):
            duplicate(steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": "many"}, "max_tokens must be "),
        ({"temperature": [0.5]}, "temperature must be "),
        ({"top_p": "0.9"}, "top_p must be "),
        ({"temperature": 10**400}, "temperature: int too large"),
        ({"top_p": -(10**400)}, "top_p: int too large"),
        ({"max_tokens": True}, "max_tokens must be "),
    ],
)
def test_what_is_no_number_is_refused(stream: StreamHandle, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        stream.generate(**options)


def test_cancel_from_another_thread_ends_generate(smollm2: Any) -> None:
    with StreamHandle(smollm2, n_ctx=512) as stream:
        stream.prefill(PROMPT)
        begun = threading.Event()

        def cancel() -> None:
            assert begun.wait(30)
            stream.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        steps = []
        for step in stream.generate(max_tokens=300):
            steps.append(step)
            begun.set()
        thread.join()
        assert 1 <= len(steps) < 300
        assert stream.state.stop == "cancelled"


def test_cancel_ends_a_generation_between_steps_but_not_the_next_one(stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    stream.cancel()
    steps = stream.generate(max_tokens=4)
    next(steps)
    stream.cancel()
    assert list(steps) == []
    assert stream.state.stop == "cancelled"
    assert len(list(stream.generate(max_tokens=4))) == 4
    assert stream.state.stop == "max_tokens"
