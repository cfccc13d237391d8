"""What the commands share: the app, options, models and files."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from token_trie.errors import ArgumentError
from token_trie.native.core import Llama
from token_trie.sets.prompt import Prompt

app = typer.Typer(
    help="llama.cpp answers with one of a known set.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
console = Console()
status = Console(stderr=True)


class End(str, Enum):
    """What the probability of an answer has beside its tokens."""

    longest = "longest"
    any = "any"
    follow = "follow"


PromptOption = Annotated[
    str, typer.Option("--prompt", "-p", help="Text that the answer follows; - reads standard input.")
]
ChoiceOption = Annotated[list[str] | None, typer.Option("--choice", "-c", help="One answer; repeat for each.")]
FileOption = Annotated[Path | None, typer.Option(help="A text file with one answer a line; - for standard input.")]
ChatOption = Annotated[bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")]
EndOption = Annotated[
    End,
    typer.Option(
        help="What the probability of a whole answer has beside its tokens: that no longer answer goes on from it; "
        "nothing; that the text ends there."
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", "-m", metavar="FILE.gguf", help="By default the SmolLM2-135M of `token-trie[demo]`."),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Threads of llama.cpp, for batches of any size. By default llama-cpp-python's.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def read_choices(choice: list[str] | None, choices_file: Path | None) -> list[str]:
    """Return the choices of both options."""
    choices = list(choice or []) + (read_lines(choices_file) if choices_file else [])
    if not choices:
        raise ArgumentError("no choices: give some with --choice or --choices-file")
    return choices


def check_inputs(prompt: str, choices_file: Path | None) -> None:
    """Raise ArgumentError where two options read standard input."""
    if prompt == "-" and str(choices_file) == "-":
        raise ArgumentError("--prompt and --choices-file: standard input is one; give the other another way")


def read_prompt(prompt: str, chat: bool) -> Prompt:
    """Return the prompt, read where it is to be read."""
    return as_prompt(read(Path("-")) if prompt == "-" else prompt, chat)


def as_prompt(text: str, chat: bool) -> Prompt:
    """Return a text as a prompt, or as the one message of a chat."""
    return [{"role": "user", "content": text}] if chat else text


def load(model: Path | None, n_ctx: int = 0, threads: int | None = None) -> Llama:
    """Load a model, by default the bundled one. Threads are for batches of any size."""
    import llama_cpp

    from token_trie.llama.models import bundled_model

    path = bundled_model() if model is None else model
    if not path.is_file():
        raise ArgumentError(f"--model: no file {str(path)!r}")
    with status.status(f"loading {path.name}"):
        try:
            return llama_cpp.Llama(str(path), n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, verbose=False)
        except ValueError as error:
            raise ArgumentError(f"--model: {error}") from error


def read(path: Path) -> str:
    """Return the text of a file, or of standard input for ``-``."""
    try:
        if str(path) != "-":
            return path.read_text(encoding="utf-8-sig")
        if sys.stdin is None:
            raise ArgumentError("-: standard input is closed")
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path}: not UTF-8 ({error})") from error


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file that have something on them."""
    return [line for line in (raw.rstrip("\r") for raw in read(path).split("\n")) if line]
