"""The command-line application and options that commands share."""

from __future__ import annotations

import codecs
import functools
import inspect
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console

from token_trie.errors import ArgumentError
from token_trie.llama.model_files import find_model
from token_trie.llama.query import LeafEnd
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.files import demo_model
from token_trie.native.options import Options, described
from token_trie.native.threads import is_main_thread
from token_trie.sets.prompt import Prompt, Template
from token_trie.sets.trie import TokenTrie
from token_trie.show.trie import plain

app = typer.Typer(
    help="Make llama.cpp answer with one member of a known set.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
console = Console()
status = Console(stderr=True)


def say(text: str) -> None:
    """Print one line of plain text on standard error."""
    status.print(plain(text), highlight=False, soft_wrap=True)


@contextmanager
def interrupted_after() -> Iterator[None]:
    """Raise KeyboardInterrupt after the block for an interrupt inside it; a second one ends the process.

    llama-cpp-python logs through a callback in Python, which would lose a KeyboardInterrupt.
    """
    if not is_main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    caught: list[int] = []

    def catch(sig: int, _: object) -> None:
        caught.append(sig)
        signal.signal(sig, signal.SIG_DFL)

    signal.signal(signal.SIGINT, catch)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if caught:
        raise KeyboardInterrupt


def epilog(*examples: str) -> str:
    """Return the examples at the end of a help text."""
    return "\n\n".join(["**Examples**", *(f"`{example}`" for example in examples)])


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


def read_json(path: Path, option: str) -> Any:
    """Read a file of JSON; ArgumentError, which names the option, for anything else."""
    try:
        return json.loads(read(path))
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{option}: {path}: not JSON ({error})") from error


def command(*examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command; each field of a parameter that is a dataclass becomes an option; see `Flags`, too.

    An option's type is annotated with its help, or with `typer.Option`.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, tuple[Any, list[inspect.Parameter]]] = {}
        options: list[inspect.Parameter] = []
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            kind = parameter.annotation
            flags = next((one for one in get_args(kind) if isinstance(one, Flags)), None)
            if flags is not None or is_dataclass(kind):
                own = _options_of(kind) if flags is None else flags.options
                groups[parameter.name] = flags or kind, own
                options += own
            else:
                options.append(_option(parameter.name, parameter.default, kind))

        @functools.wraps(function)
        def call(**given: Any) -> None:
            made = {name: make(**{o.name: given.pop(o.name) for o in own}) for name, (make, own) in groups.items()}
            function(**made, **given)

        call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        return app.command(epilog=epilog(*examples))(call)

    return declare


def _options_of(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [_option(field.name, field.default, types[field.name]) for field in fields(group)]


def _option(name: str, default: Any, kind: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is MISSING else default
    says = getattr(kind, "__metadata__", ())
    if says and isinstance(says[0], str):
        flags = [f"--{name.replace('_', '-')}"] if kind.__origin__ is bool else []
        kind = Annotated[kind.__origin__, typer.Option(*flags, help=says[0])]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


class Flags:
    """Annotates a parameter of a command that takes options of a family as a dict of keyword arguments.

    The command gets these options, with the same names, types and defaults, except those in `without`. If None means no
    limit for a number with a default, 0 does on the command line. Options without a help text get that of the Python
    docstring.
    """

    def __init__(self, family: type[Options], *, without: Collection[str], **helps: str) -> None:
        types, texts = get_type_hints(family), {**described(family), **helps}
        self.options: list[inspect.Parameter] = []
        self._limits: set[str] = set()
        for field in fields(family):
            if field.name in without:
                continue
            kind: Any = types[field.name]
            if NoneType in get_args(kind) and field.default is not None:
                self._limits.add(field.name)
            says: Any = texts[field.name]
            if field.name in self._limits:
                says = typer.Option(min=0, help=says)
            self.options.append(_option(field.name, field.default, Annotated[kind, says]))

    def __call__(self, **given: Any) -> dict[str, Any]:
        """Return the keyword arguments for the values of the options."""
        return {name: None if name in self._limits and not value else value for name, value in given.items()}


def text_of(path: str) -> str:
    """Return the text of a file of Linux; empty elsewhere."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def processors() -> tuple[int | None, int]:
    """Return how many cores and how many processors, their hardware threads, this process may use.

    The cores are None except on Linux.
    """
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    quota = re.match(r"(\d+) (\d+)", text_of("/sys/fs/cgroup/cpu.max"))
    n = max(1, min(len(usable), int(quota[1]) // int(quota[2]))) if quota else len(usable)
    cores = {text_of(f"/sys/devices/system/cpu/cpu{each}/topology/thread_siblings_list") for each in usable}
    return None if "" in cores else min(len(cores), n), n


SERVED_N_CTX = 8192
"""Default context of a server, in tokens, shared by all requests."""
LEAF_END_HELP = (
    "What the probability of an answer includes besides its tokens. longest: that no longer choice continues from it; "
    "any: nothing; follow: that the text ends after it."
)
LeafEndOption = Annotated[LeafEnd, typer.Option(help=LEAF_END_HELP)]
ChatOption = Annotated[bool, typer.Option("--chat", help="Apply the model's chat template to the prompt.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def model_file(name: str | None) -> Path:
    """Return the file of ``--model``, by default the bundled one; ArgumentError if it does not exist."""
    try:
        return find_model(demo_model() if name is None else name)
    except ArgumentError as error:
        raise ArgumentError(f"--model: {error}") from error


@dataclass(frozen=True)
class ModelOptions:
    """The model and options of loading it."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="A GGUF file, or a model that another program has: ollama:NAME, lmstudio:NAME, hf:OWNER/NAME. "
            "Default: SmolLM2-135M from `token-trie[demo]`.",
        ),
    ] = None
    n_ctx: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=2**31 - 1,
            help="Size of the context in tokens. Default: the size that the model was trained with; in demo 2048, in "
            "label and decide 4096; in extract and serve 8192, shared by all in progress.",
            show_default=False,
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of llama.cpp's threads, for batches of any size. Default: one for each core that the process "
            "may use; for batches, one for each hardware thread.",
            show_default=False,
        ),
    ] = None
    n_gpu_layers: Annotated[
        int,
        typer.Option(min=-1, help="Number of the model's layers on a GPU, if llama.cpp was built for one; -1: all."),
    ] = 0

    @property
    def path(self) -> Path:
        """The model's file, by default the bundled one; ArgumentError if it does not exist."""
        return model_file(self.model)

    @property
    def name(self) -> str:
        """The file's name, or the name that another program gives the model."""
        if self.model is None or Path(self.model).is_file():
            return self.path.name
        return self.model.partition(":")[2]

    def load(self, n_ctx: int = 0) -> Llama:
        """Load the model; `n_ctx` is the default context, 0 the model's training context."""
        path = self.path
        n_ctx = n_ctx if self.n_ctx is None else self.n_ctx
        n_cores, n_processors = (self.threads, self.threads) if self.threads else processors()
        with interrupted_after(), status.status(f"loading {self.name}"):
            try:
                return llama_cpp.Llama(
                    str(path),
                    n_ctx=n_ctx,
                    n_threads=n_cores,
                    n_threads_batch=n_processors,
                    n_gpu_layers=self.n_gpu_layers,
                    verbose=False,
                )
            except ValueError as error:
                raise ArgumentError(f"--model: {error}; it needs a whole GGUF file of a known kind") from error


