"""``token-trie doctor``: checks of a model, of this machine, and of sets."""

from __future__ import annotations

import ctypes
import re
import string
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from token_trie.cli.options import (
    SERVED_N_CTX,
    JsonOption,
    ModelOptions,
    command,
    console,
    print_json,
    processors,
    status,
    text_of,
)
from token_trie.cli.sets import draw_set
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.batch import can_share, chooser
from token_trie.llama.contexts import devices, require_decoder
from token_trie.native.core import Llama, _core, llama_cpp, vocab_of
from token_trie.native.llama_facts import model_of
from token_trie.questions.decide import decide
from token_trie.questions.options import FormName, profile_of
from token_trie.questions.question import Choice
from token_trie.sets.prompt import has_chat_template, tokenize_prompt
from token_trie.show.trie import plain


class Finding(NamedTuple):
    """Result of a check: good without advice."""

    text: str
    fair: str | None = None
    """Advice where it works, but slower or with worse answers."""
    poor: str | None = None
    """Advice where something does not work."""

    @property
    def verdict(self) -> str:
        """Return "good", "fair" or "poor"."""
        return "poor" if self.poor else "fair" if self.fair else "good"


_N_CTX = 2048
_MIN_TRAINED_TOKENS = 2048
_MIN_RIGHT = 0.75
_N_TIMED = 256
_MAX_S = 2.0
_TEMPLATE = "tokenizer.chat_template"
# Linux's names of processor features that llama.cpp uses, and llama.cpp's where they differ by more than case.
_FLAGS = "avx, avx_vnni, avx2, f16c, fma, avx512f, avx512_vnni, avx512_bf16, amx_int8, asimd, asimddp, i8mm, sve"
_OTHER_NAMES = {"avx512f": "AVX512", "asimd": "NEON", "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8"}
_SUBJECTS = {
    "mathematics": "numbers and shapes",
    "history": "what happened in the past",
    "biology": "plants and animals",
    "geography": "countries, rivers and mountains",
    "music": "songs and instruments",
}
_LANGUAGE = Choice("Which language is the text in?", ["English", "German", "French", "Spanish", "Italian"])
_SUBJECT = Choice("Which school subject is it?", _SUBJECTS)
_KIND = Choice(
    "What kind of text is it?", ["recipe", "weather report", "advertisement", "invitation", "obituary", "diary"]
)
_KNOWN = [
    (_LANGUAGE, "Der Zug kommt heute eine Stunde später.", "German"),
    (_LANGUAGE, "Nous avons mangé du pain au bord de la mer.", "French"),
    (_SUBJECT, "A triangle has sides of 3, 4 and 5 centimetres. How large is its area?", "mathematics"),
    (_SUBJECT, "Explain why the Roman Empire was divided into two halves.", "history"),
    (_KIND, "Beat three eggs with the sugar, add the flour and bake for 40 minutes.", "recipe"),
    (_KIND, "Rain will spread from the west tonight, with gusts near the coast.", "weather report"),
]
"""Questions with known answers: each with a state and its answer."""


def _model(llm: Llama) -> Finding:
    model, buffer = model_of(llm).model, ctypes.create_string_buffer(256)
    llama_cpp.llama_model_desc(model, buffer, len(buffer))
    poor = None
    try:
        require_decoder(llm)
    except ArgumentError as error:
        poor = str(error)
    n = llama_cpp.llama_model_n_params(model)
    return Finding(f"{buffer.value.decode(errors='replace')}, {n:,} parameters", poor=poor)


def _cache(llm: Llama) -> Finding:
    if can_share(llm):
        with chooser(llm) as stream:
            state = stream.state
        states = f"; {state.n_states_max} states of {state.state_bytes / 1e6:.3g} MB" if state.n_states_max else ""
        return Finding(f"prompts share what they begin with, and are answered together{states}")
    return Finding("n_batch is 1", "prompts are answered one after the other: take a larger n_batch")


def _chat_template(llm: Llama) -> Finding:
    if not has_chat_template(llm):
        fair = "give prompts as text: messages get Llama 2's template, unless Llama(…, chat_format=…) says another"
        return Finding("none", fair)
    names = [key.removeprefix(_TEMPLATE).lstrip(".") or "default" for key in llm.metadata if key.startswith(_TEMPLATE)]
    text = f"{llm.chat_format}; of the file: {', '.join(names) or 'none'}"
    try:
        is_twice = tokenize_prompt(llm, [{"role": "user", "content": "Hello"}])[:2] == [llm.token_bos()] * 2
    except TokenTrieError as error:
        return Finding(text, f"messages are refused, so prompts have to be text: {error}")
    return Finding(text, "it puts the token of the beginning there twice: mend the template" if is_twice else None)


