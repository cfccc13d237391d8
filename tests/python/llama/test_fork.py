from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import child_process
import llama_cpp
import pytest
from token_trie import ArgumentError, BusyError, ContextError, StreamHandle, TokenTrie

PROMPT = "Begin:"
ACTIONS = ["READ", "READ_FILE", "SEND_EMAIL", "NONE"]


@pytest.mark.parametrize("jump_forward", [True, False])
def test_a_fork_goes_on_as_the_handle_would(precise: Any, jump_forward: bool) -> None:
    with StreamHandle(precise, n_ctx=512, seed=3, jump_forward=jump_forward) as stream:
        stream.prefill(PROMPT)
        stream.text(5, temperature=2.0)
        with stream.fork() as other:
            assert isinstance(other, StreamHandle)
            assert other.tokens == stream.tokens
            texts = [handle.text(8, temperature=2.0).text for handle in (stream, other)]
            assert texts[0] == texts[1]


def test_forks_are_sequences_of_their_own_and_evaluate_what_they_share_once(precise: Any) -> None:
    prompt = [300 + i % 40 for i in range(200)]
    with StreamHandle(precise, n_ctx=512) as stream:
        stream.prefill(prompt)
        forks = [stream.fork() for _ in range(3)]
        assert [fork.state.n_cached for fork in forks] == [200] * 3
        chosen = []
        for i, fork in enumerate([stream, *forks]):
            fork.append(f"\nAction {i}:")
            chosen.append(fork.choose(ACTIONS).tokens)
            fork.text(3)
        for i, fork in enumerate([stream, *forks]):
            with StreamHandle(precise, n_ctx=512) as alone:
                alone.prefill(prompt)
                alone.append(f"\nAction {i}:")
                assert alone.choose(ACTIONS).tokens == chosen[i]
                alone.text(3)
                assert alone.tokens == fork.tokens
        assert stream.state.n_context <= 512
        for fork in forks:
            fork.close()


def test_a_fork_keeps_its_place_in_the_trie_and_its_rules(smollm2: Any) -> None:
    with StreamHandle(smollm2, n_ctx=256) as stream:
        stream.prefill(PROMPT)
        stream.set_token_trie(TokenTrie.from_choices(smollm2, ["READ_FILE", "READ_MAIL"], prompt=PROMPT))
        next(iter(stream.generate(1)))
        other = stream.fork()
        stream.clear_token_trie()
        rest = "".join(step.text for step in other.generate())
        assert other.state.name in ("READ_FILE", "READ_MAIL")
        assert other.state.name.endswith(rest)
        with pytest.raises(ContextError):
            other.choose(["q7" * 4000])
        assert other.state.span == "complete", "the trie is set, and was not touched"
        other.close()


@pytest.mark.parametrize("first", [True, False])
def test_either_may_be_closed_first(precise: Any, first: bool) -> None:
    stream = StreamHandle(precise, n_ctx=256)
    stream.prefill(PROMPT)
    other = stream.fork()
    left, gone = (other, stream) if first else (stream, other)
    gone.close()
    with pytest.raises(ArgumentError, match="stream: closed"):
        gone.fork()
    assert len(left.text(4).tokens) == 4
    left.close()


def test_the_llama_closes_all_forks(model_paths: dict[str, Path]) -> None:
    llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    stream = StreamHandle(llm)
    stream.prefill(PROMPT)
    forks = [stream.fork(), stream.fork()]

    def read() -> None:
        with contextlib.suppress(ArgumentError, BusyError):
            for _ in range(100):
                assert forks[0].tokens

    thread = threading.Thread(target=read)
    thread.start()
    try:
        llm.close()
    finally:
        thread.join()
    for handle in (stream, *forks):
        with pytest.raises(ArgumentError, match="stream: closed"):
            handle.text(1)


def test_one_of_several_forks_is_in_a_call_at_a_time(precise: Any) -> None:
    refused = 0

    def write(handle: StreamHandle) -> None:
        nonlocal refused
        n = 0
        while n < 20:
            try:
                n += len(handle.text(1, temperature=1.0).tokens)
            except BusyError:
                refused += 1

    with StreamHandle(precise, n_ctx=512) as stream:
        stream.prefill(PROMPT)
        forks = [stream.fork() for _ in range(4)]
        threads = [threading.Thread(target=write, args=(fork,)) for fork in forks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # One that is refused between two calls of a text keeps what it has written.
        assert all(len(fork.tokens) - len(stream.tokens) >= 20 for fork in forks)
        for fork in forks:
            fork.close()


def test_a_handle_on_a_file_forks_too(model_paths: dict[str, Path]) -> None:
    stream = StreamHandle(model_paths["tiny"], n_ctx=512)
    stream.prefill(PROMPT)
    other = stream.fork()
    stream.close()
    assert other.choose(ACTIONS).value in ACTIONS
    other.close()


def test_no_fork_of_a_fork_outlives_its_llama(model_paths: dict[str, Path]) -> None:
    code = """
for _ in range(5):
    llm, log = load(), []
    last = StreamHandle(llm, n_ctx=256)
    last.prefill("Answer:")
    def fork():
        global last
        while True:
            last = last.fork()
    (thread,) = start(ends(fork, log))
    time.sleep(0.005)
    llm.close()
    thread.join(10)
    assert "closed" in str(log), log
    try:
        last.tokens
    except TokenTrieError:
        continue
    sys.exit("still open")
"""
    child_process.run(model_paths["tiny"], code)


def test_an_interrupt_reaches_who_drops_a_handle(model_paths: dict[str, Path]) -> None:
    code = """
import llama_cpp

llm = load()
# An interrupt that falls into llama_cpp's own callback for messages, which is written in Python, is lost.
llama_cpp.llama_log_set(llama_cpp.llama_log_callback(), None)
handle = StreamHandle(llm)
handle.prefill([300, 301])

def interrupts(drop):
    n = 0
    for i in range(40):
        def send():
            time.sleep(0.002 + i * 0.00001)
            os.kill(os.getpid(), signal.SIGINT)
        try:
            threading.Thread(target=send).start()
            until = time.monotonic() + 1
            while time.monotonic() < until:
                drop()
        except KeyboardInterrupt:
            n += 1
    return n

assert interrupts(lambda: handle.fork().close()) == 40
assert interrupts(lambda: handle.fork()) == 40
assert interrupts(lambda: StreamHandle(llm)) == 40
wait_until(lambda: attachment(llm).streams == {handle._stream.native})
assert len(list(handle.generate(2))) == 2
"""
    assert child_process.run(model_paths["tiny"], code) == ""


def test_forks_that_are_dropped_or_closed_keep_no_other_waiting_in_vain(tiny: Any) -> None:
    with StreamHandle(tiny) as stream:
        stream.prefill(PROMPT)
        for _ in range(300):
            stream.fork().append(" on")  # and is freed behind the back of what comes next
            stream.append(" so")
            stream.state  # noqa: B018 - which is refused in a call
            stream.prefill(PROMPT)
        forks = [stream.fork() for _ in range(200)]
        closing = threading.Thread(target=lambda: [fork.close() for fork in forks])
        closing.start()
        while closing.is_alive():
            stream.append(" so")
            stream.prefill(PROMPT)
        closing.join()
