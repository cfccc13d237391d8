"""``token-trie doctor``: findings about the machine, the model file and questions with known answers."""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal, TypeAlias

import typer
from rich.table import Table

from token_trie.cli.options import SERVED_N_CTX, JsonOption, ModelOptions, command, console, status
from token_trie.errors import TokenTrieError
from token_trie.llama.batch import can_share
from token_trie.llama.contexts import devices
from token_trie.native.core import Llama, _core, llama_cpp, vocab_of
from token_trie.native.llama_facts import context_of, model_of
from token_trie.questions.decide import decide
from token_trie.questions.options import FormName
from token_trie.questions.question import Choice
from token_trie.questions.trained import LETTERS, single_tokens, trained_of
from token_trie.sets.prompt import has_chat_template, tokenize_prompt
from token_trie.show.trie import plain

Verdict: TypeAlias = Literal["good", "fair", "poor"]

_MARKS: dict[Verdict, str] = {"good": "[green]✓", "fair": "[yellow]![/]", "poor": "[bold red]✗"}


@dataclass(frozen=True)
class Finding:
    """A finding about a model or a machine."""

    about: str
    verdict: Verdict
    """Fair: it works, but slower or with worse answers; poor: something does not work."""
    told: str
    change: str | None = None
    """Advice."""


def found(about: str, told: str, *, fair: str | None = None, poor: str | None = None) -> Finding:
    """Return a finding: good without advice, else fair or poor."""
    return Finding(about, "poor" if poor else "fair" if fair else "good", told, poor or fair)


def draw(findings: list[Finding]) -> Table:
    """Return a table of verdicts, findings and advice."""
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        told = plain(finding.told)
        if finding.change:
            told += f"\n[dim]→ {plain(finding.change)}"
        table.add_row(_MARKS[finding.verdict], finding.about, told)
    return table


# Linux's name of each processor feature, and llama.cpp's.
_FEATURES = {
    "avx": "AVX",
    "avx_vnni": "AVX_VNNI",
    "avx2": "AVX2",
    "f16c": "F16C",
    "fma": "FMA",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
    "asimd": "NEON",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
}
_N_EVALUATED = 64
_MAX_LOAD = 1.5  # processes per processor, including this one


def examine_machine(llm: Llama, computes: bool) -> Iterator[Finding]:
    """Yield findings about the machine; `computes`: the model can be evaluated."""
    yield _versions()
    yield _processor()
    yield _devices(llm)
    yield from _threads(llm)
    if computes:
        yield _memory(llm)


def _versions() -> Finding:
    told = f"llama-cpp-python {llama_cpp.__version__}, ggml {_core.llama_loaded()}"
    try:
        _core.require_same_llama()
    except TokenTrieError as error:
        return found("llama.cpp", told, poor=str(error))
    return found("llama.cpp", told)


def _processor() -> Finding:
    built = {name: value for name, value in re.findall(r"(\w+) = (\d+)", _system_info()) if value != "0"}
    used = [name for name in _FEATURES.values() if name in built]
    told = f"llama.cpp computes with {', '.join(used)}" if used else "llama.cpp computes without vector instructions"
    missing = [name for flag, name in _FEATURES.items() if flag in _flags() and name not in built]
    fair = (
        f"this processor has {', '.join(missing)}, which llama.cpp was compiled without: compile it here, by "
        "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
    )
    return found("processor", told, fair=fair if missing else None)


def _system_info() -> str:
    return str(llama_cpp.llama_print_system_info().decode(errors="replace"))