@dataclass(frozen=True)
class ChoiceOptions:
    """The choices."""

    choice: Annotated[
        list[str] | None, typer.Option("--choice", "-c", help="A choice. Repeat the option for each one.")
    ] = None
    choices_file: Annotated[
        Path | None,
        "A text file with one choice per line, or a JSON list of texts; - reads standard input. choose also "
        "accepts a .trie file.",
    ] = None

    def read(self) -> list[str]:
        """Return the choices of both options."""
        if is_set(self.choices_file):
            raise ArgumentError(
                "--choices-file: a .trie is not accepted here; use a text file with one choice per line"
            )
        choices = list(self.choice or []) + (read_choices(self.choices_file) if self.choices_file else [])
        if not choices:
            raise ArgumentError("no choices: use --choice or --choices-file")
        return choices

    def read_set(self) -> list[str] | TokenTrie:
        """Return the choices, or the set if --choices-file names one."""
        if self.choices_file is None or not is_set(self.choices_file):
            return self.read()
        if self.choice:
            raise ArgumentError("--choice and a .trie file: use only one of them")
        return TokenTrie.open(self.choices_file)


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """The prompt."""

    prompt: Annotated[
        str,
        typer.Option(
            "--prompt",
            "-p",
            help="The text before the answer; - reads standard input, without a line break at its end.",
        ),
    ]
    chat: ChatOption = False

    def read(self, choices: ChoiceOptions) -> tuple[Prompt, list[str] | TokenTrie]:
        """Return the prompt and the choices; ArgumentError if both are to come from standard input."""
        require_one_standard_input(self.prompt, choices.choices_file)
        found = choices.read_set()
        return as_prompt(read_text(Path("-")) if self.prompt == "-" else self.prompt, self.chat), found


