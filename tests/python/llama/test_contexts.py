from __future__ import annotations

import copy
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import child_process
import llama_cpp
import pytest
from token_trie import (
    ArgumentError,
    BusyError,
    CancelledError,
    StreamHandle,
    TokenTrie,
    TokenTrieError,
    choose,
    choose_many,
)
from tokenized_choices import ACTIONS, PROMPT

INTERRUPT = """
def interrupt():
    wait_until(lambda: is_busy(handle))
    for _ in range({n}):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.02)
llm = load()
handle = StreamHandle(llm, n_ctx=16384)
handle.prefill([300])
trie = TokenTrie.from_sequences({str(i): [5 + i % 200, 5 + i // 200, 7] for i in range(35_000)})
(thread,) = start(interrupt)
try:
    {call}
except KeyboardInterrupt:
    assert not is_busy(handle), "the interrupt came before the call had ended"
else:
    sys.exit("not interrupted")
state = handle.state
assert (state.n_tokens, state.n_cached) == (1, 1), state
assert handle.state.n_tokens == 1
try:
    thread.join()
except KeyboardInterrupt:
    thread.join()
handle.set_token_trie(TokenTrie.from_sequences({"a": [301], "b": [302]}))
assert len(list(handle.generate())) == 1
"""


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "call",
    ["handle.prefill([300] + LONG)", "handle.score(trie, max_scored=None)"],
    ids=["prefill", "score"],
)
def test_an_interrupt_ends_the_native_work_before_it_goes_on(model_paths: dict[str, Path], call: str, n: int) -> None:
    child_process.run(model_paths["tiny"], INTERRUPT.replace("{call}", call).replace("{n}", str(n)))


def test_an_interrupt_that_another_thread_receives_is_heard_too(model_paths: dict[str, Path]) -> None:
    code = """
handle = StreamHandle(load(), n_ctx=16384)
handle.prefill([300])
def interrupt():
    wait_until(lambda: is_busy(handle))
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
start(interrupt)
try:
    handle.prefill([300] + LONG)
except KeyboardInterrupt:
    assert handle.state.n_tokens == 1, handle.state
else:
    sys.exit("not interrupted")
"""
    child_process.run(model_paths["tiny"], code)


def test_an_interrupted_choice_leaves_the_model_free_for_the_next(model_paths: dict[str, Path]) -> None:
    code = """
llm = llama_cpp.Llama(PATH, n_ctx=16384, n_threads=1, n_threads_batch=1, verbose=False)
trie = TokenTrie.from_sequences({"a": [300], "b": [301]})
expected = choose(llm, [300], trie)
handle = attachment(llm).made(token_trie.llama.batch.OwnStream).stream
def interrupt():
    wait_until(lambda: is_busy(handle))
    os.kill(os.getpid(), signal.SIGINT)
start(interrupt)
try:
    choose(llm, LONG, trie)
except KeyboardInterrupt:
    assert choose(llm, [300], trie).value == expected.value
else:
    sys.exit("not interrupted")
"""
    child_process.run(model_paths["tiny"], code.replace("PATH", repr(str(model_paths["tiny"]))))


def test_an_interrupt_ends_generate_between_two_steps(model_paths: dict[str, Path]) -> None:
    code = """
handle = StreamHandle(load(), n_ctx=2048)
handle.prefill([300])
n = 0
try:
    for step in handle.generate(max_tokens=2000):
        n += 1
        if n == 5:
            os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    assert n == 5
    assert len(list(handle.generate(max_tokens=3))) > 0
else:
    sys.exit("not interrupted")
"""
    child_process.run(model_paths["tiny"], code)


@pytest.mark.parametrize("before", ["[300]", "LONG[:4000]"])
def test_an_interrupt_ends_a_text(model_paths: dict[str, Path], before: str) -> None:
    code = f"""
handle = StreamHandle(load(), n_ctx=16384)
handle.prefill([300])
handle.append({before})
n = handle.state.n_tokens
def interrupt():
    wait_until(lambda: is_busy(handle))
    os.kill(os.getpid(), signal.SIGINT)
start(interrupt)
try:
    handle.text(12_000)
except KeyboardInterrupt:
    assert n <= handle.state.n_tokens < n + 2000, handle.state
    assert len(handle.text(3).tokens) == 3
else:
    sys.exit("not interrupted")
"""
    child_process.run(model_paths["tiny"], code)


