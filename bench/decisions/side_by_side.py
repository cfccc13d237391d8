"""Contenders take turns over the cases of a task."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from bench.decisions.contenders import FFI, FREE, GUIDED, STEPPING, TRIE, Contender, Free, Guided, Handle, Trie, Watched
from bench.decisions.figures import Decided, Log
from bench.decisions.tasks import Case, Task


def decide(task: Task, who: Sequence[str], rounds: int, advance: Callable[[], object]) -> Log:
    """Let each contender decide each case; another begins each time, so that none always follows the same."""
    watched = Watched(task)
    with ExitStack() as stack:

        def handle(jump_forward: bool) -> Handle:
            return stack.enter_context(closing(Handle(task, jump_forward=jump_forward)))

        make: dict[str, Callable[[], Contender]] = {
            FREE: lambda: Free(watched),
            GUIDED: lambda: Guided(watched),
            TRIE: lambda: Trie(watched),
            FFI: lambda: handle(jump_forward=True),
            STEPPING: lambda: handle(jump_forward=False),
        }
        contenders = {name: make[name]() for name in who}
        _decide_once(watched, contenders, list(who), task.cases[0])  # warms up
        log = Log(task)
        for turn, case in enumerate(task.cases * rounds):
            order = [who[(turn + i) % len(who)] for i in range(len(who))]
            log.decided.append(_decide_once(watched, contenders, order, case))
            advance()
        return log


def _decide_once(watched: Watched, contenders: dict[str, Contender], order: list[str], case: Case) -> Decided:
    prompt_ns = watched.prepare(case)  # the one time that all of it is evaluated in the Llama's context
    greedy, nearest = watched.task.tree.decode(watched.task.model)
    prefill_ns, outcomes = {}, {}
    for name in order:
        elapsed = contenders[name].prepare(case)
        prefill_ns[name] = elapsed if isinstance(contenders[name], Handle) else prompt_ns
        outcomes[name] = contenders[name].decide(case)
    return Decided(case, outcomes, prefill_ns, greedy, nearest)
