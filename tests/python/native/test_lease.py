from __future__ import annotations

from pathlib import Path

import child_process
import pytest

CLOSE_BESIDE = """
for round in range(6):
    llm, log = load(), []
    begun = threading.Event()
    def work():
        begun.set()
        return {call}
    (thread,) = start(ends(work, log))
    begun.wait()
    time.sleep(0.004 * round)
    llm.close()
    assert llm._model.model is None
    thread.join()
    assert len(log) == 1, log
    print(type(log[0]).__name__)
"""


@pytest.mark.parametrize(
    "call",
    [
        "TokenTrie.from_choices(llm, [f'answer {i}' for i in range(60_000)], prompt='Answer:')",
        "TokenTrie.from_choices(llm, [f'answer {i}' for i in range(2_000)], prompt='Answer:', tokenization='any')",
        "choose(llm, 'Answer: ' + 'a' * 200_000, ['yes', 'no'])",
        "StreamHandle(llm).prefill('Answer: ' + 'a' * 200_000)",
        "[constrain(llm, TokenTrie.from_sequences({'a': [300]})) for _ in range(3_000)]",
    ],
    ids=["from_choices", "any spelling", "choose", "prefill", "constrain"],
)
def test_closing_a_llama_waits_for_what_reads_its_vocabulary(model_paths: dict[str, Path], call: str) -> None:
    child_process.run(model_paths["tiny"], CLOSE_BESIDE.replace("{call}", call))


def test_whoever_closes_a_llama_returns_when_it_is_freed(model_paths: dict[str, Path]) -> None:
    code = """
for _ in range(3):
    llm, log = load(), []
    handle = StreamHandle(llm, n_ctx=16384)
    (thread,) = start(ends(lambda: handle.prefill(LONG), log))
    wait_until(lambda: is_busy(handle))
    def close():
        llm.close()
        assert llm._model.model is None
        log.append("closed")
    for closing in start(close, close, close):
        closing.join()
    thread.join()
    assert log.count("closed") == 3 and len(log) == 4, log
"""
    child_process.run(model_paths["tiny"], code)


def test_a_llama_closed_by_a_signal_inside_a_call_is_freed_after_it(model_paths: dict[str, Path]) -> None:
    code = """
llm = load()
handle = StreamHandle(llm, n_ctx=16384)
signal.signal(signal.SIGUSR1, lambda *_: llm.close())
def kill():
    wait_until(lambda: is_busy(handle))
    os.kill(os.getpid(), signal.SIGUSR1)
start(kill)
try:
    handle.prefill(LONG)
except TokenTrieError as error:
    print(error)
wait_until(lambda: llm._model.model is None)
try:
    choose(llm, "Answer:", ["yes", "no"])
except token_trie.ArgumentError as error:
    assert "closed" in str(error)
"""
    child_process.run(model_paths["tiny"], code)


def test_a_llama_that_has_chosen_is_freed_with_its_last_reference(model_paths: dict[str, Path]) -> None:
    code = """
gc.collect()
gc.disable()
for i in range(4):
    llm = load()
    assert choose(llm, "Answer:", ["yes", "no"], mode=("greedy", "exact")[i % 2]).value in ("yes", "no")
    try:
        choose(llm, [5] * 600, TokenTrie.from_sequences({"a": [300]}))
    except token_trie.ContextError:
        pass
    with constrain(llm, TokenTrie.from_choices(llm, ["yes", "no"])):
        llm.create_completion("Answer:", max_tokens=8)
    stream = llm._token_trie.made(token_trie.llama.batch.OwnStream).stream
    native, model, ref = stream.native, llm._model, weakref.ref(llm)
    del stream, llm
    assert ref() is None
    assert model.model is None and native.is_freed
"""
    child_process.run(model_paths["tiny"], code)


def test_handles_come_and_go_without_a_trace_on_the_llama(model_paths: dict[str, Path]) -> None:
    code = """
llm = load()
for _ in range(50):
    StreamHandle(llm, n_ctx=64)
wait_until(lambda: llm._token_trie.streams == set())
assert len(llm._stack._exit_callbacks) == 1
"""
    child_process.run(model_paths["tiny"], code)


def test_a_forked_process_says_what_it_cannot_do_and_ends(model_paths: dict[str, Path]) -> None:
    code = """
llm, unused = load(), load()
handle = StreamHandle(llm, n_ctx=16384)
trie = TokenTrie.from_choices(unused, ["yes", "no"])
(thread,) = start(ends(lambda: handle.prefill(LONG), []))
wait_until(lambda: is_busy(handle))
time.sleep(0.3)  # until it computes: where it makes a context it holds locks of ggml's, which the child would wait for
child = os.fork()
if child == 0:
    for call in (lambda: handle.state, lambda: choose(llm, "Answer:", ["yes", "no"])):
        try:
            call()
        except token_trie.ArgumentError as error:
            assert "forked" in str(error), error
        else:
            sys.exit(1)
    handle.cancel()
    handle.close()
    assert TokenTrie.from_choices(llm, ["yes", "no"]).names == trie.names
    assert choose(unused, "Answer:", trie).value in ("yes", "no")
    llm.close()
    sys.exit(7)
def has_ended():
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        print(os.waitstatus_to_exitcode(status))
    return pid
wait_until(has_ended)
handle.cancel()
thread.join()
"""
    assert child_process.run(model_paths["tiny"], code) == "7\n"


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts the threads of Linux")
def test_threads_that_choose_leave_no_threads_of_llama_cpp_that_slow_down_others(model_paths: dict[str, Path]) -> None:
    code = """
def n_threads():
    return len(os.listdir("/proc/self/task"))
from token_trie.asynchronous import achoose
llm = llama_cpp.Llama(llama_cpp_model, n_ctx=512, n_threads=3, n_threads_batch=3, verbose=False)
asyncio.run(achoose(llm, "Reply:", ["yes", "no"]))  # on a worker, which stays
choose(llm, "Answer:", ["yes", "no"])  # on this thread, whose threads may stay
base = n_threads()
asked, may_end = [], threading.Event()
def ask():
    asked.append(choose(llm, "Answer:", ["yes", "no", "none of both"], mode="greedy"))
    may_end.wait()
for _ in range(3):
    threading.Thread(target=ask, daemon=True).start()
wait_until(lambda: len(asked) == 3)
wait_until(lambda: n_threads() == base + 3)
asyncio.run(achoose(llm, "Answer:", ["yes", "no"]))
wait_until(lambda: n_threads() <= base + 3)
"""
    code = code.replace("llama_cpp_model", repr(str(model_paths["tiny"])))
    child_process.run(model_paths["tiny"], code, env={"GOMP_SPINCOUNT": "1000"})  # in a process that is no fork