def test_whoever_closes_a_handle_returns_when_it_is_freed(model_paths: dict[str, Path]) -> None:
    code = """
for open_ in (lambda: StreamHandle(load(), n_ctx=8192), lambda: StreamHandle(PATH, n_ctx=8192, n_threads=1)):
    log, handle = [], open_()
    (thread,) = start(ends(lambda: handle.prefill(LONG[:8000]), log))
    wait_until(lambda: is_busy(handle))
    def close():
        handle.close()
        assert handle._stream.native.is_freed
        log.append("closed")
    for closing in start(close, close, close):
        closing.join()
    thread.join()
    assert log.count("closed") == 3, log
    assert any(isinstance(entry, TokenTrieError) for entry in log), log
"""
    child_process.run(model_paths["tiny"], code.replace("PATH", repr(str(model_paths["tiny"]))))


def test_a_step_under_way_when_its_handle_is_closed_is_whole_or_refused(model_paths: dict[str, Path]) -> None:
    code = """
llm = load()
with StreamHandle(llm, n_ctx=256) as handle:
    handle.prefill([1, 300, 301])
    expected = list(handle.generate(200))
for i in range(60):
    handle, steps, log = StreamHandle(llm, n_ctx=256), [], []
    handle.prefill([1, 300, 301])
    (thread,) = start(ends(lambda: steps.extend(handle.generate(200)), log))
    time.sleep(i * 0.0001)
    handle.close()
    thread.join()
    assert [step.text for step in steps] == [step.text for step in expected][:len(steps)]
    assert log[0] is None or "closed" in str(log[0]), log
"""
    child_process.run(model_paths["tiny"], code, env=child_process.FREED_MEMORY_IS_OVERWRITTEN)


def test_a_handle_on_a_file_is_not_freed_while_another_thread_tokenizes_with_it(model_paths: dict[str, Path]) -> None:
    code = """
for i in range(4):
    handle, log = StreamHandle(PATH, n_ctx=64, n_threads=1), []
    (thread,) = start(ends(lambda: handle.prefill("Pizza Paris " * 20_000), log))
    time.sleep(0.01 * (i + 1))
    handle.close()
    thread.join()
    assert isinstance(log[0], TokenTrieError), log
"""
    child_process.run(
        model_paths["tiny"],
        code.replace("PATH", repr(str(model_paths["tiny"]))),
        env=child_process.FREED_MEMORY_IS_OVERWRITTEN,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_refuses_handles_on_files_and_ends_as_it_should(model_paths: dict[str, Path]) -> None:
    code = """
llm, handle = load(), StreamHandle(PATH, n_ctx=64, n_threads=1)
handle.prefill([1, 300, 301])
choose(llm, [300], TokenTrie.from_sequences({"a": [300], "b": [301]}))
child = os.fork()
if child == 0:
    try:
        handle.prefill([1])
    except token_trie.ArgumentError as error:
        sys.exit(0 if "before this process was forked" in str(error) else 3)
    sys.exit(4)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert len(list(handle.generate(2))) == 2
"""
    child_process.run(model_paths["tiny"], code.replace("PATH", repr(str(model_paths["tiny"]))))


def test_a_handle_closed_from_a_log_callback_inside_its_call_is_freed_after_it(model_paths: dict[str, Path]) -> None:
    code = """
handle = StreamHandle(load(), n_ctx=64)
handle.prefill([300])
called = []
@llama_cpp.llama_log_callback
def log(level, text, data):
    called.append(threading.get_ident())
    handle.close()
llama_cpp.llama_log_set(log, None)
try:
    handle.set_grammar("root ::= (")  # about which llama.cpp has a word to say
except TokenTrieError:
    pass
assert threading.get_ident() in called
wait_until(lambda: handle._stream.native.is_freed)
"""
    child_process.run(model_paths["tiny"], code)


@pytest.mark.parametrize("call", ["handle.set_seed(1)", "handle.tokens", "list(handle.generate(20))"])
def test_a_signals_handler_may_close_a_handle_at_any_moment(model_paths: dict[str, Path], call: str) -> None:
    code = """
llm = load()
signal.signal(signal.SIGALRM, lambda *_: handle.close())
for i in range(40):
    handle = StreamHandle(llm, n_ctx=256)
    handle.prefill("Answer:")
    signal.setitimer(signal.ITIMER_REAL, 1e-4 + i * 5e-5)
    try:
        while True:
            CALL
            handle.prefill("Answer:")
    except token_trie.CancelledError:
        pass  # a prefill that was under way
    except TokenTrieError as error:
        assert "closed" in str(error), error
"""
    child_process.run(model_paths["tiny"], code.replace("CALL", call), timeout=60)


def test_a_handle_cannot_be_copied(smollm2: Any) -> None:
    with StreamHandle(smollm2, n_ctx=64) as stream:
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(ArgumentError, match="cannot be copied"):
                duplicate(stream)
        stream.prefill([300])


def test_a_closed_handle_refuses_everything_and_closes_twice(smollm2: Any) -> None:
    stream = StreamHandle(smollm2, n_ctx=64)
    stream.close()
    stream.close()
    stream.cancel()
    for call in (
        stream.clear_token_trie,
        lambda: stream.prefill("x"),
        lambda: list(stream.generate()),
        lambda: stream.set_grammar(None),
        lambda: stream.set_token_trie(TokenTrie.from_sequences({"a": [1]})),
        lambda: stream.set_seed(1),
        lambda: stream.state,
    ):
        with pytest.raises(ArgumentError, match="closed"):
            call()


def test_a_handle_is_closed_before_its_model(model_paths: dict[str, Path]) -> None:
    llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=64, verbose=False)
    stream = StreamHandle(llm)
    stream.prefill("x")
    llm.close()
    with pytest.raises(TokenTrieError):
        list(stream.generate())
    stream.close()


