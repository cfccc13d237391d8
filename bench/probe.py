"""Whether an engine can take a set at all, found out in a process that may hang or die.

Run as `python -m bench.probe CONTENDER MODEL SET`, by itself.
"""

import signal
import subprocess
import sys
from threading import Timer

_MEMORY_BYTES = 12 << 30


def reason_against(contender: str, model: str, answers: str, limit_s: float) -> str | None:
    """Return why a contender is out for a set; None if it built it and took one step within the limit."""
    command = [sys.executable, "-m", "bench.probe", contender, model, answers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()  # it is ready; the clock runs from here
        timer = Timer(limit_s, process.kill)
        timer.start()
        errors = process.stderr.read()
        process.wait()
        in_time = timer.is_alive()
        timer.cancel()
    if process.returncode == 0:
        return None
    if not in_time:
        return f"not done after {limit_s:g} s"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if process.returncode < 0:
        last = f"{signal.Signals(-process.returncode).name} {last}"
    return last.strip()[:120]


def _main() -> None:
    import resource

    from bench.contenders import ALL
    from bench.models import load
    from bench.sets import SETS

    who, model_name, answers_name = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    model = load(model_name)
    contender = ALL[who](model)
    answers = SETS[answers_name](model)
    print("ready", flush=True)
    for measure in contender.measures(answers).values():
        measure(1)


if __name__ == "__main__":
    _main()