def _flags() -> set[str]:
    """Return the processor's features on Linux; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return set()
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return set(line[1].split()) if line else set()


def _devices(llm: Llama) -> Finding:
    told = ", ".join(f"{gpu.description} by {gpu.backend}" for gpu in devices() if "gpu" in gpu.kind)
    if not told or llm.model_params.n_gpu_layers:
        return found("GPU", told or "none that llama.cpp was built for")
    fair = "--n-gpu-layers -1 puts the model on it, as Llama(…, n_gpu_layers=-1) does"
    return found("GPU", f"{told}, not used here", fair=fair)


def _threads(llm: Llama) -> Iterator[Finding]:
    n_cores, n_threads = _n_cores(), max(llm.n_threads, llm.n_threads_batch)
    told = f"{llm.n_threads} for single tokens, {llm.n_threads_batch} for batches, on {n_cores} processors"
    fair = f"more threads than processors wait for one another: --threads {n_cores}"
    yield found("threads", told, fair=fair if n_threads > n_cores else None)
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
        told = f"{load:.1f} processes at work in the last minute"
        fair = "other processes compute: what is timed here is slower than it need be"
        yield found("load", told, fair=fair if load > _MAX_LOAD * n_cores else None)
    if "OPENMP = 1" in _system_info():
        yield _spinning()


def _n_cores() -> int:
    """Return the number of processors that this process may use."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(n, int(quota) // int(period)))
    except (OSError, ValueError):
        return n


