"""Whether an engine can take a set at all, found out in a process that may hang or die."""

import signal
from multiprocessing import get_context
from typing import Any

_MEMORY_BYTES = 12 << 30


def reason_against(contender: str, model: str, answers: str, limit_s: float) -> str | None:
    """Return why a contender is out for a set; None if it built it and took one step within the limit."""
    spawn = get_context("spawn")
    ready, errors = spawn.Event(), spawn.SimpleQueue()
    process = spawn.Process(target=_try, args=(contender, model, answers, ready, errors))
    process.start()
    while not ready.wait(0.1) and process.is_alive():  # the clock runs from when it is ready
        pass
    process.join(limit_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        return f"not done after {limit_s:g} s"
    if process.exitcode < 0:
        return signal.Signals(-process.exitcode).name
    return None if errors.empty() else str(errors.get())[:120]


def _try(who: str, model_name: str, answers_name: str, ready: Any, errors: Any) -> None:
    import resource

    from bench.contenders import ALL
    from bench.models import load
    from bench.sets import SETS

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    model = load(model_name)
    contender = ALL[who](model)
    answers = SETS[answers_name](model)
    ready.set()
    try:
        for measure in contender.measures(answers).values():
            measure(1)
    except Exception as error:  # whatever another engine may raise
        errors.put(f"{type(error).__name__}: {error}")