def _end_tokens(llm: Llama) -> Finding:
    tokens, end = vocab_of(llm).end_of_generation(), _end_of_turn(llm)
    if not tokens:
        return Finding("none", poor="nothing ends what it writes: convert it again, with tokenizer.ggml.eos_token_id")

    def name(token: int) -> str:
        return f"{llm.detokenize([token], special=True).decode(errors='replace')} ({token})"

    fair = None
    if end is not None and end not in tokens:
        fair = f"turns end with {name(end)}, which is none of them: set tokenizer.ggml.eot_token_id to {end}"
    return Finding(", ".join(map(name, tokens)), fair)


def _end_of_turn(llm: Llama) -> int | None:
    """Return the control token that ends an answer in the file's chat template; None if unknown."""
    model, template = model_of(llm), llm.metadata.get(_TEMPLATE)
    eos, bos = (model.token_get_text(token) if token >= 0 else "" for token in (llm.token_eos(), llm.token_bos()))
    turns: list[Any] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "answer_here"}]
    try:
        formatter = llama_cpp.llama_chat_format.Jinja2ChatFormatter
        text = formatter(template, eos, bos, add_generation_prompt=False)(messages=turns).prompt
    except Exception:  # no template; and a template may raise anything
        return None
    after = text.partition("answer_here")[2].strip()
    tokens = llm.tokenize(after.encode(), add_bos=False, special=True) if after else []
    return int(tokens[0]) if tokens and vocab_of(llm).is_control(tokens[0]) else None


def _labels(llm: Llama) -> Finding:
    letters = string.ascii_letters
    n = sum(len(llm.tokenize(letter.encode(), add_bos=False)) == 1 for letter in letters)
    fair = None if n == len(letters) else "leave form='letters' alone"
    return Finding(f"{n} of {len(letters)} letters are a token of their own", fair)


def _context(llm: Llama) -> Finding:
    n = llama_cpp.llama_model_n_ctx_train(model_of(llm).model)
    return Finding(f"trained with {n:,} tokens", "long states do not fit" if n < _MIN_TRAINED_TOKENS else None)


def _llama_cpp(_: Llama) -> Finding:
    return Finding(f"llama-cpp-python {llama_cpp.__version__}, ggml {_core.llama_loaded()}")


def _processor(_: Llama) -> Finding:
    system = llama_cpp.llama_print_system_info().decode(errors="replace")
    built = {name for name, value in re.findall(r"(\w+) = (\d+)", system) if value != "0"}
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text_of("/proc/cpuinfo"), re.MULTILINE)
    has = set(line[1].split()) if line else set()
    names = {flag: _OTHER_NAMES.get(flag, flag.upper()) for flag in _FLAGS.split(", ")}
    missing = [name for flag, name in names.items() if flag in has and name not in built]
    fair = (
        f"this processor has {', '.join(missing)}, which llama.cpp was compiled without: compile it here, by "
        "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
    )
    used = ", ".join(name for name in names.values() if name in built) or "no vector instructions"
    return Finding(f"llama.cpp computes with {used}", fair if missing else None)


def _devices(llm: Llama) -> Finding:
    seen = devices()
    text = "; ".join(
        f"{one.description} by {one.backend}, {_size(one.free_bytes)} of {_size(one.total_bytes)} free" for one in seen
    )
    has_gpu = any("gpu" in one.kind for one in seen)
    fair = "--n-gpu-layers -1 puts the model on the GPU, as Llama(…, n_gpu_layers=-1) does"
    return Finding(text, fair if has_gpu and not llm.model_params.n_gpu_layers else None)


def _threads(llm: Llama) -> Finding:
    n_threads, n_cores = max(llm.n_threads, llm.n_threads_batch), processors()[1]
    text = f"{llm.n_threads} for single tokens, {llm.n_threads_batch} for batches, on {n_cores} processors"
    fair = f"more threads than processors wait for one another: --threads {n_cores}"
    return Finding(text, fair if n_threads > n_cores else None)


def _questions(llm: Llama) -> Finding:
    """Ask the known questions, by default and by letters."""
    forms: dict[FormName | None, str] = {None: f" by its profile, {profile_of(llm)}", "letters": " by letters"}
    n, rights, texts = len(_KNOWN), list[int](), list[str]()
    for form, by in forms.items():
        n_right, masses = 0, []
        for question, state, gold in _KNOWN:
            answer = decide(llm, state, question, form=form)
            n_right += answer.value == gold
            masses.append(answer.mass or 0.0)
        rights.append(n_right)
        texts.append(f"{n_right} of {n} right{by}, mass {median(masses):.2g}")
    fair = None
    if rights[0] < _MIN_RIGHT * n:
        is_better = rights[-1] >= _MIN_RIGHT * n
        fair = "ask it by letters, with form='letters'" if is_better else "it guesses: take a larger model"
    return Finding("; ".join(texts), fair)


