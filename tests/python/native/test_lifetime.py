from __future__ import annotations

from pathlib import Path

import child_process
import pytest


def test_a_closed_llama_is_refused_and_so_are_its_handles(model_paths: dict[str, Path]) -> None:
    code = """
llm = load()
handle = StreamHandle(llm)
handle.prefill("Answer:")
trie = TokenTrie.from_choices(llm, ["yes", "no"])
choose(llm, "Answer:", trie)
native = handle._stream.native
llm.close()
assert native.is_freed
for call in (
    lambda: choose(llm, "Answer:", trie),
    lambda: TokenTrie.from_choices(llm, ["yes"]),
    lambda: StreamHandle(llm),
    lambda: constrain(llm, trie),
    lambda: handle.prefill("Answer:"),
    lambda: handle.state,
):
    try:
        call()
    except token_trie.ArgumentError as error:
        assert "closed" in str(error), error
    else:
        sys.exit("not refused")
"""
    child_process.run(model_paths["tiny"], code, env=child_process.FREED_MEMORY_IS_OVERWRITTEN)


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
    stream = attachment(llm).made(token_trie.llama.batch.OwnStream).stream
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
n = len(llm._stack._exit_callbacks)
wait_until(lambda: attachment(llm).streams == set())
StreamHandle(llm, n_ctx=64).close()
assert len(llm._stack._exit_callbacks) == n
"""
    child_process.run(model_paths["tiny"], code)


def test_a_forked_process_refuses_a_llama_that_was_used_before_and_ends(model_paths: dict[str, Path]) -> None:
    code = """
llm = load()
handle = StreamHandle(llm)
handle.prefill("Answer:")
choose(llm, "Answer:", ["yes", "no"])
child = os.fork()
if child == 0:
    for call in (lambda: handle.state, lambda: handle.prefill("a"), lambda: choose(llm, "Answer:", ["yes", "no"])):
        try:
            call()
        except token_trie.ArgumentError as error:
            assert "before this process was forked" in str(error), error
        else:
            sys.exit(1)
    handle.cancel()
    handle.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert choose(llm, "Answer:", ["yes", "no"]).value in ("yes", "no")
"""
    child_process.run(model_paths["tiny"], code)


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