def test_a_second_thread_in_one_handle_is_refused(tiny: Any) -> None:
    with StreamHandle(tiny, n_ctx=16384) as stream:
        cancelled = []

        def prefill() -> None:
            with pytest.raises(CancelledError):
                stream.prefill([5] * 16_000)
            cancelled.append(True)

        thread = threading.Thread(target=prefill)
        thread.start()
        with pytest.raises(BusyError, match="in a call already"):
            [stream.state for _ in iter(thread.is_alive, False)]
        stream.cancel()
        thread.join()
        assert cancelled
        assert stream.state.n_tokens == 0


def test_two_handles_on_one_model_work_in_two_threads(smollm2: Any) -> None:
    actions = TokenTrie.from_choices(smollm2, ACTIONS, prompt=PROMPT)
    answers: dict[int, list[str]] = {0: [], 1: []}

    def work(n: int) -> None:
        with StreamHandle(smollm2, n_ctx=128) as stream:
            stream.set_token_trie(actions)
            for i in range(10):
                stream.prefill(f"{PROMPT} {i}")
                answers[n].append("".join(step.text for step in stream.generate()))

    threads = [threading.Thread(target=work, args=(n,)) for n in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[0] == answers[1]
    assert len(answers[0]) == 10


def test_contexts_made_beside_a_quiet_llama_put_nothing_on_the_terminal(
    model_paths: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(model_paths["gemma"])  # whose sliding windows llama.cpp warns of in each context
    llm = llama_cpp.Llama(path, n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False)
    capfd.readouterr()
    choose(llm, "Answer:", ["yes", "no"])
    list(choose_many(llm, ["Answer:", "Question:"], ["yes", "no"]))
    for model in (llm, path):
        with StreamHandle(model, n_ctx=1024) as stream:
            stream.prefill([5] * 250)
            stream.prefill([5] * 300)  # for which the context grows
            list(stream.generate(max_tokens=2))
            stream.fork().close()
    llm.close()
    assert capfd.readouterr() == ("", "")


def test_messages_are_as_verbose_as_the_last_llama(model_paths: dict[str, Path]) -> None:
    code = """
import logging
level = lambda: logging.getLogger("llama-cpp-python").level
with token_trie.native.core.quiet():
    load()
assert level() == logging.ERROR
llm = llama_cpp.Llama({path!r}, n_ctx=512, n_threads=1, n_threads_batch=1)
StreamHandle(llm).close()
assert level() == logging.DEBUG
""".format(path=str(model_paths["tiny"]))
    child_process.run(model_paths["tiny"], code)