def _speed(llm: Llama) -> Finding:
    """Time a decision about a new state with a known question."""
    room = min(_N_TIMED, llama_cpp.llama_model_n_ctx_train(model_of(llm).model) // 2, llm.n_ctx() // 2)
    states = (f"Ticket {i}: {_KNOWN[i % len(_KNOWN)][1]}\n" for i in range(1, room))
    state = ""
    while len(llm.tokenize(state.encode(), add_bos=False)) < room:
        state += next(states)
    begun = perf_counter()
    answer = decide(llm, state, _KNOWN[0][0])
    seconds = perf_counter() - begun
    text = f"{1000 * seconds:,.0f} ms for a question about {answer.stats.n_prompt:,} tokens that were not read before"
    return Finding(text, "a smaller model or quantization, or a GPU" if seconds > _MAX_S else None)


def _memory(llm: Llama) -> Finding:
    weights = llama_cpp.llama_model_size(model_of(llm).model)
    llm.reset()
    sizes = []
    for _ in range(2):
        llm.eval([0] * (n_half := min(32, llm.n_ctx() // 2)))
        sizes.append(llama_cpp.llama_state_seq_get_size(llm.ctx, 0))
    llm.reset()
    each = (sizes[1] - sizes[0]) / n_half  # a state stays as large
    cells = sizes[1] + each * (SERVED_N_CTX - 2 * n_half)
    text = f"{_size(weights)} of weights, {_size(cells)} for {SERVED_N_CTX:,} tokens ({each / 1024:.3g} KiB a token)"
    found = re.search(r"MemAvailable:\s+(\d+)", text_of("/proc/meminfo"))
    limit, used = (text_of(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if found is None:
        return Finding(text)
    free = 1024 * int(found[1])  # with cached files
    if limit.isdigit() and used.isdigit():
        free = min(free, int(limit) - int(used))
    return Finding(
        f"{text}; {_size(free)} free",
        "--n-ctx with fewer tokens, or a smaller model" if free < weights + cells else None,
        "the weights are read from disk at each pass: a smaller model or quantization" if weights > free else None,
    )


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


_CHECKS: dict[str, Callable[[Llama], Finding]] = {
    "model": _model,
    "cache": _cache,
    "chat template": _chat_template,
    "end tokens": _end_tokens,
    "labels": _labels,
    "context": _context,
    "llama.cpp": _llama_cpp,
    "processor": _processor,
    "devices": _devices,
    "threads": _threads,
    "questions": _questions,
    "speed": _speed,
    "memory": _memory,
}
_EVALUATING = ("questions", "speed", "memory")


def _examine(llm: Llama) -> dict[str, Finding]:
    """Return the findings; after a poor one, nothing is evaluated."""
    found: dict[str, Finding] = {}
    for about, check in _CHECKS.items():
        if about in _EVALUATING and any(one.poor for one in found.values()):
            continue
        try:
            found[about] = check(llm)
        except TokenTrieError as error:
            found[about] = Finding("failed", poor=str(error))
    return found


@command(
    "token-trie doctor",
    "token-trie doctor -m model.gguf --json",
    "token-trie doctor items.trie",
    "token-trie doctor payload.json -m model.gguf --path action",
)
def doctor(
    model: ModelOptions,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="Instead: a set, in a .trie file of `build` or a payload in JSON (- reads standard input). With "
            "--model, the tokens have their texts, and the vocabulary is checked.",
            show_default=False,
        ),
    ] = None,
    path: Annotated[str | None, "Of a payload, use only the descriptors of this path."] = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether a model and this machine are suitable for decisions, and tell what to change; or check a set.

    The command lists the devices that llama.cpp can use, asks some questions with known answers, and times one. The
    exit status is 1 if something does not work. A set is read whole, with all checksums of its file, and drawn.
    """
    if file is not None:
        if as_json:
            raise ArgumentError("--json: not with a set")
        draw_set(file, path, None if model.model is None else model.path)
        return
    if path is not None:
        raise ArgumentError("--path: only with a payload")
    llm = model.load(_N_CTX)
    with status.status(f"examining {model.name}"):
        found = _examine(llm)
    works = not any(one.poor for one in found.values())
    if as_json:
        listed = [
            {"about": about, "verdict": one.verdict, "text": one.text, "change": one.poor or one.fair}
            for about, one in found.items()
        ]
        print_json(
            {
                "model": model.name,
                "works": works,
                "findings": listed,
                "devices": [asdict(device) for device in devices()],
                "llama_cpp_python": llama_cpp.__version__,
                "ggml": _core.llama_loaded(),
                "token_trie_compiled_against": _core.llama_compiled(),
            }
        )
    else:
        table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        marks = {"good": "[green]✓", "fair": "[yellow]![/]", "poor": "[bold red]✗"}
        for about, finding in found.items():
            advice = finding.poor or finding.fair
            change = f"\n[dim]→ {plain(advice)}" if advice else ""
            table.add_row(marks[finding.verdict], about, plain(finding.text) + change)
        console.print(table, highlight=False)
    if not works:
        raise typer.Exit(1)