@dataclass(frozen=True)
class RowPrompt:
    """The text that the model reads of each row."""

    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            help="The text that the model reads of each row, before its answer. {column} stands for the row's value in "
            "that column, and \\n for a line break.",
        ),
    ] = None
    prompt_file: Annotated[
        Path | None,
        "A file with the text of --prompt, without a line break at its end. In it, \\n is not a line break.",
    ] = None
    chat: ChatOption = False

    def template(self) -> Template | None:
        """Return the template; None if there is none."""
        if self.prompt is not None and self.prompt_file is not None:
            raise ArgumentError("--prompt and --prompt-file: use only one of them")
        if self.prompt_file is not None:
            return Template(read_text(self.prompt_file), has_escapes=False)
        return None if self.prompt is None else Template(self.prompt, has_escapes=True)


def require_one_standard_input(*given: object) -> None:
    """Raise ArgumentError if several options are ``-``."""
    if list(map(str, given)).count("-") > 1:
        raise ArgumentError("-: only one of them can be standard input")


def require_output(option: str, path: Path, *others: Path | None) -> None:
    """Raise ArgumentError if no file can be written at a path, or the file is another one that the command uses."""
    if path.exists() and not path.is_file():
        raise ArgumentError(f"{option}: {str(path)!r} is not a file")
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"{option}: no folder {str(path.parent)!r}")
    if any(other is not None and os.path.realpath(other) == os.path.realpath(path) for other in others):
        raise ArgumentError(f"{option}: {str(path)!r} is another file of this command; name a new one")


def as_prompt(text: str, chat: bool) -> Prompt:
    """Return a text as a prompt or as a chat of one message."""
    return [{"role": "user", "content": text}] if chat else text


def is_set(path: Path | None) -> bool:
    """Whether a file has the suffix of `TokenTrie.save`."""
    return path is not None and path.suffix.lower() == ".trie"


def read(path: Path) -> str:
    """Return the text of a file or, for ``-``, of standard input."""
    try:
        if str(path) == "-" and sys.stdin is None:
            raise ArgumentError("-: standard input is closed")
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        check_is_utf8(data, str(path))
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path}: not UTF-8 ({error})") from error


def check_is_utf8(begin: bytes, name: str) -> None:
    """Raise ArgumentError if a text begins as UTF-16 or UTF-32; other bytes are checked later."""
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)) or b"\0" in begin[:4]:
        raise ArgumentError(f"{name}: not UTF-8 but UTF-16 or UTF-32; {to_utf8('UTF-16')}")


def to_utf8(encoding: str) -> str:
    """Return advice on a text in another encoding."""
    return f"convert it: iconv -f {encoding} -t UTF-8 < OLD > NEW (in a spreadsheet, save it as 'CSV UTF-8')"


def read_text(path: Path) -> str:
    """Return the text of a file without a line break at its end, as editors add one and answers would follow it."""
    return read(path).removesuffix("\n")


def read_choices(path: Path) -> list[str]:
    """Return the texts of a file: its lines that are not blank, or the items of a JSON list."""
    text = read(path)
    lines = [line for line in text.split("\n") if line]
    whole = text.strip()
    if whole[:1] + whole[-1:] not in ("[]", "{}"):
        return lines
    try:
        listed = json.loads(whole)
    except (ValueError, RecursionError) as error:
        if len(lines) > 1 and lines[0].strip() not in "[{":
            return lines  # each line is in brackets
        raise ArgumentError(f"{path}: neither a JSON list of texts ({error}) nor one choice per line") from error
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise ArgumentError(f"{path}: JSON that is no list of texts; give one, or a text file with one choice per line")
    return listed