def _spinning() -> Finding:
    given = {name: os.environ[name] for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY") if name in os.environ}
    told = ", ".join(f"{name}={value}" for name, value in given.items())
    told = f"{told or 'threads spin'}; a program of your own sets GOMP_SPINCOUNT=1000 before it imports llama_cpp"
    is_active = given.get("OMP_WAIT_POLICY", "").lower() == "active"
    return found("waiting", told, fair="OMP_WAIT_POLICY=active lets threads spin: unset it" if is_active else None)


def _memory(llm: Llama) -> Finding:
    weights = llama_cpp.llama_model_size(model_of(llm).model)
    cell = _cell_bytes(llm)
    told = f"{_size(weights)} of weights, {_size(cell * SERVED_N_CTX)} for {SERVED_N_CTX:,} tokens"
    free = _free_bytes()
    if free is None:
        return found("memory", told)
    poor = "the weights are read from disk at each pass: a smaller model or quantization" if weights > free else None
    is_tight = free < weights + cell * SERVED_N_CTX
    fair = "--n-ctx with fewer tokens, or a smaller model" if is_tight else None
    return found("memory", f"{told}; {_size(free)} free", fair=fair, poor=poor)


def _cell_bytes(llm: Llama) -> float:
    """Return the bytes of a token in the KV cache, as saved."""
    llm.reset()
    n = min(_N_EVALUATED, llm.n_ctx())
    llm.eval([0] * n)
    size = llama_cpp.llama_state_seq_get_size(context_of(llm).ctx, 0) / n
    llm.reset()
    return float(size)


def _free_bytes() -> int | None:
    """Return the free memory, including cached files; None if unknown."""
    try:
        text = Path("/proc/meminfo").read_text()
        free = int(re.search(r"MemAvailable:\s+(\d+)", text)[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        return min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        return free


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


_TEMPLATE = "tokenizer.chat_template"
_MIN_TRAINED_TOKENS = 2048
_N_TIMED = 256
_MAX_S = 2.0
_MIN_RIGHT = 0.75
_BY = {"unlisted": "by what options mean", "letters": "by letters"}
# State, question, options; the first option is right.
_KNOWN = [
    ("My card was charged twice for one order.", "What is it about?", "A payment", "A password", "A delivery"),
    ("The film was a waste of time. I want my money back.", "What did the writer think?", "It was bad", "It was good"),
    ("Der Zug kommt heute eine Stunde später.", "Which language is this?", "German", "English", "Spanish"),
    ("The oven is burning! Call the firefighters!", "What happened?", "A fire", "A flood", "A theft"),
    ("It has been raining all day.", "What is the weather like?", "It is wet", "It is dry"),
    ("Set an alarm for seven tomorrow.", "What is to be done?", "Set an alarm", "Play some music", "Send a message"),
    (
        "I cannot log in: it says that my password is wrong.",
        "What is it about?",
        "A password",
        "A payment",
        "A delivery",
    ),
    ("The parcel has not arrived yet.", "What is it about?", "A delivery", "A password", "A payment"),
]


def examine_model(llm: Llama) -> Iterator[Finding]:
    """Yield findings about a model; known questions come last, if it can answer any."""
    findings = [_kind(llm), _sequences(llm), _chat(llm), _ends(llm), _beginning(llm), _labels(llm), _context(llm)]
    is_trained, decisions = _training(llm)
    yield from [*findings, decisions]
    if any(finding.verdict == "poor" for finding in findings):
        return
    try:
        yield from _answers(llm, is_trained)
    except TokenTrieError as error:
        yield found("questions", "not answered", poor=str(error))


def _kind(llm: Llama) -> Finding:
    model, buffer = model_of(llm).model, ctypes.create_string_buffer(256)
    llama_cpp.llama_model_desc(model, buffer, len(buffer))
    told = f"{buffer.value.decode(errors='replace')}, {llama_cpp.llama_model_n_params(model):,} parameters"
    poor = None
    if llm.metadata.get(f"{llm.metadata.get('general.architecture')}.attention.causal") == "false":
        poor = "it makes embeddings, and writes nothing: take a model that generates text"
    elif not llama_cpp.llama_model_has_decoder(model) or llama_cpp.llama_model_has_encoder(model):
        poor = "it has an encoder: take a model that only generates text"
    elif llama_cpp.llama_model_is_diffusion(model):
        poor = "it writes all tokens at once: take one that writes them one after the other"
    return found("model", told, poor=poor)


def _sequences(llm: Llama) -> Finding:
    if can_share(llm):
        return found("cache", "prompts share what they begin with, and are answered together")
    fair = "prompts are answered one after the other, and each answer is read by itself: a transformer is faster"
    return found("cache", "recurrent or hybrid", fair=fair)


def _chat(llm: Llama) -> Finding:
    if not has_chat_template(llm):
        fair = "give prompts as text: messages get Llama 2's template, unless Llama(…, chat_format=…) says another"
        return found("chat template", "none", fair=fair)
    names = [key.removeprefix(_TEMPLATE).lstrip(".") for key in llm.metadata if key.startswith(_TEMPLATE)]
    told = f"{llm.chat_format}; of the file: {', '.join(name or 'default' for name in names) or 'none'}"
    try:
        is_twice = tokenize_prompt(llm, [{"role": "user", "content": "Hello"}])[:2] == [llm.token_bos()] * 2
    except TokenTrieError as error:
        return found("chat template", told, fair=f"messages are refused, so prompts have to be text: {error}")
    fair = "it puts the token of the beginning there twice: mend the template"
    return found("chat template", told, fair=fair if is_twice else None)


def _ends(llm: Llama) -> Finding:
    tokens = vocab_of(llm).end_of_generation()
    if not tokens:
        poor = "nothing ends what it writes: convert it again, with tokenizer.ggml.eos_token_id"
        return found("end tokens", "none", poor=poor)
    told = ", ".join(_shown(llm, token) for token in tokens)
    end = _end_of_turn(llm)
    if end is None or end in tokens:
        return found("end tokens", told)
    fair = f"turns end with {_shown(llm, end)}, which is none of them: set tokenizer.ggml.eot_token_id to {end}"
    return found("end tokens", told, fair=fair)


def _end_of_turn(llm: Llama) -> int | None:
    """Return the control token that ends an answer in the file's chat template; None if unknown."""
    template = llm.metadata.get(_TEMPLATE)
    if template is None:
        return None
    model = model_of(llm)
    eos, bos = (model.token_get_text(token) if token >= 0 else "" for token in (llm.token_eos(), llm.token_bos()))
    turns: list[Any] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "answer_here"}]
    try:
        formatter = llama_cpp.llama_chat_format.Jinja2ChatFormatter
        text = formatter(template, eos, bos, add_generation_prompt=False)(messages=turns).prompt
    except Exception:  # a template may raise anything
        return None
    after = text.partition("answer_here")[2].strip()
    tokens = llm.tokenize(after.encode(), add_bos=False, special=True) if after else []
    return int(tokens[0]) if tokens and vocab_of(llm).is_control(tokens[0]) else None


def _shown(llm: Llama, token: int) -> str:
    return f"{llm.detokenize([token], special=True).decode(errors='replace')} ({token})"


def _beginning(llm: Llama) -> Finding:
    if not model_of(llm).add_bos_token():
        return found("beginning", "prompts begin with no token of their own")
    if llm.token_bos() < 0:
        return found("beginning", "a token that the file does not name", poor="set tokenizer.ggml.bos_token_id")
    return found("beginning", f"prompts begin with {_shown(llm, llm.token_bos())}")


def _labels(llm: Llama) -> Finding:
    n = len(single_tokens(llm, LETTERS).texts)
    told = f"{n} of {len(LETTERS)} letters are a token of their own"
    return found("labels", told, fair=None if n == len(LETTERS) else "leave form='letters' alone")


def _context(llm: Llama) -> Finding:
    n = llama_cpp.llama_model_n_ctx_train(model_of(llm).model)
    return found(
        "context", f"trained with {n:,} tokens", fair="long states do not fit" if n < _MIN_TRAINED_TOKENS else None
    )


def _training(llm: Llama) -> tuple[bool, Finding]:
    """Return whether the file's own form of questions is used, and the finding."""
    try:
        trained = trained_of(llm)
    except TokenTrieError as error:
        return False, found("decisions", "the file says that it was trained for them", fair=str(error))
    if trained is None:
        return False, found("decisions", "not trained for them: questions are put by a form, unlisted by default")
    return True, found("decisions", f"trained for them, as {trained.kind}: questions are put as the file says")


def _answers(llm: Llama, is_trained: bool) -> Iterator[Finding]:
    forms: list[FormName | None] = [None] if is_trained else ["unlisted", "letters"]
    n, results = len(_KNOWN), [_ask(llm, form) for form in forms]
    told = [
        f"{n_right} of {n} right{'' if form is None else f' {_BY[form]}'}, mass {mass:.2g}"
        for form, (n_right, mass) in zip(forms, results, strict=True)
    ]
    (n_right, _), *others = results
    is_better = any(n_other >= _MIN_RIGHT * n for n_other, _ in others)
    fair = "--form letters does better" if is_better else "it guesses: take a larger model, or another form"
    yield found("questions", "; ".join(told), fair=fair if n_right < _MIN_RIGHT * n else None)
    yield _speed(llm, forms[0])


def _ask(llm: Llama, form: FormName | None) -> tuple[int, float]:
    """Return the number of right answers to the known questions, and the median mass."""
    n_right, masses = 0, []
    for i, (state, question, *options) in enumerate(_KNOWN):
        turn = i % len(options)
        answer = decide(llm, state, Choice(question, options[turn:] + options[:turn]), form=form)
        n_right += answer.value == options[0]
        masses.append(answer.mass or 0.0)
    return n_right, median(masses)


def _speed(llm: Llama, form: FormName | None) -> Finding:
    """Time a decision about a new state with a known question."""
    room = min(_N_TIMED, llama_cpp.llama_model_n_ctx_train(model_of(llm).model) // 2, llm.n_ctx() // 2)
    said = (f"Ticket {i}: {_KNOWN[i % len(_KNOWN)][0]}\n" for i in range(1, room))
    state = ""
    while len(llm.tokenize(state.encode(), add_bos=False)) < room:
        state += next(said)
    _, question, *options = _KNOWN[0]
    begun = perf_counter()
    answer = decide(llm, state, Choice(question, options), form=form)
    seconds = perf_counter() - begun
    told = f"{1000 * seconds:,.0f} ms for a question about {answer.stats.n_prompt:,} tokens that were not read before"
    slow = "a smaller model or quantization, or a GPU" if seconds > _MAX_S else None
    return found("speed", told, fair=slow)


_N_CTX = 2048


@command("token-trie doctor", "token-trie doctor -m model.gguf", "token-trie doctor -m model.gguf --json")
def doctor(model: ModelOptions, as_json: JsonOption = False) -> None:
    """Check whether a model and this machine are suitable for decisions, and tell what to change.

    The command asks some questions with known answers, and times one. The exit status is 1 if something does not work.
    """
    llm = model.load(_N_CTX)
    with status.status(f"examining {model.path.name}"):
        findings = [*examine_model(llm)]
        findings += examine_machine(llm, computes=_all_work(findings))
    works = _all_work(findings)
    if as_json:
        told = {"model": model.path.name, "works": works, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(told, ensure_ascii=False, allow_nan=False))
    else:
        console.print(draw(findings), highlight=False)
    if not works:
        raise typer.Exit(1)


def _all_work(findings: list[Finding]) -> bool:
    return all(finding.verdict != "poor" for finding in findings)
